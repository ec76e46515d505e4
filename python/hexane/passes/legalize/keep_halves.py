"""Keeps fp16 values in fp16 if a cast to fp32 is not needed: before products that read fp16, slices and joins."""

from math import prod

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.graph import Array, Graph, Node, Value
from hexane.graph.array_bits import reshaped_view
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.ops.records.accumulating_product import ACCUMULATING_MATMUL
from hexane.ops.records.widening_product import WIDENING_MATMUL
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.passes.quantize.narrow_weights import narrow_source
from hexane.targets import Target

_PRODUCTS = {"cpu.matmul": WIDENING_MATMUL, ACCUMULATING_MATMUL: ACCUMULATING_MATMUL}  # op -> form with fp16 operands
_VIEWS = ("reshape", "slice_by_index", "transpose")


def keep_halves(graph: Graph, target: Target, became: dict[Value, Value] | None = None) -> Graph:
    """cpu.matmul(cast(%x : fp16), transpose(cast(%y : fp16))) : fp32  ->  cpu.widening_matmul(%x, transpose(%y)) : fp32
    cast(concat(slice_by_index(cast(%x : fp16)), %y)) : fp16  ->  concat(slice_by_index(%x), cast(%y)) : fp16
    cast(transpose(%x : fp32)) : fp16  ->  transpose(cast(%x)) : fp16
    slice_by_index(cast(%x : fp16)) : fp32  ->  cast(slice_by_index(%x)) : fp32

    The casts may be before or after reshapes, slices and transposes. No bit of a result changes. A product reads a
    transposed operand along its contiguous axis. A cast with other readers is kept for them. If only slices read a
    cast, and together they are no larger than its result, the slices are cast instead. A product of an fp32 x and a
    constant matrix is left to use_bf16 and narrow_weights. became: as in `Graph.rewrite`.
    """
    users, counts = graph.users(), graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        old, x = node.inputs[0], inputs[0]
        assert old is not None
        assert x is not None
        if node.op in _PRODUCTS:
            return _product(node, inputs) if node.types[0].dtype is FP32 else None
        if node.op == "slice_by_index":
            whole, readers = _source(x), users[old]
            if whole is None or any(user.op != node.op for user in readers) or counts[old] != len(readers):
                return None
            if sum(user.types[0].size for user in readers) > old.type.size:
                return None
            return (_cast(apply(OPS[node.op], [whole], node.attrs, node.sources)[0], FP32),)
        if x.dtype is not FP32 or node.types[0].dtype is not FP16:
            return None
        joined = made_by(x, "concat")
        if joined is None or counts[old] != 1 or not any(map(_halves, joined.inputs)):
            return (_narrow(x),)
        parts = [_narrow(v) for v in joined.inputs if v is not None]
        return apply(OPS["concat"], parts, joined.attrs, joined.sources)

    return graph.rewrite(change, (*_PRODUCTS, "slice_by_index", "cast"), became)


def _source(value: Value) -> Value | None:
    """Returns the fp16 source of an fp32 value that a cast made, else None."""
    node = made_by(value, "cast")
    source = None if node is None or value.dtype is not FP32 else node.inputs[0]
    return source if source is not None and source.dtype is FP16 else None


def _cast(value: Value, dtype: DType) -> Value:
    return apply(OPS["cast"], [value], {"dtype": dtype}, value.node.sources)[0]


def _base(value: Value) -> Value:
    """Returns the source of a chain of views."""
    while value.node.op in _VIEWS:
        source = value.node.inputs[0]
        assert source is not None
        value = source
    return value


def _seen(value: Value, base: Value, narrow: Value) -> Value:
    """Returns the view of `narrow` that corresponds to the value as a view of `base`."""
    if value == base:
        return narrow
    node = value.node
    assert node.inputs[0] is not None
    return apply(OPS[node.op], [_seen(node.inputs[0], base, narrow)], node.attrs, node.sources)[0]


def _halves(value: Value | None) -> Value | None:
    """Returns the fp32 value in fp16 if it is a view of a value cast from fp16, else None."""
    base = None if value is None else _base(value)
    source = None if base is None else _source(base)
    return None if value is None or base is None or source is None else _seen(value, base, source)


def _narrow(value: Value) -> Value:
    """Returns the fp32 value cast to fp16. A transposed value is cast before it is moved, because fp16 has fewer bytes
    to move."""
    base = _base(value)
    scattered = value.type.rank and _strides(value)[-1] != 1 and base.type.size == value.type.size
    return _halves(value) or (_seen(value, base, _cast(base, FP16)) if scattered else _cast(value, FP16))


def _product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    operands, attrs = list(inputs), dict(node.attrs)
    for i, flag in ((0, "transpose_x"), (1, "transpose_y")):
        is_left = i == 1 and node.op == "cpu.matmul" and operands[0] == inputs[0] and _is_weight(inputs[i])
        narrow = None if is_left else _halves(inputs[i])
        if narrow is None:
            continue
        rank = narrow.type.rank
        if narrow.shape[-1] > 1 and _strides(narrow)[-1] != 1 and _strides(narrow)[-2] == 1:
            narrow = transposed(narrow, (*range(rank - 2), rank - 1, rank - 2), node.sources)
            attrs[flag] = not attrs[flag]
        operands[i] = narrow
    return None if operands == list(inputs) else apply(OPS[_PRODUCTS[node.op]], operands, attrs, node.sources)


def _is_weight(value: Value | None) -> bool:
    return value is not None and narrow_source(value) is not None


def _strides(value: Value) -> tuple[int, ...]:
    """Returns the strides of the value in elements, which NumPy computes on views of an array without real memory."""

    def pretended(value: Value) -> Array:
        node = value.node
        source = node.inputs[0] if node.op in _VIEWS else None
        try:
            if source is not None and node.op == "reshape":
                return reshaped_view(pretended(source), value.shape)
            if source is not None:
                return np.asarray(OPS[node.op].ref(pretended(source), **node.attrs))
        except ValueError:
            """NumPy cannot reshape without a copy here, so the result is contiguous."""
        strides = [prod(value.shape[i + 1 :]) for i in range(value.type.rank)]
        return np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), value.shape, strides)

    return pretended(value).strides
