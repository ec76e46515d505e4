"""Layers that move elements, concatenate and split tensors, or make constants."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.importers.coreml.ops.indexing import sliced
from hexane.ops.compose import cast, limited

# ---- layers on five axes: sequence, batch, channels, height, width ----


@reads("flatten")
def flatten(n: LayerContext, p: Any, x: Value) -> Value:
    """(.., C, H, W)  ->  (.., C * H * W, 1, 1)"""
    *lead, channels, height, width = x.shape
    if p.mode == 1:
        rank = len(x.shape)
        x = n.b.transpose(x, perm=(*range(rank - 3), rank - 2, rank - 1, rank - 3))
    return n.b.reshape(x, shape=(*lead, channels * height * width, 1, 1))


@reads("reshape")
def reshape(n: LayerContext, p: Any, x: Value) -> Value:
    b, x = n.b, n.five(x)
    target = [int(d) for d in p.targetShape]
    if len(target) not in (3, 4):
        raise Error(f"targetShape: got {len(target)} numbers, need 3 or 4")
    sequence, batch = x.shape[:2]
    shape = [sequence, batch, *target] if len(target) == 3 else [target[0], batch, *target[1:]]
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = prod(x.shape) // max(-prod(shape), 1)
    if p.mode == 0:
        return n.least(b.reshape(x, shape=shape))
    last = b.transpose(x, perm=(0, 1, 3, 4, 2))
    moved = b.reshape(last, shape=[*shape[:2], shape[3], shape[4], shape[2]])
    return n.least(b.transpose(moved, perm=(0, 1, 4, 2, 3)))


@reads("permute")
def permute(n: LayerContext, p: Any, x: Value) -> Value:
    """Transposes x. axis: a permutation of sequence, channels, height and width."""
    axes = [int(a) for a in p.axis] or [0, 1, 2, 3]
    if sorted(axes) != [0, 1, 2, 3]:
        raise Error(f"axis: got {axes}, need a permutation of 0 to 3")
    of_five = [0, 2, 3, 4]
    first, *others = (of_five[a] for a in axes)
    return n.least(n.b.transpose(n.five(x), perm=(first, 1, *others)))


@reads("sequenceRepeat")
def sequence_repeat(n: LayerContext, p: Any, x: Value) -> Value:
    return n.least(n.b.tile(n.five(x), reps=(int(p.nRepetitions) or 1, 1, 1, 1, 1)))


@reads("loadConstant")
def load_constant(n: LayerContext, p: Any) -> Value:
    shape = [int(d) for d in p.shape]
    if len(shape) != 3:
        raise Error(f"shape: got {shape}, need 3 numbers")
    return n.least(n.b.const(n.weight(p.data, *shape, what="data").reshape(1, 1, *shape)))


@reads("concat")
def concat(n: LayerContext, p: Any, *values: Value) -> Value:
    if p.sequenceConcat:
        return n.least(n.b.concat(*(n.five(v) for v in values), axis=0))
    if len({len(v.shape) for v in values}) > 1:
        values = tuple(n.five(v) for v in values)
    return values[0] if len(values) == 1 else n.b.concat(*values, axis=-3)


@reads("split")
def split(n: LayerContext, p: Any, x: Value) -> tuple[Value, ...]:
    if not p.nOutputs or x.shape[-3] % p.nOutputs:
        raise Error(f"nOutputs: got {p.nOutputs} for {x.shape[-3]} channels, need a divisor")
    return n.b.several("split", x, axis=len(x.shape) - 3, num_splits=int(p.nOutputs))


@reads("slice")
def slice_of(n: LayerContext, p: Any, x: Value) -> Value:
    """Slices channels, height or width from startIndex to endIndex."""
    if p.axis not in (0, 1, 2):
        raise Error(f"axis: got {p.axis}, need 0, 1 or 2")
    axis = len(x.shape) - 3 + p.axis
    begin, end, stride = [0] * len(x.shape), list(x.shape), [1] * len(x.shape)
    extent = x.shape[axis]
    begin[axis], end[axis], _ = slice(p.startIndex, p.endIndex).indices(extent)
    stride[axis] = int(p.stride) or 1
    return n.b.slice_by_index(x, begin=begin, end=end, stride=stride)


# ---- layers on any axes ----


@reads("concatND")
def concat_nd(n: LayerContext, p: Any, *values: Value) -> Value:
    return n.mil("concat", values=values, axis=p.axis, interleave=p.interleave)


@reads("splitND")
def split_nd(n: LayerContext, p: Any, x: Value) -> tuple[Value, ...]:
    sizes = tuple(map(int, p.splitSizes))
    how = {"split_sizes": sizes} if sizes else {"num_splits": int(p.numSplits)}
    return n.b.several("split", x, axis=p.axis % len(x.shape), **how)


@reads("stack")
def stack(n: LayerContext, p: Any, *values: Value) -> Value:
    return n.b.stack(*values, axis=p.axis)


@reads("transpose")
def transpose(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.transpose(x, perm=tuple(map(int, p.axes)))


@reads("expandDims")
def expand_dims(n: LayerContext, p: Any, x: Value) -> Value:
    rank = len(x.shape) + len(p.axes)
    return n.b.expand_dims(x, axes=tuple(sorted(a % rank for a in p.axes)))


@reads("squeeze")
def squeeze(n: LayerContext, p: Any, x: Value) -> Value:
    """Drops axes of extent 1. At least one axis is kept."""
    rank = len(x.shape)
    axes = {a for a, d in enumerate(x.shape) if d == 1} if p.squeezeAll else {a % rank for a in p.axes}
    if any(x.shape[a] != 1 for a in axes):
        raise Error(f"axes: got {sorted(axes)} of x {x.shape}, need axes of one")
    return n.b.reshape(x, shape=[d for a, d in enumerate(x.shape) if a not in axes] or (1,))


@reads("flattenTo2D")
def flatten_to_2d(n: LayerContext, p: Any, x: Value) -> Value:
    axis = p.axis % len(x.shape) if p.axis < 0 else p.axis
    return n.b.reshape(x, shape=(prod(x.shape[:axis]), prod(x.shape[axis:])))


@reads("reshapeStatic")
def reshape_static(n: LayerContext, p: Any, x: Value) -> Value:
    shape = [int(d) for d in p.targetShape]
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = prod(x.shape) // max(-prod(shape), 1)
    return n.b.reshape(x, shape=shape)


@reads("rankPreservingReshape")
def rank_preserving_reshape(n: LayerContext, p: Any, x: Value) -> Value:
    """Reshapes x. An extent of 0 in the file keeps the extent of x."""
    if len(p.targetShape) != len(x.shape):
        raise Error(f"targetShape: got {len(p.targetShape)} numbers, need {len(x.shape)}")
    shape = [int(d) or e for d, e in zip(p.targetShape, x.shape, strict=True)]
    if shape.count(-1) == 1:
        shape[shape.index(-1)] = prod(x.shape) // max(-prod(shape), 1)
    return n.b.reshape(x, shape=shape)


@reads("reshapeLike")
def reshape_like(n: LayerContext, p: Any, x: Value, like: Value) -> Value:
    return n.b.reshape(x, shape=like.shape)


@reads("broadcastToStatic")
def broadcast_to_static(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.broadcast_to(x, shape=tuple(map(int, p.targetShape)))


@reads("broadcastToLike")
def broadcast_to_like(n: LayerContext, p: Any, x: Value, like: Value) -> Value:
    return n.b.broadcast_to(x, shape=like.shape)


@reads("tile")
def tile(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.tile(x, reps=tuple(map(int, p.reps)))


@reads("reverse")
def reverse(n: LayerContext, p: Any, x: Value) -> Value:
    if len(p.reverseDim) != len(x.shape):
        raise Error(f"reverseDim: got {len(p.reverseDim)}, need {len(x.shape)}")
    axes = tuple(a for a, is_reversed in enumerate(p.reverseDim) if is_reversed)
    return n.b.reverse(x, axes=axes) if axes else x


@reads("reverseSeq")
def reverse_sequence(n: LayerContext, p: Any, x: Value, lengths: Value) -> Value:
    return n.mil("reverse_sequence", x=x, lengths=lengths, seq_axis=p.sequenceAxis, batch_axis=p.batchAxis)


@reads("constantPad")
def constant_pad(n: LayerContext, p: Any, x: Value) -> Value:
    """Pads x by (before, after) on each axis. The mode with given output sizes is refused."""
    amounts = [int(v) for v in p.padAmounts]
    if len(amounts) != 2 * len(x.shape):
        raise Error(f"padAmounts: got {len(amounts)} numbers, need {2 * len(x.shape)}")
    begin, end = amounts[::2], amounts[1::2]
    if p.padToGivenOutputSizeMode:
        raise Error("padToGivenOutputSizeMode: got true, need amounts of padding")
    return n.b.pad(x, begin=begin, end=end, mode="constant", value=p.value)


@reads("slidingWindows")
def sliding_windows(n: LayerContext, p: Any, x: Value) -> Value:
    return n.mil("sliding_windows", x=x, axis=p.axis, size=int(p.windowSize), stride=int(p.step) or 1)


@reads("sliceStatic")
def slice_static(n: LayerContext, p: Any, x: Value) -> Value:
    masks = {"begin_mask": p.beginMasks, "end_mask": p.endMasks, "squeeze_mask": p.squeezeMasks}
    y = sliced(n.b, x, list(p.beginIds), list(p.endIds), stride=p.strides, **masks)
    return y if y.shape else n.b.reshape(y, shape=(1,))


# ---- constants ----


@reads("loadConstantND")
def load_constant_nd(n: LayerContext, p: Any) -> Value:
    return n.b.const(n.weight(p.data, *(int(d) for d in p.shape), what="data"))


def _filled(n: LayerContext, shape: tuple[int, ...], value: float) -> Value:
    limited(prod(shape), FP32.numpy)
    return n.b.const(np.full(shape, value, np.float32))


@reads("fillStatic")
def fill_static(n: LayerContext, p: Any) -> Value:
    return _filled(n, tuple(map(int, p.targetShape)), p.value)


@reads("fillLike")
def fill_like(n: LayerContext, p: Any, x: Value) -> Value:
    return _filled(n, x.shape, p.value)


@reads("getShape")
def get_shape(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.const(np.array(x.shape, np.float32))


@reads("rangeStatic")
def range_static(n: LayerContext, p: Any) -> Value:
    ends = {name: n.b.const(getattr(p, f"{name}{'SizeValue' if name == 'step' else 'Value'}"), "float32")
            for name in ("start", "end", "step")}  # fmt: skip
    return n.mil("range_1d", **ends)


# ---- triangles ----


@reads("matrixBandPart")
def band_part(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.band_part(x, lower=p.numLower, upper=p.numUpper)


@reads("lowerTriangular")
def lower_triangular(n: LayerContext, p: Any, x: Value) -> Value:
    return _masked(n, x, p.k, lower=True)


@reads("upperTriangular")
def upper_triangular(n: LayerContext, p: Any, x: Value) -> Value:
    return _masked(n, x, p.k, lower=False)


def _masked(n: LayerContext, x: Value, k: int, lower: bool) -> Value:
    rows, columns = x.shape[-2:]
    limited(rows * columns, FP32.numpy)
    ones = np.ones((rows, columns), bool)
    stays = np.tril(ones, k) if lower else np.triu(ones, k)
    return n.b.select(n.b.const(stays), x, np.zeros((), np.float32))


@reads("cumSum")
def cumsum(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.cumsum(x, axis=p.axis, exclusive=p.excludeFinalSum, reverse=p.reverse)


@reads("argSort")
def argsort(n: LayerContext, p: Any, x: Value) -> Value:
    return cast(n.b, n.mil("argsort", x=x, axis=p.axis, ascending=not p.descending), FP32)
