"""A row of the table of formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hexane.sources.look import Seen
from hexane.sources.module import Function


@dataclass(frozen=True, slots=True)
class Format:
    """A format of models. name: of the format, as in `hexane info`; title: as in a sentence, "an ONNX model". matches:
    recognises the format. open: gives its functions by name, which are read on demand. A compiled format has None:
    commands that need a model refuse it with `advice`."""

    name: str
    title: str
    matches: Callable[[Seen], bool]
    open: Callable[[Seen], Mapping[str, Function]] | None
    advice: str = ""
