"""Recognises the gradients of RMS norms as the ops that `hx.grad` makes of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hexane.dtypes import FP32
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import Bound, number, op
from hexane.ops.predicates import scalar
from hexane.ops.records.norm_gradient import RMS_NORM_GRADIENT
from hexane.targets import Target

_SQUARES = op("reduce_mean", op("square", "x"), name="squares")
_OVER = op("rsqrt", op("add", _SQUARES, number(lambda _: True, name="epsilon")))
_NORMAL = op("rms_norm", "x", name="normal") | op("mul", "x", _OVER, name="normal")
_SCALED = op("mul", "gradient", "gamma", name="scaled")
_SHARED = op("reduce_mean", op("mul", _SCALED, _NORMAL), name="shared")
_GRADIENT = op("mul", op("sub", "scaled", op("mul", "normal", _SHARED)), _OVER)


@dataclass(frozen=True, slots=True)
class _Norm:
    inputs: tuple[Value, Value, Value]  # x, the gradient and gamma
    epsilon: float


def fuse_norm_gradient(graph: Graph, target: Target) -> Graph:
    """r = rsqrt(mean(%x^2) + epsilon), n = %x * r, h = %g * %gamma, (h - n * mean(h * n)) * r, %g * n
    ->  rms_norm_gradient(%x, %g, %gamma)

    The norm is over the last axis, and all tensors are fp32. n may be an rms_norm. The second result of
    rms_norm_gradient replaces %g * n, whose sum is the gradient of gamma. The kernel may add along a row in another
    order.
    """
    if not {"rsqrt", "reduce_mean", "sub"} <= graph.ops:
        return graph
    users, place = graph.users(), {node: i for i, node in enumerate(graph.nodes)}
    gradients: dict[Node, tuple[_Norm, int]] = {}
    for node in graph.nodes:
        bound = _bound(node, graph) if node.op == "mul" and node not in gradients else None
        if bound is None:
            continue
        epsilon = scalar(bound["epsilon"])
        assert epsilon is not None
        norm = _Norm((bound["x"], bound["gradient"], bound["gamma"]), epsilon)
        last = max(place.get(v.node, -1) for v in norm.inputs)
        for i, gradient in enumerate((node, _share(bound, users))):
            if gradient is not None and place[gradient] > last:
                gradients[gradient] = norm, i
    if not gradients:
        return graph
    became: dict[Value, Value] = {}
    written: dict[int, tuple[Value, ...]] = {}

    def change(node: Node, _: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node not in gradients:
            return None
        norm, i = gradients[node]
        if id(norm) not in written:
            operands = [became.get(v, v) for v in norm.inputs]
            written[id(norm)] = apply(OPS[RMS_NORM_GRADIENT], operands, {"epsilon": norm.epsilon}, node.sources)
        return (written[id(norm)][i],)

    return graph.rewrite(change, became=became)


def _bound(node: Node, graph: Graph) -> Bound | None:
    """Returns the matched values if the node is the gradient of a norm, else None."""
    for bound in _GRADIENT.match(graph, node.values[0], {}):
        x, gradient, gamma = bound["x"], bound["gradient"], bound["gamma"]
        if not (x.dtype is gradient.dtype is gamma.dtype is FP32 and x.type == gradient.type and x.type.rank):
            continue
        last = (x.type.rank - 1,)
        means = (bound["shared"].node, bound["squares"].node)
        if any(mean.attrs["axes"] != last or not mean.attrs["keep_dims"] for mean in means):
            continue
        normal, epsilon = bound["normal"].node, scalar(bound["epsilon"])
        if normal.op == "rms_norm" and (normal.attrs["axes"] != last or normal.attrs["epsilon"] != epsilon):
            continue
        if gamma.shape != x.shape[-1:]:
            continue
        return bound
    return None


def _share(bound: Bound, users: Mapping[Value, Sequence[Node]]) -> Node | None:
    """Returns the node that multiplies the gradient by the normalised value, or None."""
    wanted = {bound["gradient"], bound["normal"]}
    return next((n for n in users[bound["normal"]] if n.op == "mul" and set(n.inputs) == wanted), None)
