"""Convolutions and products as layers of the engine."""

from typing import Any

from hexane.graph import Node
from hexane.lowering.weights import decoded, is_weight
from hexane.ops import OPS
from hexane.ops.slots import slot


def conv(b: Any, node: Node, x: Any, weight: Any, bias: Any, transposed: bool = False) -> Any:
    """Lowers a convolution. Images become channels first, with a height of 1 if they have one axis. A constant bias
    becomes the layer's offset."""
    a = node.attrs
    if a["layout"] == "nhwc":
        rank = len(x.shape)
        result = _conv_first(b, node, b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1))), weight, bias, transposed)
        return b.transpose(result, perm=(0, *range(2, rank), 1))
    return _conv_first(b, node, x, weight, bias, transposed)


def _conv_first(b: Any, node: Node, x: Any, weight: Any, bias: Any, transposed: bool) -> Any:
    a, flat = node.attrs, len(x.shape) == 3
    ones = (1,) * flat
    if flat or transposed:
        weight = decoded(weight)
    if flat:
        x = b.reshape(x, shape=(*x.shape[:2], 1, x.shape[2]))
        weight = b.reshape(weight, shape=(*weight.shape[:2], 1, weight.shape[2]))
    attrs = {"strides": ones + a["strides"], "dilation_rates": ones + a["dilations"], "groups": a["groups"]}
    attrs["explicit_padding"] = (0, 0) * flat + a["pad"]
    fixed = bias is not None and is_weight(bias)
    if transposed:
        attrs["output_padding"] = (0,) * flat + a["output_padding"]
        operands, name = [x, weight], "deconvolution"
    elif is_weight(weight):
        operands, name = [x, weight, None], "convolution"
    else:
        operands, name = [x, weight], "cross_correlation"
    if fixed:
        attrs["epilogue"] = (slot("gain_offset", gain=-1, offset=len(operands), axis=1),)
        operands.append(bias)
    y = b.layer(name, *operands, **attrs)
    if bias is not None and not fixed:
        y = b.layer("add", y, b.reshape(bias, shape=(-1, *[1] * (len(y.shape) - 2))))
    return b.reshape(y, shape=(*y.shape[:2], y.shape[3])) if flat else y


def matmul(b: Any, node: Node, x: Any, y: Any, bias: Any) -> Any:
    flags = {"transpose_lhs": node.attrs["transpose_x"], "transpose_rhs": node.attrs["transpose_y"]}
    product = b.layer("matmul", x, y, **flags)
    return product if bias is None else b.layer("add", product, bias)


def linear(b: Any, node: Node, x: Any, weight: Any, bias: Any) -> Any:
    if not is_weight(weight) or not 2 <= len(x.shape) <= 4:
        return OPS["linear"].expand(b, x, weight, bias)  # type: ignore[misc]
    product = b.layer("linear", x, weight)
    return product if bias is None else b.layer("add", product, bias)
