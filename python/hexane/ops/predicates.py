"""Predicates on values and nodes: numbers of constants, axes, channels, products."""

from collections.abc import Mapping

from hexane.graph import Node, Value
from hexane.ops import OPS

MOST_READ = 1 << 16  # The elements of larger constants are not compared.


def scalar(value: Value | None) -> float | None:
    """Returns the number of a constant of one element, else None."""
    if value is None or value.node.op != "const" or value.type.size != 1 or value.dtype.kind == "bool":
        return None
    assert value.node.data is not None
    return float(value.node.data.reshape(())[()])


def uniform(value: Value | None) -> float | None:
    """Returns the number of a constant whose elements are all equal, else None."""
    if (known := scalar(value)) is not None or value is None:
        return known
    data = value.node.data if value.node.op == "const" and value.dtype.kind == "float" else None
    if data is None or not 0 < data.size <= MOST_READ or not (data == data.reshape(-1)[0]).all():
        return None
    return float(data.reshape(-1)[0])


def axes_of(node_axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Returns the axes of a reduction in order, counted from the first axis; no axes stand for all."""
    return tuple(sorted(a % rank for a in node_axes)) or tuple(range(rank))


def only_along(value: Value, axis: int, shape: tuple[int, ...]) -> bool:
    """True if the value, broadcast to this shape, varies only along the axis and has its full extent."""
    if value.type.rank > len(shape):
        return False
    padded = (1,) * (len(shape) - value.type.rank) + value.shape
    return all(d == (shape[i] if i == axis else 1) for i, d in enumerate(padded))


def is_product(value: Value, _: Mapping[str, Value]) -> bool:
    """True if the value's op sums up products."""
    return value.node.op in OPS and OPS[value.node.op].product is not None


def has_winograd_s_shape(node: Node) -> bool:
    """True for a convolution that some chips compute by Winograd's F(2, 3): 3x3, without dilation, stride 1."""
    weight = node.inputs[1] if node.op.rpartition(".")[2] == "conv" else None
    return (
        weight is not None and weight.shape[2:] == (3, 3) and {*node.attrs["strides"], *node.attrs["dilations"]} == {1}
    )


def channel_axis(product: Node) -> int:
    """Returns the axis of a product's output channels or columns."""
    return 1 if product.attrs.get("layout") == "nchw" else product.types[0].rank - 1
