"""Attributes, shapes and arithmetic of the engine's convolutions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import TensorType
from hexane.ops.attributes import integer, integers, text
from hexane.ops.dtype_rules import floating
from hexane.ops.records.conv import convolve
from hexane.ops.records.engine.form import slotted
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op
from hexane.ops.taps import pairs
from hexane.ops.window_rules import convolved_shape, spread

Array = Any
BYTES = (DTYPES["int8"], DTYPES["uint8"])
CONVOLUTIONS = ("anec.convolution", "anec.deconvolution", "anec.linear", "anec.cross_correlation", "anec.matmul")
CONV = {
    "strides": integers((1, 1)), "dilation_rates": integers((1, 1)), "groups": integer(1),
    "explicit_padding": integers((0, 0, 0, 0)),
    "padding_style": text("explicit", ("explicit", "tf_valid", "tf_same")), "kernel_sizes": integers(()),
    "weights_layout": text("oihw", ("oihw",)),
}  # fmt: skip


def conv_attrs(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes with numbers for every axis, the kernel sizes of the weight, and explicit padding."""
    x, weight = types[:2]
    assert x is not None
    assert weight is not None
    if x.rank not in (4, 5) or weight.rank != x.rank:
        raise Error(f"got an input of rank {x.rank} and a filter of rank {weight.rank}, need 4 or 5 for both")
    num, sizes = x.rank - 2, weight.shape[2:]
    if attrs["kernel_sizes"] not in ((), sizes):
        raise Error(f"kernel_sizes: got {attrs['kernel_sizes']} for a weight of shape {weight.shape}, need {sizes}")
    result = {**attrs, "kernel_sizes": sizes}
    for name in ("strides", "dilation_rates"):
        result[name] = attrs[name] if len(attrs[name]) == num else spread(name, attrs[name][:1], num)
        if min(result[name]) < 1:
            raise Error(f"{name}: got {attrs[name]}, need positive integers")
    pads = attrs["explicit_padding"]
    if attrs["padding_style"] == "tf_same":
        pads = tuple(
            side
            for n, k, s, d in zip(x.shape[2:], sizes, result["strides"], result["dilation_rates"], strict=True)
            for total in (max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0),)
            for side in (total // 2, total - total // 2)
        )
    elif attrs["padding_style"] == "tf_valid" or not any(pads):
        pads = (0,) * 2 * num
    if len(pads) != 2 * num or min(pads) < 0:
        raise Error(f"explicit_padding: got {pads}, need {2 * num} integers that are not negative")
    return {**result, "explicit_padding": pads, "padding_style": "explicit"}


def weighted(x: DType, weight: DType, lut: DType | None = None, **_: Any) -> DType:
    """Returns the dtype. Weights have the input's dtype, or are bytes: integers with a later scale, or indices of a
    table."""
    floating(x)
    if lut is not None and lut is not x:
        raise Error(f"got a table of {lut}, need {x}")
    if weight is not x and weight not in BYTES:
        raise Error(f"got a weight of {weight}, need {x}, int8 or uint8")
    if lut is not None and weight is not DTYPES["uint8"]:
        raise Error(f"got indices of {weight}, need uint8")
    return x


def conv_shape(
    x: Shape,
    weight: Shape,
    lut: Shape | None,
    strides: Shape,
    dilation_rates: Shape,
    groups: int,
    explicit_padding: Shape,
    **_: Any,
) -> Shape:
    if lut is not None and len(lut) != 1:
        raise Error(f"got a table of shape {lut}, need one axis")
    return convolved_shape(x, weight, None, strides, dilation_rates, explicit_padding, groups, "nchw")


def weights_of_layer(b: Any, weight: Any, lut: Any) -> Any:
    return weight if lut is None else b.gather(lut, b.cast(weight, dtype=DTYPES["int64"]), axis=0)


def looked_up(weight: Array, lut: Array | None) -> Array:
    return weight.astype(np.float64) if lut is None else lut[weight]


def conv_core(b: Any, x: Any, weight: Any, lut: Any = None, **a: Any) -> Any:
    attrs = {
        "strides": a["strides"],
        "dilations": a["dilation_rates"],
        "pad": a["explicit_padding"],
        "groups": a["groups"],
    }
    return "conv", [x, weights_of_layer(b, weight, lut)], {**attrs, "layout": "nchw"}


def conv_ref(x: Array, weight: Array, lut: Array | None = None, **a: Any) -> Array:
    filters = looked_up(weight, lut)
    return convolve(x, filters, None, a["strides"], a["dilation_rates"], a["explicit_padding"], a["groups"], "nchw")


def deconvolution(conv_transpose: Op) -> Op:
    def core(b: Any, x: Any, weight: Any, **a: Any) -> Any:
        attrs = {
            "strides": a["strides"],
            "dilations": a["dilation_rates"],
            "pad": a["explicit_padding"],
            "groups": a["groups"],
        }
        return "conv_transpose", [x, weight], {**attrs, "output_padding": a["output_padding"], "layout": "nchw"}

    def shape(x: Shape, weight: Shape, **a: Any) -> Any:
        return conv_transpose.shape(x, weight, None, **deconv_attrs(a))

    def ref(x: Array, weight: Array, **a: Any) -> Any:
        """Computed by definition: every input element adds its products with the weights to the output."""
        wide, strides, rates = weight.astype(np.float64), a["strides"], a["dilation_rates"]
        groups, (n, c, h, w), pads = a["groups"], x.shape, pairs(a["explicit_padding"])
        out = shape(x.shape, weight.shape, **a)
        full = [
            (e - 1) * s + d * (k - 1) + 1 for e, s, d, k in zip((h, w), strides, rates, weight.shape[2:], strict=True)
        ]
        y = np.zeros(
            (n, groups, weight.shape[1], *(max(f, p[0] + o) for f, p, o in zip(full, pads, out[2:], strict=True)))
        )
        each, filters = x.reshape(n, groups, c // groups, h, w), wide.reshape(groups, c // groups, *weight.shape[1:])
        for i, j in np.ndindex(h, w):
            for u, v in np.ndindex(*weight.shape[2:]):
                at = (..., i * strides[0] + u * rates[0], j * strides[1] + v * rates[1])
                y[at] += np.einsum("ngc,gco->ngo", each[..., i, j], filters[..., u, v])
        y = y.reshape(n, -1, *y.shape[3:])
        return y[:, :, pads[0][0] : pads[0][0] + out[2], pads[1][0] : pads[1][0] + out[3]]

    attrs = {k: v for k, v in CONV.items() if k not in ("padding_style", "kernel_sizes", "weights_layout")}
    return slotted(
        core, name="anec.deconvolution", doc="A transposed convolution; weight (in, out / groups, height, width).", layer="Conv",
        inputs=("x", "weight"), attrs={**attrs, "output_padding": integers((0, 0))}, shape=shape, dtype=floating, ref=ref,
        cases=(Case(((1, 3, 4, 5), (3, 2, 2, 2)), {"strides": (2, 2)}),
               Case(((2, 4, 5, 5), (4, 3, 3, 3)), {"strides": (2, 2), "explicit_padding": (1, 1, 1, 1), "output_padding": (1, 1), "groups": 2})),
    )  # fmt: skip


def deconv_attrs(a: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "strides": a["strides"], "dilations": a["dilation_rates"], "pad": a["explicit_padding"],
        "output_padding": a["output_padding"], "groups": a["groups"], "layout": "nchw",
    }  # fmt: skip
