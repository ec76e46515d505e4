"""Ops that move elements, and normalisations, activations and products of matrices."""

from typing import Any

import numpy as np

from hexane.dtypes import INT32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.known import known_array
from hexane.importers.coreml.registry import Context, reads
from hexane.ops.compose import cast


@reads("band_part x lower:int=-1 upper:int=-1")
def band_part(c: Context, _: Any, /, x: Value, lower: int, upper: int) -> Value:
    if x.dtype.kind == "bool":
        rows, columns = x.shape[-2:]
        at = np.arange(columns) - np.arange(rows)[:, None]
        stays = ((lower < 0) | (-at <= lower)) & ((upper < 0) | (at <= upper))
        return c.b.logical_and(x, c.b.const(stays))
    return c.b.band_part(x, lower=lower, upper=upper)


def _pairs(values: Any) -> list[tuple[int, int]]:
    flat = known_array(values).reshape(-1).tolist()
    return list(zip(flat[::2], flat[1::2], strict=True))


@reads("batch_to_space x block_shape:ints crops:any")
def batch_to_space(c: Context, _: Any, /, x: Value, block_shape: tuple[int, ...], crops: Value) -> Value:
    """Moves blocks of the batch to neighbours in space, as TensorFlow does."""
    b, count = c.b, len(block_shape)
    batch, rest = x.shape[0] // int(np.prod(block_shape)), x.shape[2 + 0 :]
    channels, spatial = x.shape[1], rest
    y = b.reshape(x, shape=(*block_shape, batch, channels, *spatial))
    perm = [count, count + 1]
    for i in range(count):
        perm += [count + 2 + i, i]
    perm += list(range(2 * count + 2, len(y.shape)))
    y = b.transpose(y, perm=perm)
    wide = [d * s for d, s in zip(spatial, block_shape, strict=False)]
    y = b.reshape(y, shape=(batch, channels, *wide, *spatial[count:]))
    begin, end = [0, 0], [batch, channels]
    for extent, (before, after) in zip(wide, _pairs(crops), strict=True):
        begin.append(before)
        end.append(extent - after)
    return b.slice_by_index(y, begin=[*begin, *[0] * (len(y.shape) - len(begin))], end=[*end, *y.shape[len(end) :]])


