"""Imports one branch of an If with a constant condition. If the condition is computed, writes an op that computes only
the chosen branch, or for branches of a few elementwise ops a select of both results."""

from collections.abc import Sequence

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.handlers.bodies import run_branches
from hexane.importers.onnx.handlers.dynamic import check_whole
from hexane.importers.onnx.node import NOTHING, Builder, Item, OnnxNode, Outputs, TensorList, described
from hexane.importers.onnx.registry import onnx_op


@onnx_op("If", shape_inputs=(0,), valid_lengths=True)
def branch(b: Builder, n: OnnxNode) -> Outputs:
    condition, branches = n.value(0), (n.attrs["then_branch"], n.attrs["else_branch"])
    if condition.type.size != 1:
        raise Error(f"got a condition of {condition.type.size} elements, need 1")
    if condition.node.op == "const":
        return n.run(branches[0 if n.scalar(0) else 1])
    try:
        outputs = run_branches(b, n, condition, branches)
        if outputs is not None:
            return outputs
    except Error:
        pass  # computing both branches may still work; if not, it raises an error
    then, otherwise = map(n.run, branches)
    return None if then is None or otherwise is None else choose(b, condition, then, otherwise)


def choose(b: Builder, condition: Value, then: Sequence[Item], otherwise: Sequence[Item]) -> list[Item]:
    """Returns the selected results. Raises Error if the branches' dtypes or shapes differ."""
    if len(then) != len(otherwise):
        raise Error(f"got branches of {len(then)} and {len(otherwise)} outputs, need as many")
    condition = b.reshape(condition, shape=())
    return [_one(b, condition, x, y) for x, y in zip(then, otherwise, strict=True)]


def _one(b: Builder, condition: Value, x: Item, y: Item) -> Item:
    if x is y:
        return x
    if isinstance(x, Value) and isinstance(y, Value):
        return _selected(b, condition, x, y)
    if isinstance(x, TensorList) and isinstance(y, TensorList) and _alike(x, y):
        return TensorList(_selected(b, condition, one, other) for one, other in zip(x, y, strict=True))
    raise Error(
        f"got a condition that is computed at run time with {described(x)} and {described(y)}, need tensors or "
        "sequences of one length from both branches"
    )


def _alike(x: TensorList, y: TensorList) -> bool:
    return len(x) == len(y) and x is not NOTHING and y is not NOTHING


def _selected(b: Builder, condition: Value, x: Value, y: Value) -> Value:
    if x.type != y.type:
        raise Error(
            f"got branches of {x.type} and {y.type} for a condition that is computed at run time, need one type"
        )
    check_whole((x, y))
    result: Value = b.select(condition, x, y)
    return result
