"""Splits ops with tensors that are too large for the chip into pieces, and joins the results."""

from collections.abc import Callable, Mapping
from itertools import pairwise
from math import ceil, prod

from hexane.graph import Node, Value
from hexane.passes.retarget.axes import Lines, lines, reduced_axes
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.targets import Chip
from hexane.validate.constants import is_constant
from hexane.validate.convolution import kernel_memory
from hexane.validate.extents import GATHERS, WEIGHTED, largest
from hexane.validate.rule import AXES

MOST_PIECES = 512  # more pieces take seconds to compile and run longer than the op on the host
SUMS = "its sums are added in {} parts, each of them rounded"


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
    for start, stop in _spans(node.types[0].shape[axis], pieces):
        inputs = [
            v if v is None or own is None else b.cut(v, own, start, stop)
            for v, own in zip(node.inputs, known[axis], strict=True)
        ]
        shape = tuple([stop - start if i == axis else d for i, d in enumerate(node.types[0].shape)])
        parts.append(b.again(node, inputs, **({"shape": shape} if node.op == "broadcast_to" else {})))
    return tuple([b.join(values, axis) for values in zip(*parts, strict=True)])


def _spans(extent: int, pieces: int) -> list[tuple[int, int]]:
    borders = edges(extent, pieces)
    return list(pairwise(borders))


def _name(node: Node, axis: int) -> str:
    if node.op == "transpose":
        return "transpose"
    rank = node.types[0].rank
    name = AXES.get(rank, ("width",) * rank)[axis]
    return name if name in ("batch", "channels") else "spatial"


# ---- sums that are too long ----


