"""Tensors of `hexane.build` (one, a sequence, or a mapping of names), which become the outputs of a graph."""

from collections.abc import Mapping, Sequence

from hexane.build import Tensor, graph
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import fixed_function


def _matches(seen: Seen) -> bool:
    if isinstance(seen.value, (str, bytes)):
        return False
    return isinstance(seen.value, (Tensor, Mapping, Sequence))


TENSORS = Format(
    "tensors",
    "tensors",
    _matches,
    lambda seen: {"main": fixed_function(lambda: graph(seen.value))},
)
