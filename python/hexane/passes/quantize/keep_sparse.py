"""Stores pruned weights without their zeros."""

from weakref import WeakKeyDictionary

import numpy as np

from hexane.compression.weights import LEAST_NUMBERS
from hexane.dtypes import FP32
from hexane.graph import Array, AttrValue, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.records.sparse_product import END, SPARSE_CONV, SPARSE_MATMUL, is_multiplied_without_zeros, sparse
from hexane.targets import Target

# With this share of zeros, a product of one row is as fast as with dense weights (benchmarks/test_sparse_products.py).
LEAST_ZEROS = 0.5


def keep_sparse(graph: Graph, target: Target) -> Graph:
    """matmul(%x, const : fp32[512, 256], %b) {transpose_y=True}  ->  cpu.sparse_matmul(%x, const, const, %b)
    conv(%x, const : fp32[96, 64, 3, 3], %b)  ->  cpu.sparse_conv(%x, const, const, %b)

    Applies to fp32 products with a constant matrix, and to convolutions with one group over one or two axes. The weight
    must have at least LEAST_NUMBERS numbers, of which a share of at least LEAST_ZEROS are 0. Skipped if an op of
    another kind reads the weight too, because the weight would be stored twice.
    """
    readers = graph.users()
    stored: dict[tuple[Value, bool], tuple[Value, Value] | None] = {}
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, y, bias = inputs
        assert x is not None
        assert y is not None
        if y.node.op != "const" or y.type.size < LEAST_NUMBERS or x.dtype is not FP32:
            return None
        if not is_multiplied_without_zeros(node, y):
            return None
        if any(not _multiplies_by(reader, y, node.op) for reader in readers[y]):
            return None
        in_rows = node.op == "conv" or bool(node.attrs["transpose_y"])
        if (y, in_rows) not in stored:
            stored[y, in_rows] = _stored(y, in_rows)
        streams = stored[y, in_rows]
        if streams is None:
            return None
        zeros = 1 - (streams[1].type.size - END) / y.type.size
        decisions.append(Decision("keep_sparse", node.where, f"{zeros:.0%} zeros", "only the other weights are stored"))
        attrs: dict[str, AttrValue] = {"columns": y.shape[0 if in_rows else 1]}
        if node.op == "conv":
            attrs |= {name: node.attrs[name] for name in ("strides", "dilations", "pad", "layout")}
            attrs["kernel_sizes"] = y.shape[2:]
            return apply(OPS[SPARSE_CONV], [x, *streams, bias], attrs, node.sources)
        attrs["transpose_x"] = node.attrs["transpose_x"]
        return apply(OPS[SPARSE_MATMUL], [x, *streams, bias], attrs, node.sources)

    return graph.rewrite(change, ("conv", "matmul")).decided(*decisions)


def _multiplies_by(reader: Node, weight: Value, op: str) -> bool:
    return reader.op == op and reader.inputs[0] != weight and is_multiplied_without_zeros(reader, weight)


_zeros: "WeakKeyDictionary[Node, int]" = WeakKeyDictionary()


def _stored(weight: Value, in_rows: bool) -> tuple[Value, Value] | None:
    numbers: Array | None = weight.node.data
    assert numbers is not None
    if weight.node not in _zeros:
        _zeros[weight.node] = numbers.size - int(np.count_nonzero(numbers.view(np.uint32)))
    if _zeros[weight.node] < LEAST_ZEROS * numbers.size:
        return None
    rows = numbers if in_rows else numbers.T
    masks, others = sparse(np.moveaxis(rows, 1, -1).reshape(len(rows), -1))  # a convolution's channels become innermost
    return constant(masks, weight.node.sources), constant(others, weight.node.sources)
