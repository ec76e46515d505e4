"""If whose condition is computed at run time: both branches are, and the condition selects between their results. So an index
that is out of range is an error in either."""

from collections.abc import Sequence

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.dynamic import check_whole
from hexane.importers.onnx.node import Builder, Item


def choose(
    b: Builder, condition: Value, then: Sequence[Item | None], otherwise: Sequence[Item | None]
) -> Sequence[Item | None]:
    """Raises Error where the branches do not agree on dtypes and shapes: those are known at import."""
    if len(then) != len(otherwise):
        raise Error(f"got branches of {len(then)} and {len(otherwise)} outputs, need as many")
    condition = b.reshape(condition, shape=())
    return [_one(b, condition, x, y) for x, y in zip(then, otherwise, strict=True)]


def _one(b: Builder, condition: Value, x: Item | None, y: Item | None) -> Item | None:
    if x is y:
        return x
    if not isinstance(x, Value) or not isinstance(y, Value):
        raise Error("got a condition that is computed at run time, need tensors from both branches")
    if x.type != y.type:
        raise Error(
            f"got branches of {x.type} and {y.type} for a condition that is computed at run time, need one type"
        )
    check_whole((x, y))
    result: Value = b.select(condition, x, y)
    return result
