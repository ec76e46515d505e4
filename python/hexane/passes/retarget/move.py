"""Forms of ops that move elements: slices, pads, repetitions, views."""

import numpy as np

from hexane.graph import Node, Value
from hexane.passes.retarget.strided import slice_by_reshape
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.validate.rule import made_of_factors


def slice_of_ones(b: Writer, node: Node) -> Rewritten | None:
    """slice_by_index(%x) {stride=1}  ->  slice_by_size(%x)"""
    if any(s != 1 for s in node.attrs["stride"]):
        return None
    size = node.types[0].shape
    return Rewritten(
        (b.slice_by_size(node.inputs[0], begin=node.attrs["begin"], size=size),), "written as slice_by_size"
    )


def pad_axis_by_axis(b: Writer, node: Node) -> Rewritten | None:
    """pad(%x) of outer axes, or in another mode than constant  ->  concat of %x and its margins

    A reflection is a reversed slice. Negative pads are sliced off first.
    """
    (x,) = node.inputs
    assert x is not None
    begin, end, mode = list(node.attrs["begin"]), list(node.attrs["end"]), node.attrs["mode"]
    if min((*begin, *end), default=0) < 0:
        for i, (a, z) in enumerate(zip(begin, end, strict=True)):
            x = b.cut(x, i, max(-a, 0), x.shape[i] - max(-z, 0))
        sides = {"begin": tuple([max(a, 0) for a in begin]), "end": tuple([max(z, 0) for z in end])}
        (x,) = b.again(node, (x,), **sides)
        return Rewritten((x,), "written as slices and pad")
    inner = range(x.type.rank - 2, x.type.rank) if mode == "constant" and x.type.rank > 1 else range(0)
    outer = [i for i in range(x.type.rank) if i not in inner and (begin[i] or end[i])]
    if not outer:
        return None
    if any(begin[i] or end[i] for i in inner):
        kept = {
            name: tuple([v if i in inner else 0 for i, v in enumerate(node.attrs[name])]) for name in ("begin", "end")
        }
        (x,) = b.again(node, (x,), **kept)
    for i in outer:
        margins = _margins(b, x, i, begin[i], end[i], node)
        if margins is None:
            return None
        x = b.join([m for m in (margins[0], x, margins[1]) if m is not None], i)
    return Rewritten((x,), "written as concat with the margins")


def _margins(
    b: Writer, x: Value, axis: int, before: int, after: int, node: Node
) -> tuple[Value | None, Value | None] | None:
    """Returns the margins before and after an axis, or None if a margin is longer than its source."""
    mode, extent = node.attrs["mode"], x.shape[axis]
    if mode == "constant":
        return tuple([_filled(b, x, axis, n, node.attrs["value"]) for n in (before, after)])  # type: ignore[return-value]
    if mode == "edge":
        first, last = b.cut(x, axis, 0, 1), b.cut(x, axis, extent - 1, extent)
        return tuple([copies(b, e, axis, n) if n else None for e, n in ((first, before), (last, after))])  # type: ignore[return-value]
    inside = extent - 1 if mode == "reflect" else extent
    if max(before, after) > inside:
        return None
    if mode == "wrap":
        low, high = (extent - before, extent), (0, after)
    else:
        low, high = (1, 1 + before), (extent - 1 - after, extent - 1)
    parts = [b.cut(x, axis, *span) if span[0] < span[1] else None for span in (low, high)]
    if mode == "reflect":
        parts = [None if p is None else b.reverse(p, axes=(axis,)) for p in parts]
    return parts[0], parts[1]


def _filled(b: Writer, x: Value, axis: int, count: int, value: float) -> Value | None:
    if count == 0:
        return None
    return b.const(np.full([count if i == axis else d for i, d in enumerate(x.shape)], value, x.dtype.numpy))