@reads("space_to_batch x block_shape:ints paddings:any")
def space_to_batch(c: Context, _: Any, /, x: Value, block_shape: tuple[int, ...], paddings: Value) -> Value:
    b, count = c.b, len(block_shape)
    pads = _pairs(paddings)
    begin = [0, 0, *(p[0] for p in pads), *[0] * (len(x.shape) - 2 - count)]
    end = [0, 0, *(p[1] for p in pads), *[0] * (len(x.shape) - 2 - count)]
    y = b.pad(x, begin=begin, end=end)
    batch, channels, *spatial = y.shape
    parts: list[int] = []
    for extent, block in zip(spatial, block_shape, strict=False):
        parts += [extent // block, block]
    y = b.reshape(y, shape=(batch, channels, *parts, *spatial[count:]))
    perm = [*(3 + 2 * i for i in range(count)), 0, 1, *(2 + 2 * i for i in range(count))]
    perm += list(range(2 + 2 * count, len(y.shape)))
    y = b.transpose(y, perm=perm)
    blocks = int(np.prod(block_shape))
    small = [d // s for d, s in zip(spatial, block_shape, strict=False)]
    return b.reshape(y, shape=(batch * blocks, channels, *small, *spatial[count:]))


@reads("reverse_sequence x lengths seq_axis:int=0 batch_axis:int=0")
def reverse_sequence(c: Context, _: Any, /, x: Value, lengths: Value, seq_axis: int, batch_axis: int) -> Value:
    rank = len(x.shape)
    return c.b.reverse_sequence(x, cast(c.b, lengths, INT32), seq_axis=seq_axis % rank, batch_axis=batch_axis % rank)


@reads("sliding_windows x axis:int size:int stride:int=1")
def sliding_windows(c: Context, _: Any, /, x: Value, axis: int, size: int, stride: int) -> Value:
    """Replaces the axis by two: windows and the elements of a window."""
    at = axis % len(x.shape)
    count = (x.shape[at] - size) // stride + 1
    if size < 1 or stride < 1 or count < 1:
        raise Error(f"got windows of {size} every {stride} over {x.shape[at]}, need one that fits")
    picks = np.arange(count, dtype=np.int32)[:, None] * stride + np.arange(size, dtype=np.int32)
    return c.b.gather(x, picks, axis=at)


@reads("softplus_parametric x alpha beta")
def softplus_parametric(c: Context, _: Any, /, x: Value, alpha: Value, beta: Value) -> Value:
    """Returns alpha * log(1 + exp(beta * x)). alpha and beta have one number per channel."""
    shape = (1, -1, *[1] * (len(x.shape) - 2))
    a, z = (c.b.reshape(v, shape=[alpha.type.size if d == -1 else d for d in shape]) for v in (alpha, beta))
    return c.b.mul(c.b.softplus(c.b.mul(x, z)), a)


@reads("thresholded_relu x alpha:float")
def thresholded_relu(c: Context, _: Any, /, x: Value, alpha: float) -> Value:
    """Returns x where x >= alpha, else 0."""
    return c.b.select(c.b.greater_equal(x, alpha), x, c.b.const(np.zeros((), x.dtype.numpy)))


@reads("prelu x alpha")
def prelu(c: Context, _: Any, /, x: Value, alpha: Value) -> Value:
    rank = len(x.shape)
    slopes = c.b.reshape(alpha, shape=(alpha.type.size, *[1] * (rank - 2))) if rank >= 2 else alpha
    return c.b.prelu(x, slopes)


@reads("local_response_norm x size:int alpha:float=1e-4 beta:float=0.75 k:float=1.0")
def local_response_norm(c: Context, _: Any, /, x: Value, size: int, alpha: float, beta: float, k: float) -> Value:
    """Normalises over axis 1, or over axis 0 of a tensor of rank 3. An even window has one element more before its
    centre."""
    b, axis = c.b, 0 if len(x.shape) == 3 else 1
    if size % 2:
        return b.local_response_norm(x, size=size, alpha=alpha, beta=beta, k=k, axis=axis)
    rank = len(x.shape)
    begin, end = [0] * rank, [0] * rank
    begin[axis], end[axis] = size // 2, size - 1 - size // 2
    squares = b.pad(b.square(x), begin=begin, end=end)
    total: Any = None
    for i in range(size):
        first, last = [0] * rank, list(squares.shape)
        first[axis], last[axis] = i, i + x.shape[axis]
        piece = b.slice_by_index(squares, begin=first, end=last)
        total = piece if total is None else b.add(total, piece)
    return b.real_div(x, b.pow(b.add(b.mul(total, alpha / size), k), beta))


@reads("batch_norm x mean variance gamma? beta? epsilon:float=1e-5")
def batch_norm(
    c: Context, _: Any, /, x: Value, mean: Value, variance: Value, gamma: Any, beta: Any, epsilon: float
) -> Value:
    return c.b.batch_norm(x, mean, variance, gamma, beta, epsilon=epsilon, axis=1)


@reads("l2_norm x epsilon:float=1e-6")
def l2_norm(c: Context, _: Any, /, x: Value, epsilon: float) -> Value:
    """Normalises over the last three axes, or over all axes if there are fewer."""
    return c.b.l2_norm(x, axes=tuple(range(-min(len(x.shape), 3), 0)), epsilon=epsilon)


@reads("linear x weight bias?")
def linear(c: Context, _: Any, /, x: Value, weight: Value, bias: Value | None) -> Value:
    return c.b.linear(x, weight, bias)


@reads("mod x y")
def mod(c: Context, _: Any, /, x: Value, y: Value) -> Value:
    return c.b.mod(x, y)


@reads("scaled_dot_product_attention query key value attn_mask?")
def attention(c: Context, _: Any, /, query: Value, key: Value, value: Value, attn_mask: Value | None) -> Value:
    return c.b.scaled_dot_product_attention(query, key, value, attn_mask)


@reads("matmul x y transpose_x:bool=false transpose_y:bool=false")
def matmul(c: Context, operation: Any, /, x: Value, y: Value, transpose_x: bool, transpose_y: bool) -> Value:
    """Multiplies matrices. Vectors are handled as in NumPy's matmul."""
    b = c.b
    first, last = len(x.shape) == 1, len(y.shape) == 1
    x = b.expand_dims(x, axes=(0,)) if first else x
    y = b.expand_dims(y, axes=(1,)) if last else y
    product = b.matmul(x, y, None, transpose_x=transpose_x and not first, transpose_y=transpose_y and not last)
    dropped = [axis for axis, gone in ((len(product.shape) - 2, first), (len(product.shape) - 1, last)) if gone]
    if dropped:
        product = b.reshape(product, shape=[d for i, d in enumerate(product.shape) if i not in dropped])
    dtype = operation.results[0][1].dtype
    return product if dtype is None else cast(b, product, dtype)


@reads("einsum values:values equation:str")
def einsum(c: Context, _: Any, /, values: tuple[Value, ...], equation: str) -> Value:
    """Computes an einsum. An extent of 1 broadcasts to the other extents of the same letter."""
    terms = [t.strip() for t in equation.partition("->")[0].split(",")]
    extents: dict[str, int] = {}
    for term, value in zip(terms, values, strict=True):
        for letter, extent in zip(term, value.shape, strict=False):
            extents[letter] = max(extents.get(letter, 1), extent)
    wide = [
        c.b.broadcast_to(v, shape=shape)
        if (shape := tuple(extents.get(a, 1) for a in term)) != v.shape and len(term) == len(v.shape)
        else v
        for term, v in zip(terms, values, strict=True)
    ]
    return c.b.einsum(*wide, equation=equation)
