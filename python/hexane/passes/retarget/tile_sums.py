"""Splits sums that are too long for the chip into parts, and adds the parts."""

from collections.abc import Callable
from math import ceil

from hexane.graph import Node, Value
from hexane.passes.retarget.axes import reduced_axes
from hexane.passes.retarget.tile import MOST_PIECES, first_cut, spans_of, too_many
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.validate.constants import is_constant
from hexane.validate.convolution import kernel_memory

SUMS = "its sums are added in {} parts, each of them rounded"
_JOIN = {
    "reduce_sum": "add",
    "reduce_sum_square": "add",
    "reduce_l1_norm": "add",
    "reduce_max": "maximum",
    "reduce_min": "minimum",
}
_AGAIN = ("reduce_l2_norm", "reduce_log_sum_exp")  # ops that are applied again to the results of the parts


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
    for start, stop in spans_of(extent, pieces):
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
    for start, stop in spans_of(x.shape[1], pieces):
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
    for first, last in spans_of(groups, pieces):
        channels, rows, outs = ((first * n // groups, last * n // groups) for n in (x.shape[1], weight.shape[0], out))
        inputs = b.cut(x, 1, *channels), b.cut(weight, 0, *rows), None if bias is None else b.cut(bias, 0, *outs)
        parts += b.again(node, inputs, groups=last - first)
    return Rewritten((b.join(parts, 1),), f"tiled: channels, {pieces} pieces")


def reduction(b: Writer, node: Node) -> Rewritten | None:
    """reduce_sum(%x : [8, 20000], axes=(1,))  ->  reduce_sum(%x[:, :10000]) + reduce_sum(%x[:, 10000:])"""
    (x,) = node.inputs
    assert x is not None
    axis, pieces = first_cut({a: too_many(x, a, b.chip) for a in reduced_axes(node)})
    if pieces == 1:
        return None
    how, spans = f"tiled: reduction, {pieces} pieces", spans_of(x.shape[axis], pieces)
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
    for span in spans_of(x.shape[axis], pieces)[:: -1 if backwards else 1]:
        part = b.cut(x, axis, *span)
        (y,) = b.again(node, (part,))
        parts.append(y if before is None else b.add(y, before))
        total = b.reduce_sum(part, axes=(axis,))
        before = total if before is None else b.add(before, total)
    joined = b.join(parts[:: -1 if backwards else 1], axis)
    return Rewritten((joined,), f"tiled: running sum, {pieces} pieces", SUMS.format(pieces))


FORMS: dict[str, tuple[Form, ...]] = {
    "cumsum": (running_sum,),
    "matmul": (contraction,),
    "conv": (input_channels,),
    "conv_transpose": (input_channels,),
    **dict.fromkeys((*_JOIN, *_AGAIN, "reduce_mean"), (reduction,)),
}
