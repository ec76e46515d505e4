"""`hx.checkpoint`, the function for users."""

from collections.abc import Callable, Mapping
from typing import Any

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Value
from hexane.graph.origins import call_site
from hexane.ops import OPS
from hexane.ops.valid_lengths import apply


def checkpoint(f: Callable[..., Any], *xs: Tensor) -> Any:
    """f(*xs), recomputed in the backward pass: `hx.grad` keeps only the xs and the results. A checkpoint makes the
    arena smaller and a step slower.

    f returns a tensor, or several in a list, tuple or mapping; the result has the same form. f may read other tensors,
    such as params; they are kept, as are values computed from them alone. Checkpoints may be nested. Results have the
    same bits as without a checkpoint, and random ops draw the same numbers again. Updates of states run once.

    Programs of chips ignore checkpoints and compute everything once. Raises Error for an x or a result that is no
    tensor.
    """
    for i, x in enumerate(xs):
        if not isinstance(x, Tensor):
            raise _error(f"argument {i} of f: got {type(x).__name__}, need a tensor; f itself may read other values")
    if not xs:
        raise _error("got no tensors for f, need those from which it computes")
    where = call_site()
    starts = [apply(OPS["identity"], [x.value], {}, where)[0] for x in xs]
    result = f(*map(Tensor, starts))
    if isinstance(result, Tensor):
        return _result(result, "", starts, where)
    if isinstance(result, Mapping):
        return {name: _result(one, f" {name!r}", starts, where) for name, one in result.items()}
    if isinstance(result, (list, tuple)):
        return type(result)([_result(one, f" {i}", starts, where) for i, one in enumerate(result)])
    raise _error(f"result of f: got {type(result).__name__}, need a tensor, or several in a list, tuple or mapping")


def _result(result: object, name: str, starts: list[Value], where: tuple[str, ...]) -> Tensor:
    if not isinstance(result, Tensor):
        raise _error(f"result{name} of f: got {type(result).__name__}, need a tensor")
    return Tensor(apply(OPS["checkpointed"], [result.value, *starts], {}, where)[0])


def _error(message: str) -> Error:
    return Error(f"[{' at '.join(('checkpoint', *call_site()[:1]))}] {message}")
