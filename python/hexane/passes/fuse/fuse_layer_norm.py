"""Recognises layer normalisation written as separate ops."""

from hexane.graph import Graph, Value
from hexane.ops.match import Found, Pattern, number, op, rewrite
from hexane.ops.predicates import scalar
from hexane.targets import Target


def fuse_layer_norm(graph: Graph, target: Target) -> Graph:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * %gamma + %beta  ->  layer_norm(x, %gamma, %beta)

    The mean is over the last axes. The usual spellings of the square and of the division are recognised. %gamma and
    %beta are absorbed if they have one element per normalised element and if the value that they are applied to has no
    other reader.
    """
    if graph.ops.isdisjoint(("reduce_mean", "layer_norm")):
        return graph
    return rewrite(graph, _NORM, lambda m: normalised(m, "layer_norm"))


def squared(x: Pattern | str) -> Pattern:
    return op("square", x) | op("mul", x, x) | op("pow", x, 2.0)


def over_root(x: Pattern | str, square: Pattern) -> Pattern:
    """Returns the pattern of x / sqrt(mean(square) + epsilon)."""
    mean = op("reduce_mean", square, name="mean")
    inner = mean | op("add", mean, number(lambda v: 0 <= v < 1, "epsilon"))
    root = op("sqrt", inner) | op("pow", inner, 0.5)
    inverse = op("rsqrt", inner) | op("inverse", root) | op("real_div", 1.0, root) | op("pow", inner, -0.5)
    return op("real_div", x, root) | op("mul", x, inverse)


def applied(by: str) -> Pattern:
    """Returns the pattern of a scale (`mul`) or shift (`add`) of a value that may already be a norm."""
    return op(by, Pattern(name="norm", alone=True), "other")


CENTRED = op("sub", "x", op("reduce_mean", "x", name="own mean"), name="centred")
_NORM = over_root(CENTRED, squared("centred")) | applied("mul") | applied("add")


def normalised(m: Found, norm: str) -> tuple[Value, ...] | None:
    """Returns the norm of x if the means are over its last axes and keep them, or a norm with its scale or shift
    absorbed. Returns None otherwise."""
    if "norm" in m.bound:
        return _absorbed(m, norm, 1 if m.node.op == "mul" else 2)
    means = {name: m.bound[name].node.attrs for name in ("mean", "own mean") if name in m.bound}
    attrs, rank = means["mean"], m["x"].type.rank
    axes = attrs["axes"]
    if axes != tuple(range(rank - len(axes), rank)) or not all(a == attrs and a["keep_dims"] for a in means.values()):
        return None
    return m.make(norm, [m["x"]], axes=axes, epsilon=scalar(m.bound.get("epsilon")) or 0.0)


def _padded(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
    return (1,) * (rank - len(shape)) + shape


def _absorbed(m: Found, norm: str, place: int) -> tuple[Value, ...] | None:
    """Rewrites norm(x) * %other as norm(x, %other), with %other as the norm's input number `place`."""
    maker, other = m["norm"].node, m["other"]
    if maker.op != norm or any(maker.inputs[place:]):
        return None
    shape, rank = tuple(maker.types[0].shape[a] for a in maker.attrs["axes"]), maker.types[0].rank
    if _padded(other.shape, rank) != _padded(shape, rank):
        return None
    return m.absorb(maker, place, other, shape)
