"""How the numbers of a constant are stored: unencoded, pruned, as integers with a scale, or as indices of tables."""

from dataclasses import dataclass
from typing import Literal
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from hexane.dtypes import FP16, FP32
from hexane.graph import Node, Value
from hexane.ops.fold import fold_node

Kind = Literal["whole", "pruned", "integers", "blocks", "palette"]

# Ops that decode constants.
DECODERS: dict[str, Kind] = {
    "dequantize": "integers",
    "anec.dequant": "integers",
    "gather": "palette",
    "decode_blocks": "blocks",
    "decode_palette": "palette",
    "decode_scaled_palette": "palette",
    "decode_vectors": "palette",
    "anec.gather": "palette",
}
# Ops with one table per block: [blocks.., entries, ..].
PALETTES = ("decode_palette", "decode_scaled_palette", "decode_vectors")
LEAST_PRUNED = 1024  # A pruned weight has at least this many elements.
PALETTE_BITS = (1, 2, 3, 4, 6, 8)  # The bits of an index in MIL and Core AI.


@dataclass(frozen=True, slots=True)
class Encoding:
    """An encoding of weights. kind: "pruned" stores a bit for each element, and the nonzero numbers; "integers" have a
    scale and perhaps a zero point; "blocks" are integers with a scale for each block; a "palette" has indices of a
    table, or of one table per block, and an entry may have several numbers. bits: the size of an element. It is the
    size of the dtype; for blocks 4 if all integers fit in 4 bits; for a palette the fewest bits that can number all
    entries. bytes: of all elements, without scales and tables. value: the value that the network reads; stored: the
    stored elements. masked_bits: the size of an index if the zeros of a palette are stored as a mask. A mask requires
    that entry 0 of each table is 0, that at least half of the indices are 0, and that a mask bit per element plus an
    index per nonzero element take fewer bytes."""

    kind: Kind
    bits: int
    bytes: int
    value: Value
    stored: Value
    masked_bits: int | None = None

    def decode(self) -> Value:
        """Returns a constant of the decoded numbers, without the size limit of constant folding. Returns the value
        itself if it is already a constant, or is computed at run time."""
        decoded = fold_node(self.value.node, limited=False) if self.kind in ("integers", "blocks", "palette") else None
        return self.value if decoded is None else decoded[self.value.output]


