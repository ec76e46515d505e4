"""Products of matrices, embeddings and dot products."""

from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import INT32
from hexane.errors import Error, UnsupportedError
from hexane.graph import Value
from hexane.importers.coreml.networks.registry import LayerContext, reads
from hexane.ops.compose import cast


@reads("innerProduct")
def inner_product(n: LayerContext, p: Any, x: Value) -> Value:
    """Multiplies by a matrix. x (.., C, H, W) of four or five axes is read as rows of C * H * W."""
    _floats(p)
    inner, outer, rank = int(p.inputChannels), int(p.outputChannels), len(x.shape)
    weight = n.weight(p.weights, outer, inner)
    bias = n.weight(p.bias, outer, what="bias") if p.hasBias else None
    lead = x.shape[:-3] if rank >= 4 else x.shape[:-1]
    if prod(x.shape) != prod(lead) * inner:
        raise Error(f"inputChannels: got x {x.shape} for {inner} channels, need as many")
    y = n.b.linear(n.b.reshape(x, shape=(prod(lead), inner)), weight, bias)
    return n.b.reshape(y, shape=(*lead, outer, *((1, 1) if rank >= 4 else ())))


def _floats(p: Any) -> None:
    if p.int8DynamicQuantize:
        raise UnsupportedError("got int8DynamicQuantize, which quantises x at run time, need a layer without")


@reads("batchedMatmul")
def batched_matmul(n: LayerContext, p: Any, x: Value, y: Value | None = None) -> Value:
    _floats(p)
    if y is not None:
        if len(x.shape) == 1:
            x = n.b.reshape(x, shape=(1, *x.shape))
        if len(y.shape) == 1:
            y = n.b.reshape(y, shape=(*y.shape, 1))
        return n.b.matmul(x, y, transpose_x=p.transposeA, transpose_y=p.transposeB)
    first, second = int(p.weightMatrixFirstDimension), int(p.weightMatrixSecondDimension)
    weight = n.weight(p.weights, second, first)  # the file has the columns first
    bias = n.weight(p.bias, second, what="bias") if p.hasBias else None
    return n.b.linear(x, weight, bias)


def _looked_up(n: LayerContext, x: Value, weights: Any, bias: Any, rows: int, columns: int) -> Value:
    """Returns the columns of weights (columns, rows) at the indices x."""
    table = n.b.const(np.ascontiguousarray(n.weight(weights, columns, rows).T))
    y = n.b.gather(table, cast(n.b, x, INT32), axis=0)
    return y if bias is None else n.b.add(y, n.weight(bias, columns, what="bias"))


@reads("embedding")
def embedding(n: LayerContext, p: Any, x: Value) -> Value:
    """Looks up x (.., 1, 1, 1) of four or five axes in an embedding."""
    if len(x.shape) not in (4, 5) or x.shape[-3:] != (1, 1, 1):
        raise Error(f"got x {x.shape}, need (.., 1, 1, 1)")
    lead, rows, columns = x.shape[:-3], int(p.inputDim), int(p.outputChannels)
    flat = n.b.reshape(x, shape=lead)
    y = _looked_up(n, flat, p.weights, p.bias if p.hasBias else None, rows, columns)
    return n.b.reshape(y, shape=(*lead, columns, 1, 1))


@reads("embeddingND")
def embedding_nd(n: LayerContext, p: Any, x: Value) -> Value:
    if len(x.shape) < 2 or x.shape[-1] != 1:
        raise Error(f"got x {x.shape}, need (.., 1)")
    flat = n.b.reshape(x, shape=x.shape[:-1])
    return _looked_up(n, flat, p.weights, p.bias if p.hasBias else None, int(p.vocabSize), int(p.embeddingSize))


@reads("dot")
def dot(n: LayerContext, p: Any, x: Value, y: Value) -> Value:
    b = n.b
    product = b.reduce_sum(b.mul(x, y), axes=(-3,), keep_dims=True)
    if not p.cosineSimilarity:
        return product
    lengths = [b.reduce_l2_norm(v, axes=(-3,), keep_dims=True) for v in (x, y)]
    return b.real_div(product, b.mul(*lengths))
