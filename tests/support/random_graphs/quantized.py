"""Quantised tensors: the patterns of models between DequantizeLinear and QuantizeLinear, and patterns that only look
alike."""

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import numpy as np

import hexane as hx
from hexane.build import FUNCTIONS
from random_graphs import convolution, elementwise, indices, movement
from random_graphs.convolution import per_channel, window
from random_graphs.graph import DIMS, Grid, RandomGraph, Unfit, broadcasts
from random_graphs.grids import BYTES, bias, dequantize, drawn_grid, operand, quantize, scales, weight, whole, zeros

MOVES = (*movement.STEPS, *2 * (convolution.pool_op,), convolution.resize, indices.gather)
SLOTS = ("relu", "relu", "relu6", "clip")

Test = Callable[[hx.Tensor], bool]


def in_bytes(g: RandomGraph, test: Test = lambda t: True) -> hx.Tensor:
    """A quantised tensor: one that there is, or a real one quantised."""
    try:
        if g.coin(0.7):
            return g.tensor(test, g.pick(BYTES))
    except Unfit:
        pass
    q = quantize(g, g.tensor(test))
    maybe(g, q)
    return q


def real(g: RandomGraph, test: Test = lambda t: True) -> hx.Tensor:
    """A real tensor that was quantised; at times one that others read."""
    q = in_bytes(g, test)
    x = dequantize(g, q)
    maybe(g, x)
    return x


def maybe(g: RandomGraph, t: hx.Tensor) -> None:
    """One more reader or output, in the middle of a pattern that a pass looks for."""
    if g.coin(0.12):
        g.keep(t)


def finish(g: RandomGraph, y: hx.Tensor, grid: Grid | None = None, always: bool = False) -> None:
    """Activations, a quantize, a dequantize, or not all of them."""
    while g.coin(0.3):
        maybe(g, y)
        y = activation(g, y)
    if not always and g.coin(0.25):
        return g.keep(y)
    maybe(g, y)
    q = quantize(g, y, grid)
    g.keep(q)
    if g.coin(0.3):
        g.keep(dequantize(g, q))


def activation(g: RandomGraph, y: hx.Tensor) -> hx.Tensor:
    name = g.pick(SLOTS if g.exact or g.coin() else elementwise.UNARY["any"])
    return FUNCTIONS[name](y, **(g.pick(elementwise.CLIPS) if name == "clip" else {}))  # type: ignore[no-any-return]


def entry(g: RandomGraph) -> None:
    """An input of 8 bits."""
    g.input_of(whole(g, g.pick(BYTES), g.tensor().shape if g.coin() else g.shape(g.pick((4, 4, 3, 2)), 3)))


