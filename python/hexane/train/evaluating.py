"""Turns the graph of a training into the graph of inference."""

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
    """Returns the tensors for inference: batch norms use their running statistics, and dropouts are removed.

    y = hx.train.batch_norm(x, mean, variance, ..)   ->   y = hx.batch_norm(x, mean, variance, ..)
    y = hx.dropout(x, stream)                        ->   y = x

    Inputs, params and states stay the same objects, so one graph may have both versions. tensors: a tensor, a sequence,
    or a mapping by name; the result has the same form. A tensor without ops of training is returned unchanged.

    Raises Error for anything but tensors.
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
