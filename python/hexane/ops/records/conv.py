"""Convolutions and pooling over one to three spatial axes, with channels first ("nchw") or last ("nhwc").

The order of weights does not depend on the layout: (out, in / groups, spatial...), in transposed convolutions (in, out
/ groups, spatial...).
"""

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import TensorType
from hexane.ops.attributes import flag, integer, integers
from hexane.ops.dtype_rules import floating, numeric
from hexane.ops.gradients import windows as grads
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Case, Op
from hexane.ops.taps import pairs, pool_taps, window_count, windows
from hexane.ops.window_rules import (
    LAYOUT,
    POOL,
    WINDOW,
    check_weight,
    convolved_shape,
    from_nchw,
    join_shape,
    pool_shape,
    split_shape,
    to_nchw,
    window_attrs,
    window_kernel_attrs,
)

Array = Any


def convolve(
    x: Array, weight: Array, bias: Array | None, strides: Shape, dilations: Shape, pad: Shape, groups: int, layout: str
) -> Array:
    x = to_nchw(x, layout)
    kernel = weight.shape[2:]
    out = tuple(window_count(*args) for args in zip(x.shape[2:], kernel, strides, dilations, pairs(pad), strict=True))
    x = np.pad(x, ((0, 0), (0, 0), *pairs(pad)))
    x = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    w = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    y = np.zeros((x.shape[0], groups, w.shape[1], *out), x.dtype)
    for tap, _ in windows(np.empty((1, 1, *x.shape[3:]), np.int8), kernel, strides, dilations, out):
        index = tuple(
            slice(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in zip(tap, dilations, strides, out, strict=True)
        )
        y += np.einsum("ngc...,goc->ngo...", x[(slice(None), slice(None), slice(None), *index)], w[(..., *tap)])
    y = y.reshape(y.shape[0], weight.shape[0], *out)
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * len(out))
    return from_nchw(y, layout)


def _transpose_extents(
    spatial: Shape, kernel: Shape, strides: Shape, dilations: Shape, pad: Shape, output_padding: Shape
) -> tuple[int, ...]:
    out = tuple(
        (n - 1) * s + d * (k - 1) + 1 - p[0] - p[1] + o
        for n, k, s, d, p, o in zip(spatial, kernel, strides, dilations, pairs(pad), output_padding, strict=True)
    )
    if min(spatial) < 1 or any(n < 1 for n in out) or any(o < 0 for o in output_padding):
        raise Error(
            f"got the extents {tuple(spatial)} -> {out} with output_padding {output_padding}, need positive extents"
        )
    return out


def _conv_transpose_shape(
    x: Shape,
    weight: Shape,
    bias: Shape | None,
    strides: Shape,
    dilations: Shape,
    pad: Shape,
    output_padding: Shape,
    groups: int,
    layout: str,
) -> Shape:
    batch, channels, spatial = split_shape(x, layout)
    out_channels = weight[1] * groups if len(weight) > 1 else 0
    check_weight(weight, bias, len(x), groups, channels, 0, out_channels)
    out = _transpose_extents(spatial, weight[2:], strides, dilations, pad, output_padding)
    return join_shape(batch, out_channels, out, layout)


