"""Forms of resize for chips without a texture engine. The texture engine would resize in one layer.

A resize by whole factors becomes a depthwise transposed convolution. A bilinear resize by other factors becomes
products with constant matrices for rows and columns, and a nearest-neighbour resize becomes gathers.
"""

from fractions import Fraction
from itertools import zip_longest
from typing import NamedTuple

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.ops.lines import nearest, whole
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.validate.convolution import largest_kernel

STRATEGY = "without a texture engine a chip resizes by other steps, and rounds differently from chips that have one"
SPREAD = STRATEGY + "; an infinite element makes nearly all outputs of its channel NaN"


class Line(NamedTuple):
    """Output i of an axis reads the source at (i * scale + offset) / unit."""

    extent: int
    size: int
    scale: float
    offset: float
    unit: float

    @property
    def factor(self) -> int:
        """The number of outputs per element if it is a whole number, else 0."""
        factor = self.size // self.extent
        exact = Fraction(self.scale) * factor == Fraction(self.unit) if self.unit else False
        return factor if factor >= 1 and self.size == factor * self.extent and exact else 0

    @property
    def start(self) -> Fraction:
        """The position in the source that output 0 reads."""
        return Fraction(self.offset) / Fraction(self.unit)


def _lines(node: Node) -> tuple[Line, Line]:
    a, x = node.attrs, node.inputs[0]
    assert x is not None
    height, width = (
        Line(extent, a[size], a[f"scale_{letter}"], a[f"offset_{letter}"], a[f"unit_{letter}"])
        for letter, size, extent in (("h", "height", x.shape[2]), ("w", "width", x.shape[3]))
    )
    return height, width