def encoding_of(value: Value) -> Encoding:
    """Returns the encoding of a constant, or of a decoding op on constants. Computed and mutable values have the kind
    "whole"."""
    if is_encoded(value.node):
        first, second = value.node.inputs[:2]
        assert first is not None
        assert second is not None
        kind = DECODERS[value.node.op]
        stored, bits = (first, first.dtype.bits) if kind == "integers" else (second, _index_bits(first.type.size))
        if kind == "blocks":
            stored, bits = first, _block_bits(first)
        if value.node.op in PALETTES:
            stored, bits = first, _index_bits(second.shape[first.type.rank])
        of_vectors = value.node.op == "decode_vectors"
        masked = _masked(stored, second if stored == first else first) if kind == "palette" and not of_vectors else None
        if masked is not None:
            return Encoding(kind, bits, masked[1], value, stored, masked[0])
        return Encoding(kind, bits, _bytes(stored, bits), value, stored)
    numbers = _numbers_kept(value)
    if numbers is not None:
        bits = value.dtype.bits
        return Encoding("pruned", bits, _bytes(value, 1) + numbers * bits // 8, value, value)
    return operand_encoding(value)


def operand_encoding(weight: Value, table: Value | None = None) -> Encoding:
    """Returns the encoding of an operand that a layer reads undecoded: of kind "palette" if the layer has a table, else
    "whole"."""
    bits = weight.dtype.bits if table is None else _index_bits(table.type.size)
    return Encoding("whole" if table is None else "palette", bits, _bytes(weight, bits), weight, weight)


def is_encoded(node: Node) -> bool:
    """True if the node decodes constants: integers with a scale, or indices of tables. Faster than encoding_of."""
    kind = DECODERS.get(node.op)
    if kind is None or any(v is not None and v.node.op != "const" for v in node.inputs):
        return False
    first, second = node.inputs[:2]
    assert first is not None
    assert second is not None
    return kind in ("integers", "blocks") or node.op in PALETTES or first.type.rank == 1 < second.type.rank


def fewest_bits(*integers: Value) -> int:
    """Returns the bits that suffice for each element of these constants, including the sign of signed dtypes."""
    result = 1
    for value in integers:
        data = value.node.data
        assert data is not None
        if data.size:
            low, high = int(data.min()), int(data.max())
            signed = value.dtype.kind == "int"
            result = max(result, max(high.bit_length(), (~low).bit_length() if low < 0 else 0) + signed)
    return result


def kept(data: NDArray[np.float16]) -> NDArray[np.bool_]:
    """Returns a mask of the nonzero elements. -0.0 counts as nonzero."""
    result: NDArray[np.bool_] = data.view(np.uint16) != 0
    return result


_four_bits: "WeakKeyDictionary[Node, bool]" = WeakKeyDictionary()


def _block_bits(integers: Value) -> int:
    """Returns 4 or 8, because a program stores bytes or half bytes."""
    node = integers.node
    if node not in _four_bits:
        _four_bits[node] = fewest_bits(integers) <= 4
    return 4 if _four_bits[node] else 8


_counts: "WeakKeyDictionary[Node, int]" = WeakKeyDictionary()


def _numbers_kept(weight: Value) -> int | None:
    """Returns the number of nonzero elements. Returns None for a weight that is not pruned: a computed one, one in
    another dtype than fp16, one with few elements, with less than half zeros, or with zeros only."""
    node = weight.node
    if node.op != "const" or node.data is None or weight.dtype is not FP16 or node.data.size < LEAST_PRUNED:
        return None
    if node not in _counts:
        _counts[node] = int(np.count_nonzero(kept(node.data)))
    count = _counts[node]
    return count if count > 0 and 2 * count <= node.data.size else None


_named: "WeakKeyDictionary[Node, tuple[int, int]]" = WeakKeyDictionary()


def _masked(indices: Value, tables: Value) -> tuple[int, int] | None:
    """Returns the bits of an index, and the bytes of mask and indices, if zeros are stored as a mask. With a mask,
    index i means entry i + 1, so n bits number 2^n nonzero entries."""
    picks, entries, count = indices.node.data, tables.node.data, tables.shape[-1]
    if picks is None or entries is None or tables.dtype not in (FP16, FP32) or picks.size < LEAST_PRUNED or count < 2:
        return None
    if entries[..., 0].view(f"u{entries.itemsize}").any():  # -0.0 counts as nonzero
        return None
    if indices.node not in _named:
        _named[indices.node] = int(np.count_nonzero(picks)), int(picks.max()) if picks.min() >= 0 else -1
    numbers, last = _named[indices.node]
    if not 0 < 2 * numbers <= picks.size or not 0 < last < count or count > 1 << PALETTE_BITS[-1]:
        return None
    dense = next(bits for bits in PALETTE_BITS if count <= 1 << bits)
    fewer = max((bits for bits in PALETTE_BITS if bits < dense), default=0)
    top = 1 << fewer  # the last entry that `fewer` bits can number if entry 0 has no index
    used = np.count_nonzero(entries.view(f"u{entries.itemsize}").reshape(-1, count), axis=0) > 0
    bits = fewer if fewer and last <= top and not used[top + 1 :].any() and (last == top or used[top]) else dense
    tables_bytes = [2 * (tables.type.size // count << n) for n in (bits, dense)]
    size = _bytes(indices, 1) + (numbers * bits + 7) // 8
    return (bits, size) if size + tables_bytes[0] < _bytes(indices, dense) + tables_bytes[1] else None


def _index_bits(entries: int) -> int:
    return max((entries - 1).bit_length(), 1)


def _bytes(elements: Value, bits: int) -> int:
    return (elements.type.size * bits + 7) // 8
