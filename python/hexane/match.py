"""Small questions that passes ask of values: who made it, is it that constant, who else reads it."""

from collections import Counter

import numpy as np

from hexane.graph import Graph, Node, Value


def made_by(value: Value | None, *ops: str) -> Node | None:
    """The node that makes the value, if its op is one of these."""
    return value.node if value is not None and value.node.op in ops else None


def joined_sources(first: Node, second: Node) -> tuple[str, ...]:
    """Where one node comes from that does what two did."""
    return (*first.sources, *(s for s in second.sources if s not in first.sources))


def scalar(value: Value | None) -> float | None:
    """The one number a constant holds, if it holds one."""
    if value is None or value.node.op != "const" or value.type.size != 1 or value.dtype.kind == "bool":
        return None
    assert value.node.data is not None
    return float(value.node.data.reshape(())[()])


def operands_with_scalar(node: Node, number: float, rtol: float = 0.0) -> Value | None:
    """The other operand of a commutative node, if one operand is this constant and does not widen the result."""
    for a, b in (node.inputs[:2], node.inputs[1::-1]):
        found = scalar(b)
        if found is not None and np.isclose(found, number, rtol=rtol, atol=0) and a is not None:
            return a if a.shape == node.types[0].shape else None
    return None


def only_along(value: Value, axis: int, shape: tuple[int, ...]) -> bool:
    """Whether the value's only extent is all of that axis of the shape it broadcasts to."""
    if value.type.rank > len(shape):
        return False
    padded = (1,) * (len(shape) - value.type.rank) + value.shape
    return all(d == (shape[i] if i == axis else 1) for i, d in enumerate(padded))


def channel_axis(product: Node) -> int:
    """The axis of a product's output channels, or columns."""
    return 1 if product.attrs.get("layout") == "nchw" else product.types[0].rank - 1


def use_counts(graph: Graph) -> Counter[Value]:
    """How often each value is read, outputs and updates included."""
    counts = Counter(v for node in graph.nodes for v in node.inputs if v is not None)
    counts.update(graph.roots)
    return counts
