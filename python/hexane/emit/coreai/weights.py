"""Converts a graph's encoded weights to Core AI's encodings: integers with a scale for each block, indices of palettes,
and sparse numbers with a mask.

Source: assets that Apple's converter wrote, and the descriptions of the operations in coreai-core 1.0.0b3.
"""

from dataclasses import dataclass
from math import prod

import numpy as np

from hexane.dtypes import DTYPES, FP16, FP32, DType
from hexane.emit.coreai.bytecode import WrittenValue
from hexane.emit.coreai.scope import Scope, Typed
from hexane.graph import Array, Graph, Node, Value, tensor_type
from hexane.ops.encodings import LEAST_PRUNED, PALETTES, fewest_bits, is_encoded
from hexane.ops.float_tables import with_float_tables

PALETTE_BITS = (1, 2, 3, 4, 6, 8)  # widths of indices
WEIGHT_OPERAND = {"conv": 1, "conv_transpose": 1, "matmul": 1, "linear": 1}


@dataclass(frozen=True, slots=True)
class Palettes:
    """A palette. indices: of `bits` bits. tables: [blocks of each axis.., entries, numbers of an entry], the numbers
    along `axis`."""

    indices: Array
    tables: Array
    bits: int
    axis: int

    @property
    def bytes(self) -> int:
        return -(-self.indices.size * self.bits // 8) + self.tables.nbytes


@dataclass(frozen=True, slots=True)
class Integers:
    """The number (numbers - zeros) * scales; each block has one zero and one scale. kind: the dtype of the stored
    numbers."""

    numbers: Array
    zeros: Array
    scales: Array
    kind: DType

    @property
    def bytes(self) -> int:
        zeros = self.zeros.size * self.kind.bits // 8 if self.zeros.any() else 0
        return -(-self.numbers.size * self.kind.bits // 8) + self.scales.nbytes + zeros


def form_of(node: Node) -> Palettes | Integers | None:
    """Returns Core AI's encoding of the constants that a node decodes. Returns None if the node decodes none, if Core
    AI lacks the encoding, or if it would not save bytes."""
    if not is_encoded(node) or node.types[0].dtype not in (FP16, FP32) or not node.types[0].size:
        return None
    form = _integers(node) if node.op in ("dequantize", "decode_blocks") else _palettes(node)
    return form if form is not None and form.bytes < node.types[0].bytes else None


def _arrays(node: Node) -> list[Array]:
    return [v.node.data for v in node.inputs if v is not None and v.node.data is not None]


def _palettes(node: Node) -> Palettes | None:
    """Returns a palette with an entry for every index of its width; unused entries repeat the last one."""
    node = with_float_tables(node.values[0]).node
    first, second = _arrays(node)
    indices, tables = (second, first.reshape(*[1] * second.ndim, -1)) if node.op == "gather" else (first, second)
    if node.op != "decode_vectors":
        tables = tables[..., None]
    entries = tables.shape[-2]
    if node.op in PALETTES:
        indices = np.minimum(indices, entries - 1)  # an index after the last entry reads the last entry
    if indices.min() < 0 or indices.max() >= entries:
        return None
    bits = next((n for n in PALETTE_BITS if entries <= 1 << n), None)
    if bits is None:
        return None
    padding = [(0, 0)] * (tables.ndim - 2) + [(0, (1 << bits) - entries), (0, 0)]
    axis = int(node.attrs["axis"]) if node.op == "decode_vectors" else 0
    return Palettes(indices.astype(np.uint8), np.pad(tables, padding, mode="edge"), bits, axis)


def _integers(node: Node) -> Integers | None:
    """Returns integers, in four bits if they fit, with scales in the dtype of the result. Returns None for integers of
    other widths than 8 bits, and if the dtype of the result cannot represent the scales."""
    numbers, scales, *zeros = _arrays(node)
    x = node.inputs[0]
    assert x is not None
    if x.dtype.name not in ("int8", "uint8") or not numbers.ndim:
        return None
    if node.op == "dequantize":
        blocks = [scales.size if scales.ndim and i == node.attrs["axis"] else 1 for i in range(numbers.ndim)]
        scales, zeros = scales.reshape(blocks), [z.reshape(blocks) for z in zeros]
    with np.errstate(over="ignore"):
        narrow = scales.astype(node.types[0].dtype.numpy)
    if not np.array_equal(narrow.astype(scales.dtype), scales):
        return None
    zero = zeros[0] if zeros else np.zeros(scales.shape, numbers.dtype)
    stored = [v for i, v in enumerate(node.inputs) if v is not None and i != 1]
    kind = DTYPES[x.dtype.name.replace("8", "4")] if fewest_bits(*stored) <= 4 else x.dtype
    return Integers(numbers, zero, narrow, kind)


def write_stored(s: Scope, form: Palettes | Integers) -> Typed:
    """Adds the operation that decodes the weight, and its operands."""
    if isinstance(form, Palettes):
        kind = DTYPES[f"uint{form.bits}"]
        indices = s.const(form.indices.astype(kind.numpy), kind)
        tables = s.const(np.ascontiguousarray(form.tables))
        axis = s.const(np.array(form.axis, np.int16))
        size = form.tables.shape[-1]
        shape = (d * size if i == form.axis else d for i, d in enumerate(form.indices.shape))
        dense = tensor_type(tables.type.dtype, tuple(shape))
        return s.add("primitive.lut_to_dense_v1", (indices, tables, axis), dense)
    numbers, zeros = (s.const(a.astype(form.kind.numpy), form.kind) for a in (form.numbers, form.zeros))
    scales, offsets = s.const(form.scales), s.const(np.zeros_like(form.scales))
    dense = tensor_type(scales.type.dtype, numbers.shape)
    return s.add("primitive.blockwise_shift_scale_v2", (numbers, scales, zeros, offsets), dense)


# ---- sparse weights ----


def sparse_weights(graph: Graph) -> set[Value]:
    """Returns the constant float weights of products that have at least `LEAST_PRUNED` elements, of which at least half
    are 0, but not all."""
    result = set()
    for node in graph.nodes:
        place = WEIGHT_OPERAND.get(node.op)
        value = None if place is None else node.inputs[place]
        if value is not None and value.node.op == "const" and _is_sparse(value):
            result.add(value)
    return result


def _is_sparse(value: Value) -> bool:
    data = value.node.data
    if data is None or value.dtype not in (FP16, FP32) or data.size < LEAST_PRUNED:
        return False
    return 0 < 2 * int(np.count_nonzero(_is_number(data))) <= data.size


def _is_number(data: Array) -> Array:
    """Returns a mask of the nonzero elements. -0.0 counts as nonzero."""
    result: Array = data.view(f"u{data.dtype.itemsize}") != 0
    return result


def write_sparse(s: Scope, data: Array) -> Typed:
    """Adds a sparse constant: its nonzero numbers, and a mask bit for each element."""
    places = _is_number(data)
    numbers = s.const(data[places])
    mask = s.const(places.astype(DTYPES["uint1"].numpy), DTYPES["uint1"])
    kind = tensor_type(numbers.type.dtype, data.shape)
    packed = Typed(WrittenValue(s.writer.sparse_tensor(kind, prod(numbers.shape))), kind)
    s.append("primitive.build_sparse_with_bitmask_v1", (numbers, mask), packed)
    return s.add("primitive.sparse_with_bitmask_to_dense_v1", (packed,), kind)
