"""Converts a model's encoded weights to the form that kernels read."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from hexane.dtypes import FP16, FP32, DType
from hexane.graph import Array, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import MOVES, moved
from hexane.ops.encodings import is_encoded
from hexane.ops.float_tables import with_float_tables
from hexane.ops.records.encoded_product import LONG_TABLE, SHORT_TABLE, VECTORS, table_columns
from hexane.ops.records.quant import BYTES

_BEYOND_HALVES = 65520.0  # fp16 rounds numbers from 65520 on to infinity
_SCALES = ("mul", "sub", "real_div", "batch_norm")


class Stored(NamedTuple):
    """The operands of ENCODED_MATMUL for a weight (columns, terms)."""

    weight: Array
    numbers: Array
    bits: int
    palette: bool


def comes_of_integers(x: Value) -> bool:
    """True if a product of x may become an integer product: x is dequantised, perhaps moved."""
    while x.node.op in MOVES and x.node.inputs[0] is not None:
        x = x.node.inputs[0]
    return x.node.op == "dequantize"


def scales_follow(product: Value, readers: "Mapping[Value, Sequence[Node]]") -> bool:
    """True if the only reader of the result, perhaps after additions of constants, scales its columns by constants."""
    while len(users := readers.get(product, [])) == 1:
        (node,) = users
        others = [v for v in node.inputs if v is not None and v != product]
        if any(v.node.op != "const" or v.type.size == 1 for v in others) or not others:
            return False
        if node.op in _SCALES:
            return True
        if node.op != "add":
            return False
        product = node.values[0]
    return False


def encoded(value: Value) -> Value | None:
    """Returns the encoded constant that the value equals, or None. If the value is a move or cast of an encoded
    constant, the result is that constant, moved or cast in its encoded form."""
    node = value.node
    if is_encoded(node):
        return with_float_tables(value)
    if node.op not in (*MOVES, "cast") or node.inputs[0] is None:
        return None
    source = encoded(node.inputs[0])
    if source is None or node.op == "cast":
        return None if source is None else _cast(source, value.dtype)
    return moved(node.with_inputs((source, *node.inputs[1:])))


def before_rounding(value: Value) -> Value:
    """Returns the fp32 source of an fp16 value that a cast, and perhaps a move, has made; any other value unchanged."""
    node = value.node
    source = node.inputs[0] if node.op in (*MOVES, "cast") else None
    if source is None or value.dtype is not FP16:
        return value
    if node.op == "cast":
        return source if source.dtype is FP32 else value
    inner = before_rounding(source)
    return value if inner is source else node.with_inputs((inner, *node.inputs[1:])).values[0]


def fits_rounded(stored: Stored, dtype: DType) -> bool:
    """True if kernels that decode in fp32 and then round to fp16 give this weight's fp16 numbers. Weights with fp16
    scales pass, since fp32 holds every product of an integer and an fp16 scale. An fp32 weight is rounded twice in the
    model too."""
    return fits_halves(stored) and (dtype is FP32 or stored.palette or held(stored.numbers))


def _cast(weight: Value, dtype: DType) -> Value | None:
    """Returns the encoded weight cast to another dtype: a palette with its entries cast, or integers whose scales fp16
    holds exactly, so that products are rounded once. Returns None for integers cast from fp16 to fp32."""
    node, floats = weight.node, (FP16, FP32)
    if weight.dtype is dtype or weight.dtype not in floats or dtype not in floats:
        return weight if weight.dtype is dtype else None
    operands = list(node.inputs)
    at = 0 if node.op == "gather" else 1
    numbers = operands[at]
    assert numbers is not None
    assert numbers.node.data is not None
    if node.op in ("dequantize", "decode_blocks") and (dtype is FP32 or not held(numbers.node.data)):
        return None
    if node.op == "dequantize":
        return apply(OPS[node.op], operands, {**node.attrs, "dtype": dtype}, node.sources)[0]
    with np.errstate(over="ignore"):
        operands[at] = constant(numbers.node.data.astype(dtype.numpy), numbers.node.sources)
    return apply(OPS[node.op], operands, node.attrs, node.sources)[0]


def stored_rows(weight: Value) -> Stored | None:
    """Returns the stored form of a weight (out, in), or (out, kernel.., in) with all axes but the first merged, or None
    if the kernels cannot read this form."""
    first, second, *more = (None if v is None else v.node.data for v in weight.node.inputs)
    assert first is not None
    assert second is not None
    columns = weight.shape[0]
    taps = weight.shape[1:-1]
    match weight.node.op:
        case "dequantize":
            zero = more[0] if more else None
            if second.ndim and (weight.node.attrs["axis"] != 0 or (zero is not None and zero.ndim != 1)):
                return None
            integers = _centred(first.reshape(columns, -1), zero)
            return None if integers is None else of_integers(integers, np.broadcast_to(second, columns)[None])
        case "decode_blocks":
            for axis, extent in enumerate((columns, *taps)):  # each tap has its own blocks
                second = np.repeat(second, extent // second.shape[axis], axis=axis)
            return of_integers(first.reshape(columns, -1), second.reshape(columns, -1).T)
        case "gather":
            indices = second.reshape(columns, -1)
            return _indices(indices, first[None]) if weight.node.attrs["axis"] == 0 else None
        case "decode_palette":
            groups, *others, entries = second.shape
            whole = others == [1] * len(others)
            return _indices(first.reshape(columns, -1), second.reshape(groups, entries)) if whole else None
        case "decode_vectors":
            groups, *others, entries, size = second.shape
            if weight.node.attrs["axis"] != 0 or others != [1] * len(others) or size not in VECTORS:
                return None
            return _indices(first.reshape(columns // size, -1), second.reshape(groups, entries, size))
    return None


def fits_halves(stored: Stored) -> bool:
    """True if none of the weight's numbers overflows fp16."""
    return within_halves(stored.numbers, 0 if stored.palette else stored.bits)


