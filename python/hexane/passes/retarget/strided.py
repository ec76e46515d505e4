"""Slices with a step, written as views."""

from contextlib import suppress
from math import prod

from hexane.graph import Node, Value
from hexane.passes.retarget.writer import Rewritten, Stuck, Writer


def slice_by_reshape(b: Writer, node: Node) -> Rewritten | None:
    """slice_by_index(%x : [N, 12]) {stride=3}  ->  one column of %x as [N, 4, 3]

    If the last group of elements is short, its element is sliced separately.
    """
    (x,) = node.inputs
    assert x is not None
    begin, stride, counts = list(node.attrs["begin"]), node.attrs["stride"], node.types[0].shape
    if 0 in counts or all(s == 1 for s in stride):
        return None
    # Groups begin at multiples of the stride if the axis has enough elements, so that every group is whole.
    phase = [a % s if a - a % s + n * s <= d else 0 for n, s, d, a in zip(counts, stride, x.shape, begin, strict=True)]
    begin = [a - p for a, p in zip(begin, phase, strict=True)]
    reach = [min(n * s, d - a) for n, s, d, a in zip(counts, stride, x.shape, begin, strict=True)]
    if reach != list(x.shape):
        x = b.slice_by_size(x, begin=begin, size=reach)
    for axis, step in enumerate(stride):
        if step > 1:
            x = _every(b, x, axis, step, counts[axis], phase[axis])
    return Rewritten((x,), "written as reshape and slice_by_size")


def _every(b: Writer, x: Value, axis: int, step: int, count: int, phase: int) -> Value:
    """Returns `count` elements along an axis, `step` apart, from index `phase` on."""
    if x.shape[axis] < count * step:
        last = (count - 1) * step  # the phase of a short group is 0
        one = b.cut(x, axis, last, last + 1)
        if count == 1:
            return one
        return b.join([_every(b, b.cut(x, axis, 0, last), axis, step, count - 1, 0), one], axis)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    if not after:
        rows = b.view(x, (prod(before) * count, step))
        return b.view(b.cut(rows, 1, phase, phase + 1), (*before, count))
    if len(after) == 1:
        with suppress(Stuck):  # an axis for the steps keeps the rows whole: no element moves
            return _every_row(b, x, axis, step, count, phase)
    rows = b.view(x, (*before, count, step * after[0], *after[1:]))
    return b.cut(rows, axis + 1, phase * after[0], (phase + 1) * after[0])


def _every_row(b: Writer, x: Value, axis: int, step: int, count: int, phase: int) -> Value:
    before = x.shape[:axis]
    lead = before if x.type.rank < b.chip.extents.rank else (prod(before),)
    steps = b.view(x, (*lead, count, step, x.shape[-1]))
    at = len(lead) + 1
    return b.view(b.cut(steps, at, phase, phase + 1), (*before, count, x.shape[-1]))
