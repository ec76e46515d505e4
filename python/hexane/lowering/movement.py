"""Views, slices, concatenations and transposes as layers of the engine."""

from typing import Any

from hexane.graph import Node


def reshaped(b: Any, node: Node, x: Any) -> Any:
    shape = node.types[0].shape
    return x if x.shape == shape else b.layer("reshape", x, shape=shape)


def sliced(b: Any, node: Node, x: Any) -> Any:
    """Lowers a slice to one view per sliced axis, after a reversal of the axes with a negative stride."""
    a, shape = node.attrs, node.types[0].shape
    if backwards := tuple(i for i, s in enumerate(a["stride"]) if s < 0 and shape[i] > 1):
        x = b.layer("reverse", x, axes=backwards)
    for axis, (begin, step, size) in enumerate(zip(a["begin"], a["stride"], shape, strict=True)):
        offset = x.shape[axis] - 1 - begin if axis in backwards else begin
        if size != x.shape[axis]:
            x = b.layer("input_view", x, axis=axis, offset=offset, size=size, step=abs(step) if size > 1 else 1)
    return x


def concatenated(b: Any, node: Node, *values: Any) -> Any:
    axis = node.attrs["axis"]
    return values[0] if len(values) == 1 else b.layer("concat", *values, axis=axis)


def transposed(b: Any, node: Node, x: Any) -> Any:
    perm = node.attrs["perm"]
    return x if perm == tuple(range(len(perm))) else b.layer("transpose", x, perm=perm)
