"""Slices that begin inside a row. If several of them are concatenated, some chips give wrong elements."""

from hexane.graph import Node, Value

JOINS = ("concat", "stack")


def joins_width_slices(node: Node) -> bool:
    """True if a concatenation or stack reads two or more slices that begin inside a row."""
    return node.op in JOINS and sum(is_width_slice(v) for v in node.inputs if v is not None) > 1


def is_width_slice(value: Value) -> bool:
    """True if a value is a slice along the last axis that does not begin at 0."""
    node = value.node
    if node.op in ("slice_by_index", "slice_by_size"):
        begin = node.attrs["begin"]
        return bool(begin) and begin[-1] != 0
    if node.op == "split":
        return node.attrs["axis"] % value.type.rank == value.type.rank - 1 and value.output > 0
    return False