def nearest_by_deconvolution(b: Writer, node: Node) -> Rewritten | None:
    """resize_nearest_neighbor(%x) by 2  ->  depthwise conv_transpose(%x, ones of 2 x 2) {strides=2}

    Factors beyond the largest kernel are split into several steps.
    """
    (x,) = node.inputs
    assert x is not None
    if node.attrs["layout"] != "nchw" or x.dtype.kind != "float":
        return None
    factors = []
    for line in _lines(node):
        read = nearest(whole(*line[2:]), line.size, line.extent, node.attrs["mode"])
        factor = line.size // line.extent
        if factor < 1 or line.size != factor * line.extent or (read != np.arange(line.size) // factor).any():
            return None
        factors.append(factor)
    _, *most = largest_kernel(b.chip, fp16=True, small=True)
    steps = [_steps(factor, n) for factor, n in zip(factors, most, strict=True)]
    y: Value = x
    for kernel in zip_longest(*steps, fillvalue=1):
        weight = b.const(np.ones((x.shape[1], 1, *kernel), x.dtype.numpy))
        y = b.conv_transpose(y, weight, None, strides=kernel, groups=x.shape[1])
    return Rewritten((y,), "written as a transposed convolution of ones")


def _steps(factor: int, most: int) -> list[int]:
    """Returns factors of at most `most` whose product is `factor`, smallest first, or [factor] if there are none.

    Resizing by each factor in turn copies the same elements. With the smallest first, intermediate images are small.
    """
    if factor <= most:
        return [factor]
    largest = next((n for n in range(most, 1, -1) if factor % n == 0), factor)
    rest = _steps(factor // largest, most) if largest < factor else []
    return [*rest, largest] if all(n <= most for n in rest) else [factor]


def nearest_by_gather(b: Writer, node: Node) -> Rewritten | None:
    """resize_nearest_neighbor(%x)  ->  gather(gather(%x, rows), columns)"""
    (x,) = node.inputs
    if node.attrs["layout"] != "nchw":
        return None
    for axis, line in zip((2, 3), _lines(node), strict=True):
        read = nearest(whole(*line[2:]), line.size, line.extent, node.attrs["mode"])
        if not np.array_equal(read, np.arange(line.extent)):
            x = b.gather(x, b.const(read), axis=axis)
    assert x is not None
    return Rewritten((x,), "written as gather of rows and columns")


def linear_by_deconvolution(b: Writer, node: Node) -> Rewritten | None:
    """resize_bilinear(%x) by 2  ->  mul(depthwise conv_transpose(%x, triangles) {strides=2}, gains at the border)

    Requires that the chip supports the kernel, which spans two elements in each direction.
    """
    (x,) = node.inputs
    assert x is not None
    lines = _lines(node)
    if node.attrs["layout"] != "nchw" or not all(line.factor and -1 < line.start <= 0 for line in lines):
        return None
    if any(line.factor == 1 and line.start for line in lines):
        return None
    kernels, pads, gains = [], [], []
    for line in lines:
        kernel, first = (np.ones(1), 0) if line.factor == 1 else _triangle(line)
        # `full` sums the weights of all outputs of the transposed convolution. Element -first of `full` is output 0.
        full = np.zeros((line.extent - 1) * line.factor + len(kernel))
        for i in range(line.extent):
            full[i * line.factor :][: len(kernel)] += kernel
        kernels.append(kernel)
        pads.append((-first, len(full) - line.size + first))
        # At a border, some weights of an output fall on elements outside the image. The gain makes the sum of the other
        # weights 1.
        gains.append(1 / full[-first : line.size - first].round(12))
    weight = np.broadcast_to(np.outer(*kernels), (x.shape[1], 1, len(kernels[0]), len(kernels[1])))
    factors = [line.factor for line in lines]
    _, *most = largest_kernel(b.chip, fp16=True, small=True)
    if any(len(kernel) > n for kernel, n in zip(kernels, most, strict=True)):
        return None  # two matrix products are fewer layers than a split kernel
    y: Value = b.conv_transpose(
        x,
        b.const(np.ascontiguousarray(weight, x.dtype.numpy)),
        None,
        strides=factors,
        pad=(*pads[0], *pads[1]),
        groups=x.shape[1],
    )
    border = np.outer(*gains)
    if (border != 1).any():
        y = b.mul(y, b.const(border.astype(x.dtype.numpy)))
    return Rewritten((y,), "written as a transposed convolution with triangles", STRATEGY)


def _triangle(line: Line) -> tuple[Array, int]:
    """Returns the weights of one element in the outputs near it, and the first of these outputs relative to the
    element's own first output.

    Output i reads the source at i / factor + start, so element 0 contributes to outputs between (-1 - start) * factor
    and (1 - start) * factor.
    """
    low, high = (-1 - line.start) * line.factor, (1 - line.start) * line.factor
    first = low.__floor__() + 1
    outputs = range(first, high.__ceil__())
    return np.array([float(1 - abs(Fraction(i, line.factor) + line.start)) for i in outputs]), first


def linear_by_products(b: Writer, node: Node) -> Rewritten | None:
    """resize_bilinear(%x)  ->  matmul(rows, matmul(%x, columns)) with constant matrices of weights"""
    (x,) = node.inputs
    assert x is not None
    if node.attrs["layout"] != "nchw":
        return None
    height, width = (_weights(line).astype(x.dtype.numpy) for line in _lines(node))
    y: Value = b.matmul(x, b.const(np.ascontiguousarray(width.T)), None)
    return Rewritten((b.matmul(b.const(height), y, None),), "written as products with constant matrices", SPREAD)


def _weights(line: Line) -> Array:
    """Returns a matrix (output, source) with the weight of each source element in each output."""
    at = np.clip((np.arange(line.size) * line.scale + line.offset) / line.unit, 0, line.extent - 1)
    low = np.floor(at).astype(int)
    result = np.zeros((line.size, line.extent))
    rows = np.arange(line.size)
    np.add.at(result, (rows, low), 1 - (at - low))
    np.add.at(result, (rows, np.minimum(low + 1, line.extent - 1)), at - low)
    return result


FORMS: dict[str, tuple[Form, ...]] = {
    "resize_nearest_neighbor": (nearest_by_deconvolution, nearest_by_gather),
    "resize_bilinear": (linear_by_deconvolution, linear_by_products),
}
