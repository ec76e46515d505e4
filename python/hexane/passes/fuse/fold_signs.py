"""Moves the negations of a concatenation's operands into a factor of its result."""

import numpy as np

from hexane.graph import Array, Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.ops.predicates import scalar
from hexane.targets import Target


def fold_signs(graph: Graph, target: Target) -> Graph:
    """mul(concat(neg(%x), %y), const)  ->  mul(concat(%x, %y), const with its first part negative)

    Rotary embeddings are usually written with such a negation. A computed factor is multiplied by the signs once for
    all its readers. The negation and the concatenation must have no other reader. No result changes: signs are exact.
    """
    if not {"concat", "mul"} <= graph.ops:
        return graph
    counts = graph.use_counts()
    signed: dict[tuple[Value, bytes], Value] = {}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        for place in (0, 1):
            old, joined, factor = node.inputs[place], inputs[place], inputs[1 - place]
            concat = made_by(old, "concat")
            if old is None or joined is None or factor is None or concat is None or counts[old] != 1:
                continue
            if old.type != node.types[0] or made_by(joined, "concat") is None:
                continue
            parts = [
                None if v is None or counts[v] != 1 else _negated(made_by(now, "neg", "mul"))
                for v, now in zip(concat.inputs, joined.node.inputs, strict=True)
            ]
            axis = concat.attrs["axis"] - old.type.rank
            if not any(parts) or -axis > factor.type.rank or factor.shape[axis] != old.shape[axis]:
                continue
            signs = _signs(concat, [part is not None for part in parts])
            key = (factor, signs.tobytes())
            if key not in signed:
                signed[key] = _signed(factor, signs.reshape(-1, *(1,) * (-axis - 1)), node)
            plain = [part or v for part, v in zip(parts, joined.node.inputs, strict=True)]
            whole = apply(OPS["concat"], plain, concat.attrs, concat.sources)[0]
            return apply(OPS["mul"], [whole, signed[key]], {}, node.sources)
        return None

    return graph.rewrite(change, ("mul",))


def _negated(node: Node | None) -> Value | None:
    """Returns x if the node computes -x, else None."""
    if node is None or node.op == "neg":
        return None if node is None else node.inputs[0]
    for x, factor in (node.inputs, node.inputs[::-1]):
        if scalar(factor) == -1 and x is not None and x.type == node.types[0]:
            return x
    return None


def _signs(concat: Node, negative: list[bool]) -> Array:
    extents = [v.shape[concat.attrs["axis"]] for v in concat.inputs if v is not None]
    return np.repeat(np.where(negative, -1, 1), extents)


def _signed(factor: Value, signs: Array, node: Node) -> Value:
    if factor.node.op == "const" and factor.node.data is not None:
        data = factor.node.data
        return constant((data * signs.astype(data.dtype)).astype(data.dtype), factor.node.sources, factor.dtype)
    lifted = constant(signs.astype(factor.dtype.numpy), node.sources, factor.dtype)
    return apply(OPS["mul"], [factor, lifted], {}, node.sources)[0]