def within_halves(numbers: Array, bits: int) -> bool:
    """True if all table entries, or all products of the scales and integers with this many bits, are within fp16. bits:
    0 for a table."""
    most = float(np.abs(numbers).max(initial=0))
    return most * (1 << (bits - 1) if bits else 1) < _BEYOND_HALVES


def held(numbers: Array) -> bool:
    """True if fp16 holds these numbers exactly."""
    with np.errstate(over="ignore"):
        return bool((numbers.astype(np.float16) == numbers).all())


def _centred(integers: Array, zero: Array | None) -> Array | None:
    """Returns the integers minus their zero points, or None if the differences do not fit int8."""
    if integers.dtype not in [d.numpy for d in BYTES]:
        return None
    wide = integers.astype(np.int16) - (np.int16(0) if zero is None else zero.astype(np.int16).reshape(-1, 1))
    return wide.astype(np.int8) if wide.size and wide.min() >= -128 and wide.max() <= 127 else None


def of_integers(integers: Array, scales: Array) -> Stored:
    """Stores integers (columns, terms) with scales (blocks, columns), in 4 bits if all integers fit, else in 8."""
    numbers = np.ascontiguousarray(scales, np.float32)
    block = integers.shape[1] // len(numbers)
    if integers.min() < -8 or integers.max() > 7 or (len(numbers) > 1 and block % 2):
        return Stored(np.ascontiguousarray(integers), numbers, 8, False)
    return Stored(_in_pairs(integers.view(np.uint8) & 15), numbers, 4, False)


def _indices(indices: Array, tables: Array) -> Stored | None:
    groups, entries, *vector = tables.shape
    columns = len(indices) * prod(vector)
    whole_runs = groups == 1 or (columns % groups == 0 and columns // groups % table_columns(bool(vector)) == 0)
    if entries > LONG_TABLE or not whole_runs or indices.min() < 0 or indices.max() >= entries:
        return None
    codes, numbers = indices.astype(np.uint8), np.ascontiguousarray(tables, np.float32)
    if entries <= SHORT_TABLE:
        return Stored(_in_pairs(codes), numbers, 4, True)
    return Stored(codes, numbers, 8, True)


def _in_pairs(codes: Array) -> Array:
    """Packs two 4-bit codes into a byte, the first in its lower half."""
    if codes.shape[1] % 2:
        codes = np.pad(codes, ((0, 0), (0, 1)))
    packed: Array = codes[:, 0::2] | codes[:, 1::2] << 4
    return np.ascontiguousarray(packed)
