"""Chains of transposes and reshapes as one strided view, and the chains of at most four moves that compute it.

A chain reads its source's elements in another order. The order is a loop nest over the source, described by its parts:
one (stride in the source, extent) per loop, the outermost first.

    [1, 64, 1, 32] -> reshape [1, 4, 16, 32] -> transpose (0, 1, 3, 2)      parts (512, 4) (1, 32) (32, 16)

Adjacent loops that together step evenly through the source are merged, so equal orders have equal parts.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod

from hexane.passes.engine.moves import Shape, Step, shape_behind

Parts = tuple[tuple[int, int], ...]
CHANNELS_LAST = (0, 2, 3, 1)


@lru_cache(maxsize=1 << 14)
def parts_of(shape: Shape, steps: tuple[Step, ...]) -> Parts | None:
    """Returns the order of the elements after these steps, or None if a transpose moves an axis that is not a sequence
    of whole parts."""
    parts = _merged([(1, prod(shape))])
    for kind, values in steps:
        if kind == "reshape":
            shape = values
            continue
        axes = _by_axis(parts, shape)
        if axes is None:
            return None
        parts = _merged([part for p in values for part in axes[p]])
        shape = tuple(shape[p] for p in values)
    return parts


def _merged(parts: Sequence[tuple[int, int]]) -> Parts:
    """Removes loops of extent 1 and merges adjacent loops that step evenly."""
    merged: list[tuple[int, int]] = []
    for stride, extent in parts:
        if extent == 1:
            continue
        if merged and merged[-1][0] == stride * extent:
            merged[-1] = (stride, merged[-1][1] * extent)
        else:
            merged.append((stride, extent))
    return tuple(merged)


def _by_axis(parts: Parts, shape: Shape) -> list[list[tuple[int, int]]] | None:
    """Returns the parts of each axis, splitting parts at the boundaries of axes. Returns None if a boundary does not
    divide a part."""
    rest, axes = list(reversed(parts)), list[list[tuple[int, int]]]()
    for extent in shape:
        axes.append([])
        while extent > 1:
            stride, size = rest.pop()
            if size <= extent:
                if extent % size:
                    return None
                axes[-1].append((stride, size))
                extent //= size
            else:
                if size % extent:
                    return None
                axes[-1].append((stride * (size // extent), extent))
                rest.append((stride, size // extent))
                extent = 1
    return axes


@lru_cache(maxsize=1 << 14)
def reorders(source: Shape, parts: Parts, shape: Shape) -> tuple[tuple[Step, ...], ...]:
    if len(parts) < 2:
        return ((() if source == shape else (("reshape", shape),)),)
    candidates = [*_at_once(source, parts, shape)]
    if len(source) == 4 and len(parts) > 3:
        # The layer before may write channels last in its slot; then only whole rows have to be moved.
        moved, inverse = tuple(source[p] for p in CHANNELS_LAST), tuple(CHANNELS_LAST.index(i) for i in range(4))
        rest = parts_of(moved, (("transpose", inverse), *_between(parts, shape)))
        if rest is not None and len(rest) > 1:
            candidates += [(("transpose", CHANNELS_LAST), *way) for way in _at_once(moved, rest, shape)]
    if len(shape) > 2 and len(parts) > 2:
        # A product that reads the result may exchange rows and columns itself. The remaining transpose may fit the slot
        # of the layer before.
        last: Step = ("transpose", (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        swapped = shape_behind(shape, [last])
        rest = parts_of(source, (*_between(parts, shape), last))
        if rest is not None and len(rest) > 1:
            candidates += [(*way, last) for way in _at_once(source, rest, swapped)]
    return tuple(dict.fromkeys(candidates))


def _at_once(source: Shape, parts: Parts, shape: Shape) -> Iterator[tuple[Step, ...]]:
    """Yields the chains that have a single transpose."""
    for way in (_transpose_first(source, parts, shape), _reshape_first(source, parts, shape)):
        if way is not None:
            yield way
    yield _between(parts, shape)
    yield _between(_with_rows(source, parts, shape), shape)


def _transpose_first(source: Shape, parts: Parts, shape: Shape) -> tuple[Step, ...] | None:
    """Returns a transpose, and a reshape after it if needed, or None if a part is not a sequence of whole axes of the
    source."""
    axes = [i for i, extent in enumerate(source) if extent > 1]
    strides = {prod(source[i + 1 :]): i for i in axes}
    order: list[int] = []
    for stride, extent in parts:
        run = list[int]()
        while extent > 1:
            axis = strides.get(stride)
            if axis is None or extent % source[axis]:
                return None
            run.insert(0, axis)
            stride, extent = stride * source[axis], extent // source[axis]
        order += run
    units = iter([i for i, extent in enumerate(source) if extent == 1])
    moved = iter(order)
    wanted = [extent for extent in shape if extent > 1]
    if len(shape) == len(source) and [source[i] for i in order] == wanted:
        perm = tuple(next(units) if extent == 1 else next(moved) for extent in shape)
        return (("transpose", perm),)
    perm = tuple(i if extent == 1 else next(moved) for i, extent in enumerate(source))
    return (("transpose", perm), ("reshape", shape))


def _reshape_first(source: Shape, parts: Parts, shape: Shape) -> tuple[Step, ...] | None:
    """Returns a transpose, and a reshape before it if needed, or None if an axis of the result spans several parts."""
    axes = _by_axis(parts, shape)
    if axes is None or any(len(axis) > 1 for axis in axes):
        return None
    by_stride = sorted((i for i, extent in enumerate(shape) if extent > 1), key=lambda i: -axes[i][0][0])
    lying = iter(by_stride)
    order = [i if extent == 1 else next(lying) for i, extent in enumerate(shape)]
    before, perm = tuple(shape[i] for i in order), tuple(order.index(i) for i in range(len(shape)))
    return (("transpose", perm),) if before == source else (("reshape", before), ("transpose", perm))


def _between(parts: Parts, shape: Shape) -> tuple[Step, ...]:
    """Returns a transpose whose axes are the parts, between two reshapes."""
    ones = (1,) * (4 - len(parts))
    lying = sorted(parts, reverse=True)
    perm = tuple(range(len(ones))) + tuple(len(ones) + lying.index(part) for part in parts)
    return (("reshape", ones + tuple(n for _, n in lying)), ("transpose", perm), ("reshape", shape))


def _with_rows(source: Shape, parts: Parts, shape: Shape) -> Parts:
    """Splits the parts so that the rows of the source and of the result are parts: the reshapes then keep the rows.

    windows: [1, 16, 16, 32] -> [4, 4, 4, 128] -> (0, 2, 1, 3)     as [4, 4, 4, 4, 32] -> (0, 2, 1, 3, 4)
    """
    inner = min(parts)  # the part of stride 1
    halves = [half for part in parts for half in (_cut(part, source[-1]) if part == inner else (part,))]
    return (*halves[:-1], *_cut(halves[-1], shape[-1]))


def _cut(part: tuple[int, int], row: int) -> Parts:
    stride, extent = part
    return ((stride * row, extent // row), (stride, row)) if 1 < row < extent and extent % row == 0 else (part,)