def conv(g: RandomGraph) -> None:
    x = real(g, lambda t: 3 <= len(t.shape) <= (5 if g.coin(0.1) else 4))
    last = len(x.shape) < 5 and g.coin(0.08)
    channels, spatial = (x.shape[-1], x.shape[1:-1]) if last else (x.shape[1], x.shape[2:])
    kernel, attrs = window(g, spatial)
    groups = g.pick([1, 1, 1, channels, *[n for n in (2, 3, 4) if channels and channels % n == 0]]) or 1
    out = groups * g.pick((1, 2, 3, 5)) if groups > 1 else g.pick(DIMS)
    shape = (out, channels // groups, *kernel)
    w, grid = weight(g, shape, 0, prod(shape[1:]))
    y = hx.conv(x, w, bias(g, x, grid, out), groups=groups, layout="nhwc" if last else "nchw", **attrs)
    beside(g, y, len(y.shape) - 1 if last else 1)


def conv_transpose(g: RandomGraph) -> None:
    x = real(g, lambda t: 3 <= len(t.shape) <= 4)
    channels = x.shape[1]
    kernel, attrs = window(g, x.shape[2:])
    groups = g.pick([1, 1, channels]) or 1
    each = g.pick((1, 2, 3, 5))
    attrs["output_padding"] = [g.integer(0, s) for s in attrs["strides"]]
    w, grid = weight(g, (channels, each, *kernel), g.pick((0, 1)), channels * prod(kernel))
    finish(g, hx.conv_transpose(x, w, bias(g, x, grid, groups * each), groups=groups, **attrs))


def matmul(g: RandomGraph) -> None:
    x = real(g, lambda t: 2 <= len(t.shape) <= 4)
    tx, ty = g.coin(0.1), g.coin(0.3)
    k = x.shape[-2 if tx else -1]
    if g.coin(0.3):  # of two computed tensors
        y = real(g, lambda t: 2 <= len(t.shape) <= 4 and k in t.shape[-2:] and broadcasts(t.shape[:-2], x.shape[:-2]))
        if y.shape[-1 if ty else -2] != k:
            y = hx.transpose(y, perm=(*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2))
        return beside(g, hx.matmul(x, y, transpose_x=tx, transpose_y=ty), -1)
    n = g.pick(DIMS)
    w, grid = weight(g, (n, k) if ty else (k, n), 0 if ty else 1, k)
    added = bias(g, x, grid, n)
    if ty and not tx and g.coin():
        return finish(g, hx.linear(x, w, added))
    if added is not None and g.coin():
        return beside(g, hx.matmul(x, w, transpose_x=tx, transpose_y=ty) + added, -1)
    return beside(g, hx.matmul(x, w, added, transpose_x=tx, transpose_y=ty), -1)


def beside(g: RandomGraph, y: hx.Tensor, axis: int) -> None:
    """The ops between a product and its quantize."""
    if g.coin(0.15):
        maybe(g, y)
        y = per_channel(g, y, axis % len(y.shape))
    finish(g, y)


def binary(g: RandomGraph) -> None:
    x = real(g)
    y = real(g, lambda t: broadcasts(t.shape, x.shape)) if g.coin(0.85) else elementwise.other(g, x)
    name = g.pick(("add", "add", "add", "add", "sub", "mul", "maximum"))
    finish(g, FUNCTIONS[name](*((x, y) if g.coin(0.7) else (y, x))))


def unary(g: RandomGraph) -> None:
    """Mostly ops that a table of 256 bytes can replace."""
    x = y = real(g)
    for _ in range(g.integer(0, 4)):
        maybe(g, y)
        if g.coin(0.3):
            number = np.float32(g.integer(-2, 3) if g.exact else g.integer(-20, 21) / 10)
            number = np.full((1,) * g.pick((0, 0, 0, 1, 2, 5)), number)
            y = FUNCTIONS[g.pick(("add", "sub", "mul", "maximum"))](y, number)
        elif g.coin(0.15):
            y = y * x
        else:
            name = g.pick(elementwise.names(elementwise.UNARY, g))
            y = FUNCTIONS[name](y, **(g.pick(elementwise.CLIPS) if name == "clip" else {}))
    finish(g, y, g.grids.get(x.value.node.inputs[0]) if g.coin(0.2) else None, always=True)  # type: ignore[arg-type]


def move(g: RandomGraph) -> None:
    """One or two ops that move elements, the grid behind them being that before, or another."""
    q = in_bytes(g)
    y = x = dequantize(g, q)
    maybe(g, x)
    for _ in range(g.pick((1, 1, 2))):
        y = moved(g, y)
        maybe(g, y)
    grid = g.grids[q.value]
    finish(g, y, grid if not grid.scale.shape and g.coin(0.6) else None)


def moved(g: RandomGraph, x: hx.Tensor) -> hx.Tensor:
    """A step on x alone."""
    there, g.pool = g.pool, [x]
    try:
        for _ in range(6):
            try:
                g.pick(MOVES)(g)
            except (Unfit, hx.Error):
                continue
            if g.pool[-1].dtype is x.dtype:
                return g.pool[-1]
        raise Unfit
    finally:
        g.pool = there


def move_bytes(g: RandomGraph) -> None:
    q = in_bytes(g)
    y = moved(g, q)
    grid = g.grids.get(q.value)
    if grid is not None and not grid.scale.shape and g.coin(0.8):
        g.grids[y.value] = grid
    g.keep(y)


def concat(g: RandomGraph) -> None:
    """A concatenation of tensors on one grid, or nearly."""
    q = in_bytes(g, lambda t: len(t.shape) > 0)
    x = dequantize(g, q)
    grid = g.grids[q.value]
    axis = 1 if len(x.shape) > 2 and g.coin() else g.integer(0, len(x.shape))

    def joins(t: hx.Tensor) -> bool:
        return len(t.shape) == len(x.shape) and all(
            a == b for i, (a, b) in enumerate(zip(t.shape, x.shape, strict=True)) if i != axis
        )

    parts = [x]
    for _ in range(g.integer(1, 4)):
        match g.integer(0, 4):
            case 0 if not grid.scale.shape:
                parts.append(dequantize(g, quantize(g, g.tensor(joins), grid)))
            case 1:
                parts.append(g.tensor(joins))
            case _:
                parts.append(real(g, joins))
    y = hx.concat(*g.shuffled(parts), axis=axis)
    finish(g, y, grid if not grid.scale.shape and g.coin() else None)


def dynamic(g: RandomGraph) -> None:
    """A product of integers whose grid is found at run time, cast, and scaled."""
    x = g.tensor(lambda t: 2 <= len(t.shape) <= 4 and 0 not in t.shape)  # a range of nothing is none
    if g.exact:
        grid = drawn_grid(g, x, "uint8")
        q = quantize(g, x, Grid(g.leaf(g.array(grid.scale)), grid.zero, grid.axis))
        scale, zero, _ = g.grids[q.value]
    else:
        high = hx.maximum(hx.reduce_max(x, axes=range(len(x.shape)), keep_dims=False), 0.0)
        low = hx.minimum(hx.reduce_min(x, axes=range(len(x.shape)), keep_dims=False), 0.0)
        scale = (high - low) / 255.0
        zero = hx.cast(hx.clip(hx.round(0.0 - low / scale), alpha=0.0, beta=255.0), dtype="uint8")
        q = hx.quantize(x, scale, zero, dtype="uint8")
    if scale.shape:
        raise Unfit
    image = len(x.shape) > 2 and g.coin(0.4)
    columns, axis, dtype = g.pick(DIMS), 1, g.pick(BYTES)
    vector = (columns,) if g.coin() else ()
    w_zero = zeros(g, dtype, vector if g.coin() else ())
    w_scale = scales(g, 2 / sqrt(max(x.type.size // x.shape[0], 1)), vector)
    if image:
        kernel, attrs = window(g, x.shape[2:])
        w = operand(g, whole(g, dtype, (columns, x.shape[1], *kernel)))
        total = hx.quantized_conv(q, w, None, None, zero, w_zero, dtype="int32", **attrs)
    else:
        w, axis = operand(g, whole(g, dtype, (x.shape[-1], columns))), len(x.shape) - 1
        total = hx.quantized_matmul(q, w, None, None, zero, w_zero, dtype="int32")
    maybe(g, total)
    numbers = hx.cast(total, dtype="fp32")
    maybe(g, numbers)
    factor = scale * w_scale
    if vector:
        factor = hx.reshape(factor, shape=[-1 if i == axis else 1 for i in range(len(x.shape))])
    elif g.coin(0.1):  # what no product takes
        factor = factor * g.weight(tuple(d if i != axis else 1 for i, d in enumerate(total.shape)))
    beside(g, numbers * factor if g.coin() else factor * numbers, axis)


def direct(g: RandomGraph) -> None:
    """The integer ops themselves, as QLinear ops say them."""
    dtypes = ("fp32", "int32", "int8", "uint8") if g.exact else ("fp32", "int32")
    dtype = g.pick(dtypes)
    attrs: dict[str, Any] = {"dtype": dtype}
    if dtype in BYTES:
        attrs.update(output_scale=2.0 ** g.integer(-3, 8), output_zero=int(whole(g, dtype, ())))
    which = g.integer(0, 4)
    x = in_bytes(g, lambda t: len(t.shape) >= (2 if which else 0))
    other = g.pick(BYTES)
    if which == 0:
        if dtype not in BYTES:
            return g.keep(hx.lookup(x, operand(g, whole(g, other, (256,)))))
        y = in_bytes(g, lambda t: broadcasts(t.shape, x.shape))
        grids = {f"{n}_scale": 2.0 ** g.integer(-3, 3) for n in "xy"}
        grids.update({f"{n}_zero": int(whole(g, t.dtype.name, ())) for n, t in (("x", x), ("y", y))})
        return g.keep(hx.quantized_add(x, y, **grids, **attrs))
    columns = g.pick(DIMS)
    vector = (columns,) if g.coin() else ()
    scale = None if dtype == "int32" else scales(g, 0.02, vector)
    added = None
    if g.coin():
        added = operand(
            g, g.rng.integers(-999, 999, columns).astype("int32" if dtype == "int32" or g.coin() else "float32")
        )
    ends = zeros(g, x.dtype.name), zeros(g, other, vector if g.coin() else ())
    if which == 1 and 3 <= len(x.shape) <= 4:
        kernel, more = window(g, x.shape[2:])
        w = operand(g, whole(g, other, (columns, x.shape[1], *kernel)))
        return g.keep(hx.quantized_conv(x, w, scale, added, *ends, **more, **attrs))
    flip = g.coin(0.3)
    w = operand(g, whole(g, other, (columns, x.shape[-1]) if flip else (x.shape[-1], columns)))
    return g.keep(hx.quantized_matmul(x, w, scale, added, *ends, transpose_y=flip, **attrs))


STEPS = (entry, conv, conv, conv, conv_transpose, matmul, matmul, matmul, binary, binary, unary, unary, move, move,
         move_bytes, concat, concat, dynamic, direct)  # fmt: skip
