"""Chains of transposes and reshapes as one strided view, and the fewest layers that compute it.

A chain reads its source's elements in another order. Its parts are the loops of that order, the outermost first, each
(stride in the source, extent):

    [1, 64, 1, 32] -> reshape [1, 4, 16, 32] -> transpose (0, 1, 3, 2)      parts (512, 4) (1, 32) (32, 16)

Parts that go on where the next one ends are one, so equal orders have equal parts.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Literal

from hexane.graph import Node, TensorType, Value, tensor_type
from hexane.ops import OPS, apply
from hexane.ops.records.engine.calls import as_fp16
from hexane.ops.records.engine.mac import SDPA_OPERANDS
from hexane.passes.engine.chain import refused_reshape, takes
from hexane.passes.engine.legalize.split_transposes import is_valid_ne_transpose_configuration
from hexane.targets import Chip
from hexane.validate import validate
from hexane.validate.extents import fits
from hexane.validate.verdict_cache import cache_of

READ_TRANSPOSED = {  # the flags of operands whose rows and columns a layer exchanges by itself
    "anec.matmul": ("transpose_lhs", "transpose_rhs"),
    "anec.sdpa": SDPA_OPERANDS,
}
Shape = tuple[int, ...]
Step = tuple[Literal["reshape", "transpose"], Shape]  # to a shape, or by a permutation
Parts = tuple[tuple[int, int], ...]
MOST_KNOWN = 1 << 15
IN_SLOT = 0.25  # of a layer: a transpose that the layer in front does. No time is known of it; none at all is better.
_known: dict[tuple[int, TensorType, Step], TensorType | None] = {}  # what steps make
MOVES = ("anec.transpose", "anec.reshape")
CHANNELS_LAST = (0, 2, 3, 1)


def step_of(node: Node) -> Step:
    return ("transpose", node.attrs["perm"]) if node.op == "anec.transpose" else ("reshape", tuple(node.types[0].shape))


def traced(value: Value, more: Sequence[Step] = ()) -> tuple[Value, list[Step]]:
    """(source, steps): the chain of moves that ends in the value, extended by these steps. It starts at the farthest
    value that `parts_of` still describes."""
    steps, result = list(more), (value, list(more))
    while value.node.op in MOVES and value.node.inputs[0] is not None:
        steps.insert(0, step_of(value.node))
        value = value.node.inputs[0]
        if parts_of(value.shape, tuple(steps)) is None:
            break
        result = (value, list(steps))
    return result


@lru_cache(maxsize=1 << 14)
def parts_of(shape: Shape, steps: tuple[Step, ...]) -> Parts | None:
    """The order of the elements after these steps; None if a moved axis is not a run of parts."""
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
    """Without parts of one element, and with neighbours that go on as one."""
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
    """The parts of each axis, cut where axes begin; None where that is inside a part and does not divide it."""
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


def ways(source: TensorType, steps: Sequence[Step], chip: Chip) -> list[tuple[Step, ...]]:
    """The chains of at most four moves that read the source in this order and that the chip takes. A reshape may come
    before or after the transpose. A transpose that puts channels last may precede both, or a transpose that exchanges
    rows and columns may follow both. Empty where there is none."""
    shape = shape_behind(tuple(source.shape), steps)
    parts = parts_of(tuple(source.shape), tuple(steps))
    if parts is None or 0 in shape:
        return []
    return [way for way in _ways(tuple(source.shape), parts, shape) if _is_legal(source, way, chip)]


def shape_behind(shape: Shape, steps: Sequence[Step]) -> Shape:
    for kind, values in steps:
        shape = values if kind == "reshape" else tuple(shape[p] for p in values)
    return shape


def is_layer(step: Step, shape: Shape) -> bool:
    """True if the step runs a layer on this shape; a reshape that keeps the rows does not."""
    return step[0] == "transpose" or not keeps_rows(shape, step[1])


def keeps_rows(before: Shape, after: Shape) -> bool:
    """True if both shapes have the same rows (the last axis) in the same order. A layer reads such a tensor under the
    other shape: engines are told the strides of channels and heights."""
    return (tuple(before) or (1,))[-1] == (tuple(after) or (1,))[-1]


@lru_cache(maxsize=1 << 14)
def _ways(source: Shape, parts: Parts, shape: Shape) -> tuple[tuple[Step, ...], ...]:
    if len(parts) < 2:
        return ((() if source == shape else (("reshape", shape),)),)
    candidates = [*_at_once(source, parts, shape)]
    if len(source) == 4 and len(parts) > 3:
        # The layer in front may write channels last in its slot, which leaves whole rows to move.
        moved, inverse = tuple(source[p] for p in CHANNELS_LAST), tuple(CHANNELS_LAST.index(i) for i in range(4))
        rest = parts_of(moved, (("transpose", inverse), *_between(parts, shape)))
        if rest is not None and len(rest) > 1:
            candidates += [(("transpose", CHANNELS_LAST), *way) for way in _at_once(moved, rest, shape)]
    if len(shape) > 2 and len(parts) > 2:
        # A product that reads the result may exchange rows and columns itself; the rest is left to the slot of the
        # layer in front.
        last: Step = ("transpose", (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2))
        swapped = shape_behind(shape, [last])
        rest = parts_of(source, (*_between(parts, shape), last))
        if rest is not None and len(rest) > 1:
            candidates += [(*way, last) for way in _at_once(source, rest, swapped)]
    return tuple(dict.fromkeys(candidates))


def _at_once(source: Shape, parts: Parts, shape: Shape) -> Iterator[tuple[Step, ...]]:
    """The chains of one transpose."""
    for way in (_transpose_first(source, parts, shape), _reshape_first(source, parts, shape)):
        if way is not None:
            yield way
    yield _between(parts, shape)
    yield _between(_with_rows(source, parts, shape), shape)


def _transpose_first(source: Shape, parts: Parts, shape: Shape) -> tuple[Step, ...] | None:
    """Where the parts are whole axes of the source."""
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
    """Where every axis of the result is within one part."""
    axes = _by_axis(parts, shape)
    if axes is None or any(len(axis) > 1 for axis in axes):
        return None
    by_stride = sorted((i for i, extent in enumerate(shape) if extent > 1), key=lambda i: -axes[i][0][0])
    lying = iter(by_stride)
    order = [i if extent == 1 else next(lying) for i, extent in enumerate(shape)]
    before, perm = tuple(shape[i] for i in order), tuple(order.index(i) for i in range(len(shape)))
    return (("transpose", perm),) if before == source else (("reshape", before), ("transpose", perm))


def _between(parts: Parts, shape: Shape) -> tuple[Step, ...]:
    """A transpose of the parts themselves, between two reshapes."""
    ones = (1,) * (4 - len(parts))
    lying = sorted(parts, reverse=True)
    perm = tuple(range(len(ones))) + tuple(len(ones) + lying.index(part) for part in parts)
    return (("reshape", ones + tuple(n for _, n in lying)), ("transpose", perm), ("reshape", shape))


def _with_rows(source: Shape, parts: Parts, shape: Shape) -> Parts:
    """The parts with rows of the source, and of the result, as parts of their own: the reshapes keep them then.

    windows: [1, 16, 16, 32] -> [4, 4, 4, 128] -> (0, 2, 1, 3)     as [4, 4, 4, 4, 32] -> (0, 2, 1, 3, 4)
    """
    inner = min(parts)  # of stride 1
    halves = [half for part in parts for half in (_cut(part, source[-1]) if part == inner else (part,))]
    return (*halves[:-1], *_cut(halves[-1], shape[-1]))


def _cut(part: tuple[int, int], row: int) -> Parts:
    stride, extent = part
    return ((stride * row, extent // row), (stride, row)) if 1 < row < extent and extent % row == 0 else (part,)


def _is_legal(source: TensorType, way: Sequence[Step], chip: Chip) -> bool:
    rules = id(cache_of(chip))  # of chips whose rules are the same; it lives as long as the process
    for step in way:
        key = (rules, source, step)
        taken = _known.get(key, source)
        if taken is source:
            if len(_known) >= MOST_KNOWN:
                _known.clear()
            taken = _known[key] = _taken(source, step, chip)
        if taken is None:
            return False
        source = taken
    return True


def _taken(source: TensorType, step: Step, chip: Chip) -> TensorType | None:
    """The type after the step; None if the chip refuses the step."""
    kind, values = step
    if kind == "reshape":
        result = tensor_type(source.dtype, values)
        refused = bool(refused_reshape(source, values, chip))
    else:
        result = tensor_type(source.dtype, tuple(source.shape[p] for p in values))
        refused = not is_valid_ne_transpose_configuration(source, values, chip)
        refused = refused or bool(validate("Transpose", (as_fp16(source),), {"perm": values}, chip, as_fp16(result)))
    return None if refused or not fits(result, chip) else result


def swaps_rows(step: Step) -> bool:
    """True if the step exchanges the last two axes, which a product can do as it reads."""
    kind, perm = step
    rank = len(perm)
    return kind == "transpose" and perm == (*range(rank - 2), rank - 1, rank - 2)


def writes(node: Node, step: Step) -> bool:
    """True if the layer itself can write its result transposed, given that nothing else reads it."""
    return step[0] == "transpose" and (takes(node, "transpose") or (node.op == "anec.sdpa" and swaps_rows(step)))


def reads(nodes: Sequence[Node], value: Value) -> bool:
    """True if every reader of the value can exchange its rows and columns as it reads."""
    return bool(nodes) and all(
        node.op in READ_TRANSPOSED and value not in node.inputs[len(READ_TRANSPOSED[node.op]) :] for node in nodes
    )


def layers_of(way: Sequence[Step], shape: Shape, source: Node | None, for_product: bool) -> float:
    """The number of layers in a chain that starts from this shape. source: the layer before it, if nothing else reads
    it; it may transpose its result for a fraction of a layer. for_product: the readers exchange rows and columns
    themselves."""
    count = 0.0
    for i, step in enumerate(way):
        if step[0] == "transpose":
            first, last = i == 0 and source is not None and writes(source, step), i == len(way) - 1 and for_product
            count += 0 if last and swaps_rows(step) else IN_SLOT if first else 1
        else:
            count += is_layer(step, shape)
        shape = shape_behind(shape, [step])
    return count


def written(source: Value, way: Sequence[Step], sources: tuple[str, ...]) -> Value:
    for kind, values in way:
        attrs = {"shape": values} if kind == "reshape" else {"perm": values}
        source = apply(OPS[f"anec.{kind}"], [source], attrs, sources)[0]
    return source


def chain_nodes(value: Value, source: Value, alone: Callable[[Value], bool]) -> Iterator[Node]:
    """The moves from the value back that would be gone with it: up to the source, or to one that others read."""
    first = True
    while value != source and (first or alone(value)):
        yield value.node
        first = False
        assert value.node.inputs[0] is not None
        value = value.node.inputs[0]
