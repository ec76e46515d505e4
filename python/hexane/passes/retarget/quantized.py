"""Forms of quantised ops on the engine: float ops between a dequantize and a quantize."""

import numpy as np

from hexane.dtypes import FP32
from hexane.graph import Node, Value
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.validate.small_constants import loses_digits

LEAST_POWER = -14  # the exponent of the smallest normal number of fp16.
MOST_POWERS = 9  # The most factors of 2^-14 for a scale: their product reaches the smallest normal number of fp32.
STEPS = "products are summed as real numbers, not as integers: a result may differ by one step of its scale"


def product(b: Writer, node: Node) -> Rewritten | None:
    """quantized_matmul(%x, %y, %scale) {output_scale=s}  ->  quantize(matmul(dequantize(%x, 1), dequantize(%y, %scale)), s)

    Requires that scales and zero points of the weight have the same shape. Products with integer results have no form.
    """  # noqa: E501
    x, weight, scale, bias, x_zero, weight_zero = node.inputs
    if x is None or weight is None or scale is None:
        return None
    if weight_zero is not None and weight_zero.shape != scale.shape:
        return None
    conv = node.op == "quantized_conv"
    axis = 0 if conv else weight.type.rank - (2 if node.attrs["transpose_y"] else 1)
    if bias is not None and bias.dtype is not FP32:
        bias = b.dequantize(bias, scale, None)
    one = b.const(np.array(1, np.float32))
    operands = b.dequantize(x, one, x_zero), b.dequantize(weight, scale, weight_zero, axis=axis), bias
    names = ("strides", "dilations", "pad", "groups", "layout") if conv else ("transpose_y",)
    op = b.conv if conv else b.matmul
    y = op(*operands, **{name: node.attrs[name] for name in names})
    return Rewritten((_stored(b, y, node),), "written as dequantize, the product and quantize", STEPS)


def addition(b: Writer, node: Node) -> Rewritten | None:
    """quantized_add(%x, %y)  ->  quantize(dequantize(%x) + dequantize(%y))"""
    a, terms = node.attrs, []
    for v, side in zip(node.inputs, "xy", strict=True):
        assert v is not None
        scale, zero = (
            np.array(a[f"{side}_{what}"], kind) for what, kind in (("scale", np.float32), ("zero", v.dtype.numpy))
        )
        terms.append(b.dequantize(v, b.const(scale), b.const(zero)))
    return Rewritten((_stored(b, b.add(*terms), node),), "written as dequantize, add, quantize")


def mean(b: Writer, node: Node) -> Rewritten | None:
    """quantized_mean(%x)  ->  quantize(reduce_mean(dequantize(%x)))"""
    x, a = node.inputs[0], node.attrs
    assert x is not None
    scale, zero = (np.array(a[f"x_{what}"], kind) for what, kind in (("scale", np.float32), ("zero", x.dtype.numpy)))
    real = b.dequantize(x, b.const(scale), b.const(zero))
    y = b.reduce_mean(real, axes=a["axes"], keep_dims=a["keep_dims"])
    why = "the mean is computed of real numbers, not of integers: a result may differ by one step of its scale"
    return Rewritten((_stored(b, y, node),), "written as dequantize, reduce_mean and quantize", why)


def _stored(b: Writer, y: Value, node: Node) -> Value:
    dtype = node.types[0].dtype
    if dtype is FP32:
        return y
    scale, zero = np.array(node.attrs["output_scale"], np.float32), np.array(node.attrs["output_zero"], dtype.numpy)
    return b.quantize(y, b.const(scale), b.const(zero), dtype=dtype)


def with_scale_kept(b: Writer, node: Node) -> Rewritten | None:
    """dequantize(%x, 2e-05)  ->  dequantize(%x, 0.33) * 2^-14; quantize(%x, 2e-05)  ->  quantize(%x * 2^14, 0.33)

    A scale that loses digits in fp16 is multiplied by a power of two, and the result is divided by it. The largest
    scale becomes a number below 1/2, so that no 16-bit integer overflows fp16 on the way. If the power is too small for
    fp16, it is split into several factors.
    """
    x, scale, zero = node.inputs
    if not loses_digits(node) or x is None or scale is None or scale.node.op != "const" or scale.node.data is None:
        return None
    lost = scale.node.data.astype(np.float64)
    exponent = max(int(np.frexp(np.abs(lost).max())[1]) + 1, MOST_POWERS * LEAST_POWER)
    kept = b.const((lost * 2.0**-exponent).astype(scale.dtype.numpy))
    powers = [exponent]
    while powers[-1] < LEAST_POWER:
        powers[-1:] = [LEAST_POWER, powers[-1] - LEAST_POWER]
    dequantizes = node.op == "dequantize"
    y = b.again(node, (x, kept, zero))[0] if dequantizes else x
    for power in filter(None, powers):
        y = b.mul(y, 2.0 ** (power if dequantizes else -power))
    how = "written with a scale that fp16 holds"
    return Rewritten((y,) if dequantizes else b.again(node, (y, kept, zero)), how)


FORMS: dict[str, tuple[Form, ...]] = {
    "quantized_matmul": (product,),
    "quantized_conv": (product,),
    "quantized_add": (addition,),
    "quantized_mean": (mean,),
    "quantize": (with_scale_kept,),
    "dequantize": (with_scale_kept,),
}
