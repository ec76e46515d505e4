"""Recognises layer normalisation written out."""

from hexane.graph import Graph, Node, Value
from hexane.match import made_by, scalar, use_counts
from hexane.ops import OPS, apply
from hexane.targets import Target


def fuse_layer_norm(graph: Graph, target: Target) -> Graph:
    """(x - mean(x)) / sqrt(mean((x - mean(x))^2) + epsilon) * %gamma + %beta  ->  layer_norm(x, %gamma, %beta)

    Over the last axes, in the usual spellings of the square and of the division. %gamma and %beta join if they have one
    element for each that is normalised and nothing else reads what they are applied to.
    """
    counts = use_counts(graph)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        found = over_root(node, inputs)
        x = None if found is None else _centred(found[0], found[1])
        if found is not None and x is not None and x.type == node.types[0]:
            axes = found[1].attrs["axes"]
            return apply(OPS["layer_norm"], [x], {"axes": axes, "epsilon": found[2]}, node.sources)
        return absorb(node, inputs, "layer_norm", "mul", 1, counts) or absorb(
            node, inputs, "layer_norm", "add", 2, counts
        )

    return graph.rewrite(change)


def _centred(value: Value, variance: Node) -> Value | None:
    """x, where the value is x - mean(x) and the variance the mean of its square."""
    node = made_by(value, "sub")
    mean = None if node is None else made_by(node.inputs[1], "reduce_mean")
    if node is None or mean is None or mean.attrs != variance.attrs or mean.inputs[0] != node.inputs[0]:
        return None
    return node.inputs[0] if squared(variance.inputs[0]) == value else None


def squared(value: Value | None) -> Value | None:
    """x, where the value is its square."""
    node = made_by(value, "square", "mul", "pow")
    if node is None or node.attrs.get("epilogue"):
        return None
    if node.op == "mul" and node.inputs[0] != node.inputs[1]:
        return None
    if node.op == "pow" and scalar(node.inputs[1]) != 2:
        return None
    x = node.inputs[0]
    return x if x is not None and x.type == node.types[0] else None


def over_root(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, Node, float] | None:
    """(a, m, epsilon), where the node is a / sqrt(m + epsilon) and m a mean over the last axes that keeps them."""
    if node.op not in ("real_div", "mul") or node.attrs["epilogue"]:
        return None
    for a, b in (inputs[:2], inputs[1::-1]) if node.op == "mul" else (inputs[:2],):
        inner = _root(b) if node.op == "real_div" else _inverse_root(b)
        mean, epsilon = _with_epsilon(inner)
        if a is None or mean is None or not mean.attrs["keep_dims"]:
            continue
        axes, rank = mean.attrs["axes"], mean.types[0].rank
        if axes == tuple(range(rank - len(axes), rank)):
            return a, mean, epsilon
    return None


def _root(value: Value | None) -> Value | None:
    node = made_by(value, "sqrt", "pow")
    return None if node is None or (node.op == "pow" and scalar(node.inputs[1]) != 0.5) else node.inputs[0]


def _inverse_root(value: Value | None) -> Value | None:
    node = made_by(value, "rsqrt", "inverse", "real_div", "pow")
    if node is None:
        return None
    if node.op == "inverse":
        return _root(node.inputs[0])
    if node.op == "real_div":
        return _root(node.inputs[1]) if scalar(node.inputs[0]) == 1 and not node.attrs["epilogue"] else None
    return None if node.op == "pow" and scalar(node.inputs[1]) != -0.5 else node.inputs[0]


def _with_epsilon(value: Value | None) -> tuple[Node | None, float]:
    total = made_by(value, "add")
    if total is None:
        return made_by(value, "reduce_mean"), 0.0
    for a, b in (total.inputs[:2], total.inputs[1::-1]):
        epsilon = scalar(b)
        if epsilon is not None and 0 <= epsilon < 1 and a is not None and a.type == total.types[0]:
            return made_by(a, "reduce_mean"), epsilon
    return None, 0.0


def absorb(
    node: Node, inputs: tuple[Value | None, ...], norm: str, op: str, place: int, counts: dict[Value, int]
) -> tuple[Value, ...] | None:
    """The norm with the other operand of this node as its scale or shift."""
    if node.op != op or node.attrs["epilogue"]:
        return None
    for i, value in enumerate(inputs):
        maker, other = made_by(value, norm), inputs[1 - i]
        if maker is None or other is None or counts[node.inputs[i]] != 1 or maker.types != node.types:  # type: ignore[index]
            continue
        need = tuple(maker.types[0].shape[a] for a in maker.attrs["axes"])
        rank = maker.types[0].rank
        if (
            any(maker.inputs[place:])
            or (1,) * (rank - other.type.rank) + other.shape != (1,) * (rank - len(need)) + need
        ):
            continue
        flat = other if other.shape == need else apply(OPS["reshape"], [other], {"shape": need}, other.node.sources)[0]
        sources = (*maker.sources, *(s for s in node.sources if s not in maker.sources))
        operands = [flat if k == place else v for k, v in enumerate(maker.inputs)]
        return apply(OPS[norm], operands, maker.attrs, sources)
    return None
