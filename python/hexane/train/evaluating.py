"""A network's computation after training, from the description that it is trained by."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, Value
from hexane.ops import OPS
from hexane.ops.valid_lengths import apply, kept_lengths

Tensors = Tensor | Sequence[Tensor] | Mapping[str, Tensor]


@overload
def evaluating(tensors: Tensor) -> Tensor: ...


@overload
def evaluating(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]: ...


@overload
def evaluating(tensors: Sequence[Tensor]) -> list[Tensor]: ...


def evaluating(tensors: Tensors) -> "Tensor | list[Tensor] | dict[str, Tensor]":
    """The tensors as they are outside training: batch norms normalise by their running statistics, and nothing is
    dropped out.

    y = hx.train.batch_norm(x, mean, variance, ..)   ->   y = hx.batch_norm(x, mean, variance, ..)
    y = hx.dropout(x, stream)                        ->   y = x

    Inputs, params and states are the same as before, so that one graph may have both. tensors: one, several, or several
    by name, which the result is then, too. A tensor without such ops is given back.

    Raises Error for anything else than tensors.
    """
    if isinstance(tensors, Tensor):
        return _evaluating([tensors])[0]
    if isinstance(tensors, Mapping):
        return dict(zip(tensors, _evaluating(list(tensors.values())), strict=True))
    if isinstance(tensors, (list, tuple)):
        return _evaluating(tensors)
    raise Error(f"[train.evaluating] got {type(tensors).__name__}, need a tensor, several, or several by name")


def _evaluating(tensors: Sequence[Any]) -> list[Tensor]:
    for one in tensors:
        if not isinstance(one, Tensor):
            raise Error(f"[train.evaluating] got {type(one).__name__} among the tensors, need tensors")
    graph = Graph((), tuple(Port(str(i), t.value) for i, t in enumerate(tensors))).rewrite(_evaluated)
    return [Tensor(port.value) for port in graph.outputs]


def _evaluated(node: Node, inputs: tuple[Value | None, ...]) -> Sequence[Value] | None:
    if node.op == "dropout":
        assert inputs[0] is not None
        return [inputs[0]]
    if node.op == "batch_norm_training":
        _, mean, variance, *_ = inputs
        assert mean is not None
        assert variance is not None
        attrs = {name: node.attrs[name] for name in ("epsilon", "axis")}
        return [apply(OPS["batch_norm"], inputs, attrs, node.sources)[0], mean, variance]
    return kept_lengths(node, inputs)