def contraction(b: Writer, node: Node) -> Rewritten | None:
    """matmul(%x : [M, 40000], %y)  ->  matmul(%x[:, :20000], %y[:20000]) + matmul(%x[:, 20000:], %y[20000:])"""
    x, y, bias = node.inputs
    if x is None or y is None or x.type.rank < 2 or y.type.rank < 2:
        return None
    along = x.type.rank - (2 if node.attrs["transpose_x"] else 1), y.type.rank - (1 if node.attrs["transpose_y"] else 2)
    extent = x.shape[along[0]]
    pieces = ceil(extent / (kernel_memory(b.chip, shared=False) // 2))
    pieces = max(
        [pieces, *[too_many(v, a, b.chip) for v, a in zip((x, y), along, strict=True) if not is_constant(v.node)]]
    )
    if not 1 < pieces <= MOST_PIECES:
        return None
    total: Value | None = None
    for start, stop in _spans(extent, pieces):
        operands = b.cut(x, along[0], start, stop), b.cut(y, along[1], start, stop)
        (part,) = b.again(node, (*operands, bias if total is None else None))
        total = part if total is None else b.add(total, part)
    assert total is not None
    return Rewritten((total,), f"tiled: contraction, {pieces} pieces", SUMS.format(pieces))


def input_channels(b: Writer, node: Node) -> Rewritten | None:
    """conv(%x : [N, 70000, H, W], %w)  ->  conv(%x[:, :35000], %w[:, :35000]) + conv(%x[:, 35000:], %w[:, 35000:])

    With groups, the result is a concatenation of convolutions of some groups each, which is exact.
    """
    x, weight, bias = node.inputs
    assert x is not None
    assert weight is not None
    groups = node.attrs["groups"]
    if x.type.rank != 4 or node.attrs["layout"] != "nchw":
        return None
    pieces = max(too_many(x, 1, b.chip), too_many(node.values[0], 1, b.chip) if groups > 1 else 1)
    if not 1 < pieces <= MOST_PIECES:
        return None
    if groups > 1:
        return _groups(b, node, min(groups, pieces))
    total: Value | None = None
    for start, stop in _spans(x.shape[1], pieces):
        operands = b.cut(x, 1, start, stop), b.cut(weight, 0 if node.op == "conv_transpose" else 1, start, stop)
        (part,) = b.again(node, (*operands, bias if total is None else None))
        total = part if total is None else b.add(total, part)
    assert total is not None
    return Rewritten((total,), f"tiled: contraction, {pieces} pieces", SUMS.format(pieces))


def _groups(b: Writer, node: Node, pieces: int) -> Rewritten:
    x, weight, bias = node.inputs
    assert x is not None
    assert weight is not None
    groups, out = node.attrs["groups"], node.types[0].shape[1]
    parts = list[Value]()
    for first, last in _spans(groups, pieces):
        channels, rows, outs = ((first * n // groups, last * n // groups) for n in (x.shape[1], weight.shape[0], out))
        inputs = b.cut(x, 1, *channels), b.cut(weight, 0, *rows), None if bias is None else b.cut(bias, 0, *outs)
        parts += b.again(node, inputs, groups=last - first)
    return Rewritten((b.join(parts, 1),), f"tiled: channels, {pieces} pieces")


_JOIN = {
    "reduce_sum": "add",
    "reduce_sum_square": "add",
    "reduce_l1_norm": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
}
_AGAIN = ("reduce_l2_norm", "reduce_log_sum_exp")  # ops that are applied again to the results of the parts


def reduction(b: Writer, node: Node) -> Rewritten | None:
    """reduce_sum(%x : [8, 20000], axes=(1,))  ->  reduce_sum(%x[:, :10000]) + reduce_sum(%x[:, 10000:])"""
    (x,) = node.inputs
    assert x is not None
    axis, pieces = first_cut({a: too_many(x, a, b.chip) for a in reduced_axes(node)})
    if pieces == 1:
        return None
    how, spans = f"tiled: reduction, {pieces} pieces", _spans(x.shape[axis], pieces)
    hazard = "" if node.op in ("reduce_max", "reduce_min") else SUMS.format(pieces)
    if node.op in _AGAIN and pieces == x.shape[axis]:
        return None  # one piece for each element: the rewrite would give this node again
    if node.op in _AGAIN:
        parts = [b.again(node, (b.cut(x, axis, *span),), keep_dims=True)[0] for span in spans]
        (result,) = b.again(node, (b.join(parts, axis),))
        return Rewritten((result,), how, hazard)
    parts = [b.again(node, (b.cut(x, axis, *span),))[0] for span in spans]
    if node.op == "reduce_mean":
        parts = [b.mul(p, (stop - start) / x.shape[axis]) for p, (start, stop) in zip(parts, spans, strict=True)]
    join: Callable[..., Value] = getattr(b, _JOIN.get(node.op, "add"))
    total = parts[0]
    for part in parts[1:]:
        total = join(total, part)
    return Rewritten((total,), how, hazard)


def running_sum(b: Writer, node: Node) -> Rewritten | None:
    """cumsum(%x : [8, 20000])  ->  concat(cumsum(%x[:, :10000]), cumsum(%x[:, 10000:]) + reduce_sum(%x[:, :10000]))"""
    (x,) = node.inputs
    assert x is not None
    axis, backwards = node.attrs["axis"], node.attrs["reverse"]
    pieces = too_many(x, axis, b.chip)
    if not 1 < pieces <= MOST_PIECES:
        return None
    before: Value | None = None
    parts = []
    for span in _spans(x.shape[axis], pieces)[:: -1 if backwards else 1]:
        part = b.cut(x, axis, *span)
        (y,) = b.again(node, (part,))
        parts.append(y if before is None else b.add(y, before))
        total = b.reduce_sum(part, axes=(axis,))
        before = total if before is None else b.add(before, total)
    joined = b.join(parts[:: -1 if backwards else 1], axis)
    return Rewritten((joined,), f"tiled: running sum, {pieces} pieces", SUMS.format(pieces))


def reverse(b: Writer, node: Node) -> Rewritten | None:
    """reverse(%x : [8, 20000])  ->  concat(reverse(%x[:, 10000:]), reverse(%x[:, :10000]))"""
    (x,) = node.inputs
    assert x is not None
    axis, pieces = first_cut({a: too_many(x, a, b.chip) for a in node.attrs["axes"]})
    if pieces == 1:
        return None
    parts = [b.again(node, (b.cut(x, axis, *span),))[0] for span in _spans(x.shape[axis], pieces)]
    return Rewritten((b.join(parts[::-1], axis),), f"tiled: {_name(node, axis)}, {pieces} pieces")


FORMS: dict[str, tuple[Form, ...]] = {
    "cumsum": (running_sum,),
    "reverse": (reverse,),
    "matmul": (contraction,),
    "conv": (input_channels,),
    "conv_transpose": (input_channels,),
    **dict.fromkeys((*_JOIN, *_AGAIN, "reduce_mean"), (reduction,)),
}
