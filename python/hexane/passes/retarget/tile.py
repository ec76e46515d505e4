"""Splits ops with tensors that are too large for the chip into pieces, and joins the results."""

from collections.abc import Mapping
from itertools import pairwise
from math import ceil, prod

from hexane.graph import Node, Value
from hexane.passes.retarget.axes import Lines, lines
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.targets import Chip
from hexane.validate.constants import is_constant
from hexane.validate.extents import GATHERS, WEIGHTED, largest
from hexane.validate.rule import AXES

MOST_PIECES = 512  # more pieces take seconds to compile and run longer than the op on the host


def edges(extent: int, pieces: int) -> list[int]:
    """Returns the pieces + 1 boundaries of pieces of nearly equal size."""
    return [extent * i // pieces for i in range(pieces + 1)]


def too_many(v: Value, axis: int, chip: Chip) -> int:
    """Returns into how many pieces a tensor must be split along an axis. Returns 1 for a tensor with too many axes,
    because axes are merged first."""
    return ceil(v.shape[axis] / largest(v.type, axis, chip)) if v.type.rank <= chip.extents.rank else 1


def first_cut(pieces: Mapping[int, int]) -> tuple[int, int]:
    """Returns the first axis that must be split, and the number of pieces. The number is 1 if no axis must be split, or
    if all axes together make too many pieces."""
    if prod(pieces.values()) > MOST_PIECES:
        return 0, 1
    return next(((axis, n) for axis, n in pieces.items() if n > 1), (0, 1))


def tile(b: Writer, node: Node) -> Rewritten | None:
    """relu(%x : [1, 3, 8, 20000])  ->  concat(relu(%x[.., :10000]), relu(%x[.., 10000:]))

    Splits along an axis whose indices are computed independently. A transpose is also split if its tensor has too many
    elements. The result is exact. A tensor is split into at most MOST_PIECES pieces, over all axes together.
    """
    known = lines(node)
    needed = {i: _pieces(b, node, i, known) for i in known}
    axis, pieces = first_cut(needed)
    if max(needed.values(), default=1) == 1 and node.op == "transpose":
        axis, pieces = _elements(b, node)
    if not 1 < pieces <= MOST_PIECES:
        return None
    return Rewritten(_joined(b, node, axis, pieces, known), f"tiled: {_name(node, axis)}, {pieces} pieces")


def _pieces(b: Writer, node: Node, axis: int, known: Lines) -> int:
    pieces = too_many(node.values[0], axis, b.chip)
    for i, (v, own) in enumerate(zip(node.inputs, known[axis], strict=True)):
        if v is None or own is None:
            continue
        weights = is_constant(v.node) and node.op not in GATHERS
        if not weights and (i == 0 or node.op not in WEIGHTED):
            pieces = max(pieces, too_many(v, own, b.chip))
    return pieces


def _elements(b: Writer, node: Node) -> tuple[int, int]:
    """Returns the axis along which a transpose's result is split, and the number of pieces, so that each piece has no
    more elements than the chip transposes."""
    most, shape = b.chip.extents.transpose_elements, node.types[0].shape
    if most is None or node.types[0].size <= most:
        return 0, 1
    axis = max(range(len(shape)), key=lambda i: shape[i])
    rows = max(most // (node.types[0].size // shape[axis]), 1)
    return axis, ceil(shape[axis] / rows)


def _joined(b: Writer, node: Node, axis: int, pieces: int, known: Lines) -> tuple[Value, ...]:
    parts = []
    for start, stop in spans_of(node.types[0].shape[axis], pieces):
        inputs = [
            v if v is None or own is None else b.cut(v, own, start, stop)
            for v, own in zip(node.inputs, known[axis], strict=True)
        ]
        shape = tuple([stop - start if i == axis else d for i, d in enumerate(node.types[0].shape)])
        parts.append(b.again(node, inputs, **({"shape": shape} if node.op == "broadcast_to" else {})))
    return tuple([b.join(values, axis) for values in zip(*parts, strict=True)])


def spans_of(extent: int, pieces: int) -> list[tuple[int, int]]:
    borders = edges(extent, pieces)
    return list(pairwise(borders))


def _name(node: Node, axis: int) -> str:
    if node.op == "transpose":
        return "transpose"
    rank = node.types[0].rank
    name = AXES.get(rank, ("width",) * rank)[axis]
    return name if name in ("batch", "channels") else "spatial"


def reverse(b: Writer, node: Node) -> Rewritten | None:
    """reverse(%x : [8, 20000])  ->  concat(reverse(%x[:, 10000:]), reverse(%x[:, :10000]))"""
    (x,) = node.inputs
    assert x is not None
    axis, pieces = first_cut({a: too_many(x, a, b.chip) for a in node.attrs["axes"]})
    if pieces == 1:
        return None
    parts = [b.again(node, (b.cut(x, axis, *span),))[0] for span in spans_of(x.shape[axis], pieces)]
    return Rewritten((b.join(parts[::-1], axis),), f"tiled: {_name(node, axis)}, {pieces} pieces")


FORMS: dict[str, tuple[Form, ...]] = {"reverse": (reverse,)}