def _conv_transpose(
    x: Array,
    weight: Array,
    bias: Array | None,
    strides: Shape,
    dilations: Shape,
    pad: Shape,
    output_padding: Shape,
    groups: int,
    layout: str,
) -> Array:
    x = to_nchw(x, layout)
    kernel, spatial = weight.shape[2:], x.shape[2:]
    out = _transpose_extents(spatial, kernel, strides, dilations, pad, output_padding)
    full = tuple(
        max((n - 1) * s + d * (k - 1) + 1, o + p[0])
        for n, s, d, k, o, p in zip(spatial, strides, dilations, kernel, out, pairs(pad), strict=True)
    )
    grouped = x.reshape(x.shape[0], groups, x.shape[1] // groups, *spatial)
    w = weight.reshape(groups, x.shape[1] // groups, *weight.shape[1:])
    y = np.zeros((x.shape[0], groups, weight.shape[1], *full), x.dtype)
    for tap in product(*map(range, kernel)):
        index: Any = (
            ...,
            *(
                slice(t * d, t * d + (n - 1) * s + 1, s)
                for t, d, s, n in zip(tap, dilations, strides, spatial, strict=True)
            ),
        )
        y[index] += np.einsum("ngc...,gco->ngo...", grouped, w[(..., *tap)])
    y = y.reshape(y.shape[0], groups * weight.shape[1], *full)
    y = y[(slice(None), slice(None), *(slice(p[0], p[0] + o) for p, o in zip(pairs(pad), out, strict=True)))]
    if bias is not None:
        y = y + bias.reshape(-1, *[1] * len(out))
    return from_nchw(y, layout)


def _max_pool(x: Array, layout: str, **attrs: Any) -> Array:
    x = to_nchw(x, layout)
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    values, _ = pool_taps(x, lowest, **attrs)
    return from_nchw(values.max(axis=0), layout)


def _avg_pool(x: Array, layout: str, exclude_padding: bool, **attrs: Any) -> Array:
    values, regions = pool_taps(to_nchw(x, layout), 0, **attrs)
    counted = (regions >= (2 if exclude_padding else 1)).sum(axis=0)
    return from_nchw(values.sum(axis=0) / np.maximum(counted, 1), layout)


def _image_attrs(types: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
    x = types[0]
    if x is None or x.rank != 4:
        raise Error(f"got an input of {x}, need an image (N, H, W, C)")
    return window_attrs(types, attrs)


def _weight_gradient_shape(
    x: Shape, g: Shape, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape, groups: int
) -> Shape:
    weight = (g[-1], x[-1] // max(groups, 1), *kernel_sizes)
    need = convolved_shape(x, weight, None, strides, dilations, pad, groups, "nhwc")
    if need != g:
        raise Error(f"got a gradient of shape {g} for x {x}, need {need}")
    return weight


def _weight_gradient(
    x: Array, g: Array, kernel_sizes: Shape, strides: Shape, dilations: Shape, pad: Shape, groups: int
) -> Array:
    x = np.pad(x, ((0, 0), *pairs(pad), (0, 0)))
    n, rows, columns, outputs = g.shape
    each = x.shape[3] // groups
    y = np.zeros((groups, outputs // groups, each, *kernel_sizes), x.dtype)
    grouped = g.reshape(n, rows, columns, groups, outputs // groups)
    for i, j in product(*map(range, kernel_sizes)):
        ends = [(t * d, t * d + (o - 1) * s + 1, s) for t, d, s, o in
                zip((i, j), dilations, strides, (rows, columns), strict=True)]  # fmt: skip
        part = x[:, slice(*ends[0]), slice(*ends[1])].reshape(n, rows, columns, groups, each)
        y[..., i, j] = np.einsum("nyzgo,nyzgc->goc", grouped, part)
    return y.reshape(outputs, each, *kernel_sizes)


def _pool_gradient_shape(x: Shape, g: Shape, **window: Any) -> Shape:
    need = pool_shape(x, layout="nhwc", **window)
    if need != g:
        raise Error(f"got a gradient of shape {g} for x {x}, need {need}")
    return x


def _pool_gradient(x: Array, g: Array, **window: Any) -> Array:
    values, _ = pool_taps(to_nchw(x, "nhwc"), -np.inf, **window)
    first, given = values.argmax(axis=0), to_nchw(g, "nhwc")
    number = np.arange(x.size).reshape(to_nchw(x, "nhwc").shape)
    places, regions = pool_taps(number, 0, **window)
    chosen = np.take_along_axis(places, first[None], 0)[0]
    inside = np.take_along_axis(np.broadcast_to(regions, places.shape), first[None], 0)[0] == 2
    y = np.zeros(x.size, x.dtype)
    np.add.at(y, chosen[inside], given[inside])
    return from_nchw(y.reshape(number.shape), "nhwc")


def over_rows(scale: Array, weight: Shape, **_: Any) -> Array:
    """Reshapes the scale of each output channel to broadcast over a weight (out, ..)."""
    return scale.reshape(-1, *[1] * (len(weight) - 1))


def _over_groups(scale: Array, weight: Shape, groups: int, **_: Any) -> Array:
    """Repeats the scale for a weight (in, out / groups, ..), whose inputs reach only the outputs of their group."""
    each = np.repeat(scale.reshape(groups, weight[1]), weight[0] // groups, axis=0)
    return each.reshape(*weight[:2], *[1] * (len(weight) - 2))


OPS = (
    Op(
        name="conv",
        doc="Convolution (cross-correlation) of x (N, C, spatial...) with weight (out, C / groups, kernel...) and bias "
            "(out,). Strides and dilations are one number, or one for each spatial axis; pad may also be (begin, end) "
            "of every axis. With layout nhwc, x and the result have channels last.",
        inputs=("x", "weight", "bias?"), attrs={**WINDOW, "groups": integer(1), "layout": LAYOUT}, shape=convolved_shape,
        dtype=floating, canonical=window_attrs, kernel="conv", kernel_attrs=window_kernel_attrs, layout="spatial", epilogue=True, product=over_rows, padding=0.0, ref=convolve,
        cases=(
            Case(((1, 3, 9, 8), (5, 3, 3, 3), (5,)), {"pad": 1}),
            Case(((2, 4, 7, 7), (6, 2, 3, 2)), {"groups": 2, "strides": 2, "pad": (1, 0)}),
            Case(((1, 6, 8, 9), (6, 1, 3, 3), (6,)), {"groups": 6, "pad": (0, 1, 1, 2)}),
            Case(((1, 4, 9, 9), (8, 4, 1, 1), (8,))),
            Case(((1, 2, 11), (3, 2, 4)), {"dilations": 2, "pad": (3, 0)}),
            Case(((2, 4, 5, 6, 7), (6, 2, 3, 3, 2), (6,)), {"groups": 2, "strides": (2, 1, 2), "pad": (1, 1, 1, 0, 0, 1)}),
        ), grad=grads.conv,
    ),
    Op(
        name="conv_transpose",
        doc="Transposed convolution, the gradient of a convolution by its input: x (N, C, spatial...), weight (C, out "
            "/ groups, kernel...), bias (out,). An output_padding adds to the end of every spatial axis.",
        inputs=("x", "weight", "bias?"),
        attrs={**WINDOW, "output_padding": integers((0,)), "groups": integer(1), "layout": LAYOUT},
        shape=_conv_transpose_shape, dtype=floating, canonical=window_attrs, kernel="conv_transpose", kernel_attrs=window_kernel_attrs, layout="spatial",
        epilogue=True, product=_over_groups, ref=_conv_transpose,
        cases=(
            Case(((1, 3, 4, 5), (3, 2, 2, 2), (2,)), {"strides": 2}),
            Case(((1, 4, 5, 5), (4, 3, 3, 3)), {"strides": 2, "pad": 1, "output_padding": 1}),
            Case(((2, 4, 5, 4), (4, 2, 3, 3)), {"groups": 2, "dilations": 2}),
            Case(((1, 4, 3, 4, 2), (4, 3, 2, 3, 2), (6,)), {"groups": 2, "strides": (2, 1, 3), "pad": (0, 1, 1, 1, 0, 0),
                                                             "output_padding": (1, 0, 2)}),
        ), grad=grads.conv_transpose,
    ),
    Op(
        name="conv_weight_gradient",
        doc="The gradient of a convolution's weight (out, C / groups, kernel...), from its input x (N, H, W, C) and the gradient g "
            "(N, H', W', out) of its result.",
        inputs=("x", "g"), attrs={"kernel_sizes": integers(), **WINDOW, "groups": integer(1)}, shape=_weight_gradient_shape,
        dtype=floating, canonical=_image_attrs, kernel="conv_weight_gradient", expand=grads.expand_weight_gradient,
        kernel_attrs=window_kernel_attrs, ref=_weight_gradient,
        cases=(
            Case(((2, 6, 5, 3), (2, 6, 5, 5)), {"kernel_sizes": 3, "pad": 1}),
            Case(((1, 9, 8, 4), (1, 5, 3, 6)), {"kernel_sizes": (2, 3), "strides": 2, "pad": (1, 0), "groups": 2}),
            Case(((2, 7, 7, 20), (2, 3, 5, 20)), {"kernel_sizes": (3, 3), "dilations": (2, 1), "groups": 20}),
            Case(((1, 8, 9, 17), (1, 6, 3, 2)), {"kernel_sizes": (3, 2), "strides": (1, 2), "dilations": (1, 3)}),
            Case(((3, 4, 4, 33), (3, 4, 4, 9)), {"kernel_sizes": 1}),
        ),
    ),
    Op(
        name="max_pool", doc="The maximum of each window of x (N, C, spatial...). "
            "kernel_sizes, strides, dilations: one number, or one for each spatial axis; ceil_mode: windows may end outside.", inputs=("x",), attrs={**POOL, "layout": LAYOUT},
        shape=pool_shape, dtype=numeric, canonical=window_attrs, kernel="max_pool", kernel_attrs=window_kernel_attrs, layout="spatial", padding=-np.inf, picks=True, ref=_max_pool,
        cases=(
            Case(((1, 3, 8, 8),), {"kernel_sizes": 2, "strides": 2}),
            Case(((1, 5, 8, 9),), {"kernel_sizes": 3, "strides": 2, "pad": 1, "ceil_mode": True}),
        ), grad=grads.max_pool,
    ),
    Op(
        name="max_pool_gradient",
        doc="The gradient of x (N, H, W, C) in a max_pool, from the result's gradient g (N, H', W', C): g goes to the "
            "first largest element of each window.",
        inputs=("x", "g"), attrs=POOL, shape=_pool_gradient_shape, dtype=floating, canonical=_image_attrs,
        kernel="max_pool_gradient", expand=grads.expand_max_pool_gradient, kernel_attrs=window_kernel_attrs,
        ref=_pool_gradient,
        cases=(
            Case(((2, 6, 8, 5), (2, 3, 4, 5)), {"kernel_sizes": 2, "strides": 2}),
            Case(((1, 8, 9, 17), (1, 5, 5, 17)), {"kernel_sizes": 3, "strides": 2, "pad": 1, "ceil_mode": True}),
            Case(((2, 7, 8, 3), (2, 5, 3, 3)), {"kernel_sizes": (2, 3), "strides": (1, 2), "dilations": (2, 1)}),
        ),
    ),
    Op(
        name="avg_pool", doc="The mean of each window of x (N, C, spatial...). exclude_padding: only elements of x "
                             "count. All other attributes are max_pool's.", inputs=("x",),
        attrs={**POOL, "exclude_padding": flag(True), "layout": LAYOUT}, shape=pool_shape, dtype=floating,
        canonical=window_attrs, kernel="avg_pool", kernel_attrs=window_kernel_attrs, layout="spatial", padding=0.0, ref=_avg_pool,
        cases=(
            Case(((1, 3, 8, 8),), {"kernel_sizes": 2, "strides": 2}),
            Case(((1, 5, 8, 9),), {"kernel_sizes": 3, "strides": 2, "pad": 1, "ceil_mode": True,
                                   "exclude_padding": False}),
        ), grad=grads.avg_pool,
    ),
)  # fmt: skip