def copies(b: Writer, x: Value, axis: int, count: int) -> Value:
    """Returns `count` copies of x along an axis: a concat of tiles with factors that the chip supports, largest
    first."""
    parts = []
    while count > 0:
        factor = next(f for f in range(count, 0, -1) if made_of_factors(f, b.chip.extents.stride_factors))
        parts.append(x if factor == 1 else b.tile(x, reps=[factor if i == axis else 1 for i in range(x.type.rank)]))
        count -= factor
    return b.join(parts, axis)


def tile_by_concat(b: Writer, node: Node) -> Rewritten | None:
    """tile(%x) {reps=(1, 5)}  ->  concat(tile(%x) {reps=(1, 4)}, %x)"""
    (x,) = node.inputs
    assert x is not None
    reps = node.attrs["reps"]
    hard = [i for i, count in enumerate(reps) if not made_of_factors(count, b.chip.extents.stride_factors)]
    if not hard or len(reps) != x.type.rank:
        return None
    for axis in hard:
        x = copies(b, x, axis, reps[axis])
    easy = [1 if i in hard else count for i, count in enumerate(reps)]
    return Rewritten((b.tile(x, reps=easy) if max(easy) > 1 else x,), "written as concat of tiles")


def broadcast_by_tile(b: Writer, node: Node) -> Rewritten | None:
    """broadcast_to(%x : [1, 3]) {shape=(5, 3)}  ->  tile(%x) {reps=(5, 1)}"""
    (x,) = node.inputs
    assert x is not None
    shape = node.types[0].shape
    x = b.view(x, (1,) * (len(shape) - x.type.rank) + x.shape)
    reps = [most // own for own, most in zip(x.shape, shape, strict=True)]
    return Rewritten((b.tile(x, reps=reps) if max(reps, default=1) > 1 else x,), "written as tile")


def views(b: Writer, node: Node) -> Rewritten | None:
    """reshape(reshape(%x))  ->  reshape(%x): the tensor between may have more axes than the chip supports"""
    (x,) = node.inputs
    assert x is not None
    if x.node.op != "reshape":
        return None
    return Rewritten((b.view(x, node.types[0].shape),), "written as one reshape")


MOST_SLICES = 16  # for more slices, a gather on the host is faster


def gather_by_slices(b: Writer, node: Node) -> Rewritten | None:
    """gather(%x, [4, 5, 1]) {axis=0}  ->  concat(%x[4:6], %x[1:2]), for constant indices"""
    x, indices = node.inputs
    assert x is not None
    assert indices is not None
    places, axis = indices.node.data, node.attrs["axis"]
    if indices.node.op != "const" or places is None or not places.size or not x.type.size:
        return None
    spans = _spans([int(i) % x.shape[axis] for i in places.ravel()])
    if len(spans) > MOST_SLICES:
        return None
    last = axis == x.type.rank - 1 and axis > 0
    if last and b.chip.hazards.width_slice_limit is not None and any(start for start, _ in spans):
        # A slice that begins inside a row turns large numbers into infinity on this chip.
        swapped = (*range(axis - 1), axis, axis - 1)
        y = b.transpose(_joined(b, b.transpose(x, perm=swapped), axis - 1, spans), perm=swapped)
    else:
        y = _joined(b, x, axis, spans)
    return Rewritten((b.view(y, node.types[0].shape),), "written as slices")


def _spans(places: list[int]) -> list[tuple[int, int]]:
    """Returns consecutive positions as ranges: [4, 5, 1] as [(4, 6), (1, 2)]."""
    spans: list[tuple[int, int]] = []
    for place in places:
        if spans and spans[-1][1] == place:
            spans[-1] = (spans[-1][0], place + 1)
        else:
            spans.append((place, place + 1))
    return spans


def _joined(b: Writer, x: Value, axis: int, spans: list[tuple[int, int]]) -> Value:
    return b.join([b.cut(x, axis, *span) for span in spans], axis)


FORMS: dict[str, tuple[Form, ...]] = {
    "slice_by_index": (slice_of_ones, slice_by_reshape),
    "gather": (gather_by_slices,),
    "pad": (pad_axis_by_axis,),
    "tile": (tile_by_concat,),
    "reshape": (views,),
    "broadcast_to": (broadcast_by_tile,),
}
