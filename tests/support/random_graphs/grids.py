"""Integers of 8 bits and the real numbers they stand for: scales, zero points, weights, biases."""

from math import ceil, log2, sqrt

import numpy as np

import hexane as hx
from hexane.graph import Array
from random_graphs.graph import Grid, RandomGraph, Unfit

BYTES = ("int8", "uint8")


def operand(g: RandomGraph, array: Array) -> hx.Tensor:
    """A constant, nearly always."""
    return g.leaf(array) if g.coin(0.15) else hx.const(array)


def scales(g: RandomGraph, top: float, shape: tuple[int, ...] = ()) -> hx.Tensor:
    """Scales under which magnitudes up to `top` take about the range of 8 bits."""
    step = max(top, 1e-2) / 127 * g.pick((1, 1, 1, 2, 4, 0.5))
    if g.exact:
        array = 2.0 ** (ceil(log2(step)) - g.rng.integers(0, 3, shape))
    else:
        array = step * g.rng.uniform(0.7, 1.4, shape)
    return operand(g, np.asarray(-array if g.coin(0.02) else array, np.float32))


def zeros(g: RandomGraph, dtype: str, shape: tuple[int, ...] = ()) -> hx.Tensor | None:
    info = np.iinfo(dtype)
    middle = (info.max + info.min + 1) // 2
    match g.integer(0, 6):
        case 0 | 1:
            return None if dtype == "int8" else operand(g, np.full(shape, middle, dtype))
        case 2:
            low, high = 0, 1
        case 3:
            return None
        case 4:
            low, high = middle - 9, middle + 10
        case _:
            low, high = info.min, info.max + 1
    return operand(g, g.rng.integers(low, high, shape).astype(dtype))


def drawn_grid(g: RandomGraph, x: hx.Tensor, dtype: str) -> Grid:
    """One for x, or one that there is, or now and then one for each index of an axis."""
    there = [grid for grid in g.grids.values() if grid.zero is None or grid.zero.dtype.name == dtype]
    there = [grid for grid in there if not grid.scale.shape]
    if there and g.coin(0.35):
        return g.pick(there[::-1])  # type: ignore[no-any-return]
    axis, shape = 0, ()
    if x.shape and g.coin(0.1):
        axis = g.integer(0, len(x.shape))
        shape = (x.shape[axis],)
    top = float(np.abs(g.array(x)).max(initial=0)) if x.dtype.kind == "float" else 2.0
    return Grid(scales(g, top, shape), zeros(g, dtype, shape), axis)


def quantize(g: RandomGraph, x: hx.Tensor, grid: Grid | None = None) -> hx.Tensor:
    """x in 8 bits. It takes another grid where an earlier rounding would decide this one."""
    dtype = g.pick(BYTES) if grid is None or grid.zero is None else grid.zero.dtype.name
    for _ in range(4):
        found = drawn_grid(g, x, dtype) if grid is None else grid
        q = hx.quantize(x, found.scale, found.zero, axis=found.axis, dtype=dtype)
        try:
            g.array(q)
        except Unfit:
            grid = None
            continue
        g.grids[q.value] = found
        return q
    raise Unfit


def dequantize(g: RandomGraph, q: hx.Tensor) -> hx.Tensor:
    if q.value not in g.grids:
        g.grids[q.value] = drawn_grid(g, q, q.dtype.name)
    scale, zero, axis = g.grids[q.value]
    if g.exact and g.coin(0.03):  # fp16 may be off by a unit of its own, which is far in fp32
        return hx.cast(hx.dequantize(q, scale, zero, axis=axis, dtype="fp16"), dtype="fp32")
    return hx.dequantize(q, scale, zero, axis=axis)


def whole(g: RandomGraph, dtype: str, shape: tuple[int, ...]) -> Array:
    """Integers of all bits, of a few, or the extremes alone."""
    info = np.iinfo(dtype)
    match g.integer(0, 4):
        case 0:
            return np.asarray(g.rng.integers(max(info.min, -8), 8, shape)).astype(dtype)
        case 1:
            return np.asarray(g.rng.choice((info.min, info.max), shape)).astype(dtype)
        case _:
            return np.asarray(g.rng.integers(info.min, info.max + 1, shape)).astype(dtype)


def weight(g: RandomGraph, shape: tuple[int, ...], columns: int, terms: int) -> tuple[hx.Tensor, Grid]:
    """Dequantised constants, of one scale or one for each column, now and then for each index of another axis."""
    dtype = g.pick(("int8", "int8", "uint8"))
    axis = g.integer(0, len(shape)) if g.coin(0.05) else columns
    vector = (shape[axis],) if g.coin() else ()
    grid = Grid(scales(g, 2 / sqrt(max(terms, 1)), vector), zeros(g, dtype, vector), axis)
    w = hx.dequantize(operand(g, whole(g, dtype, shape)), grid.scale, grid.zero, axis=axis)
    return w, grid


def bias(g: RandomGraph, x: hx.Tensor, w: Grid, size: int) -> hx.Tensor | None:
    """None, real numbers, or int32 in steps of the product's scales, or of others."""
    match g.integer(0, 5):
        case 0 | 1:
            return None
        case 2:
            return g.weight((size,))
    data = operand(g, g.rng.integers(-3000, 3000, size).astype(np.int32))
    node = x.value.node
    scale = np.float32(2**-10)
    if node.op == "dequantize" and node.inputs[1] is not None and not node.inputs[1].shape and w.axis == 0:
        scale = g.arrays.get(node.inputs[1], node.inputs[1].node.data)
        scale = np.float32(scale * g.array(w.scale))
    if scale.shape not in ((), (size,)):
        return None
    if g.coin(0.1):
        scale = np.float32(2) * scale
    return hx.dequantize(data, hx.const(scale))
