"""Moves or slices the elements of an encoded constant without decoding it: moves its integers or indices, and the
scales or tables of its blocks."""

from collections.abc import Sequence
from math import prod

import numpy as np

from hexane.graph import Array, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import PALETTES, is_encoded

MOVES = ("transpose", "reshape", "expand_dims", "squeeze")
_SLICES = ("slice_by_size", "slice_by_index")


def moved(node: Node) -> Value | None:
    """transpose(decode_palette(const, const))  ->  decode_palette(const, const)

    Returns the result of this node as an encoded constant, bit for bit. Returns None if the node is no move or slice of
    an encoded constant, or if its result cannot be stored in blocks.
    """
    source = node.inputs[0] if node.inputs else None
    if node.op not in (*MOVES, *_SLICES) or source is None or not is_encoded(source.node):
        return None
    if node.op in _SLICES:
        return _sliced(source.node, node)
    if node.op == "transpose":
        return _transposed(source.node, [int(i) for i in node.attrs["perm"]])
    return _reshaped(source.node, node.types[0].shape)


def _transposed(stored: Node, perm: list[int]) -> Value | None:
    first, second = (_data(stored, i) for i in (0, 1))
    if stored.op == "gather":
        return _made(stored, [first, second.transpose(perm)])
    if stored.op == "decode_palette":
        return _made(stored, [first.transpose(perm), second.transpose((*perm, len(perm)))])
    if stored.op == "decode_scaled_palette":
        of_tables = (*perm, len(perm))
        return _made(
            stored, [first.transpose(perm), second.transpose(of_tables), _data(stored, 2).transpose(of_tables)]
        )
    if stored.op == "decode_vectors":
        tables = second.transpose((*perm, len(perm), len(perm) + 1))
        return _made(stored, [first.transpose(perm), tables], perm.index(int(stored.attrs["axis"])))
    if stored.op == "decode_blocks":
        return _made(stored, [first.transpose(perm), second.transpose(perm)])
    if stored.op == "dequantize":
        return _made(stored, [first.transpose(perm)], perm.index(int(stored.attrs["axis"])) if second.ndim else 0)
    return None


def _reshaped(stored: Node, shape: tuple[int, ...]) -> Value | None:
    first, second = (_data(stored, i) for i in (0, 1))
    if stored.op == "gather":
        return _made(stored, [first, second.reshape(shape)]) if len(shape) > 1 else None
    if stored.op == "dequantize":
        axis = _same_axis(first.shape, shape, int(stored.attrs["axis"])) if second.ndim else 0
        return None if axis is None else _made(stored, [first.reshape(shape)], axis)
    if stored.op not in (*PALETTES, "decode_blocks"):
        return None
    before = stored.types[0].shape
    if [d for d in before if d != 1] != [d for d in shape if d != 1]:
        return None
    # The reshape only adds and removes axes of extent 1, which have one block.
    several = iter([count for d, count in zip(before, second.shape, strict=False) if d != 1])
    blocks = [1 if d == 1 else next(several) for d in shape]
    scales = second.reshape((*blocks, *second.shape[first.ndim :]))
    if stored.op == "decode_scaled_palette":
        return _made(stored, [first.reshape(shape), scales, _data(stored, 2).reshape((*blocks, 1))])
    if stored.op != "decode_vectors":
        return _made(stored, [first.reshape(shape), scales])
    axis = _same_axis(before, shape, int(stored.attrs["axis"]))
    if axis is None:
        return None
    picks = [d // second.shape[-1] if i == axis else d for i, d in enumerate(shape)]
    return _made(stored, [first.reshape(picks), scales], axis)


def _sliced(stored: Node, node: Node) -> Value | None:
    first, second = (_data(stored, i) for i in (0, 1))
    spans, shape = _spans(node), stored.types[0].shape
    if spans is None:
        return None
    parts = tuple([slice(*span) for span in spans])
    if stored.op == "gather":
        return _made(stored, [first, second[parts]])
    if stored.op == "dequantize":
        axis = int(stored.attrs["axis"])
        numbers = [_data(stored, i) for i, v in enumerate(stored.inputs) if i and v is not None]
        return _made(stored, [first[parts], *[n[parts[axis]] if n.ndim else n for n in numbers]])
    if stored.op not in (*PALETTES, "decode_blocks"):
        return None
    blocks = [_blocks(n, count, *span) for n, count, span in zip(shape, second.shape, spans, strict=False)]
    if stored.op == "decode_vectors":
        size, along = second.shape[-1], int(stored.attrs["axis"])
        if any(end % size for end in spans[along]):
            return None
        parts = tuple([slice(p.start // size, p.stop // size) if i == along else p for i, p in enumerate(parts)])
    kept = tuple([b for b in blocks if b is not None])
    if len(kept) < len(shape):
        return None
    numbers = [second[kept], *([_data(stored, 2)[kept]] if stored.op == "decode_scaled_palette" else [])]
    return _made(stored, [first[parts], *numbers])


def _spans(node: Node) -> list[tuple[int, int]] | None:
    """Returns the first and the end position of each axis of a slice, or None for a slice with strides."""
    x, attrs = node.inputs[0], node.attrs
    assert x is not None
    sizes, strides = node.types[0].shape, attrs.get("stride") or (1,)
    if any(step != 1 for step in strides) or len(sizes) != x.type.rank or 0 in sizes or len(node.inputs) > 1:
        return None
    begins = [slice(begin, None).indices(n)[0] for begin, n in zip(attrs["begin"], x.shape, strict=True)]
    return [(begin, begin + size) for begin, size in zip(begins, sizes, strict=True)]


def _blocks(extent: int, count: int, begin: int, end: int) -> slice | None:
    """Returns the blocks of an axis that cover a range. Returns None if the range cuts one block of several."""
    size = extent // count
    first, last = begin // size, -(-end // size)
    is_whole = begin % size == end % size == 0
    return slice(first, last) if is_whole or last - first == 1 else None


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """Returns the index of an axis after a reshape that does not split or merge it, else None."""
    for i, extent in enumerate(after):
        if extent == before[axis] and prod(after[:i]) == prod(before[:axis]):
            return i
    return None


def _data(stored: Node, index: int) -> Array:
    value = stored.inputs[index]
    assert value is not None
    assert value.node.data is not None
    return value.node.data


def _made(stored: Node, arrays: Sequence[Array], axis: int | None = None) -> Value | None:
    """Returns the node with its first constants replaced, each in its dtype."""
    operands = list(stored.inputs)
    for i, array in enumerate(arrays):
        old = operands[i]
        assert old is not None
        if array is not old.node.data:
            operands[i] = constant(np.ascontiguousarray(array), old.node.sources, old.dtype)
    attrs = dict(stored.attrs) if axis is None else {**stored.attrs, "axis": axis}
    result = apply(OPS[stored.op], operands, attrs, stored.sources)[0]
    return result if is_encoded(result.node) else None
