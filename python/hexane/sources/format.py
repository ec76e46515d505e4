"""A row of the table of formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hexane.sources.look import Seen
from hexane.sources.module import Function


@dataclass(frozen=True, slots=True)
class Format:
    """A format of models. name: as in `hexane info`; title: the words in a sentence, such as "an ONNX model". matches:
    recognises the format. open: returns the model's functions by name, which are read on demand; None for a compiled
    format, which commands that need a model refuse with `advice`."""

    name: str
    title: str
    matches: Callable[[Seen], bool]
    open: Callable[[Seen], Mapping[str, Function]] | None
    advice: str = ""
