"""Splits transposes that exceed the chip's limits."""

from math import prod

from hexane.graph import Graph, Node, TensorType, Value
from hexane.graph.decisions import Decision
from hexane.passes.engine.legalize.slots import layer, view
from hexane.targets import Chip
from hexane.validate.rule import dims


def is_valid_ne_transpose_configuration(kind: TensorType, perm: tuple[int, ...], chip: Chip) -> bool:
    """True if the chip can transpose a tensor of this type in one layer: at most five axes, height and width within
    fields 0x468 and 0x470 (guide ch35), and no more elements than have been observed to work. The compiler also checks
    that extents are divisible by numbers that are not published."""
    e = chip.extents
    if kind.rank > e.rank:
        return False
    before, after = dims(kind.shape), dims(tuple(kind.shape[p] for p in perm))
    if max(before.height, after.height) > e.transpose_height or max(before.width, after.width) > e.transpose_width:
        return False
    return e.transpose_elements is None or prod(kind.shape) <= e.transpose_elements


def split_transposes(graph: Graph, chip: Chip) -> Graph:
    """anec.transpose(%x) : rank 6  ->  anec.reshape(anec.transpose(anec.reshape(%x)))

    Axes that stay adjacent are merged. If more axes than the chip supports remain, several transposes each move one
    group of axes. A tensor that is too large for one transpose is split into pieces, which are transposed and
    concatenated.
    """
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0]
        if x is None or is_valid_ne_transpose_configuration(x.type, node.attrs["perm"], chip):
            return None
        result = (
            _in_passes(x, node.attrs["perm"], node, chip)
            if x.type.rank > chip.extents.rank
            else _in_pieces(x, node.attrs["perm"], node, chip)
        )
        if result is not None:
            decisions.append(
                Decision(
                    "split_transposes",
                    node.where,
                    "split",
                    f"{x.type} in several passes or pieces",
                    "guide ch35, fields 0x468 and 0x470",
                )
            )
        return None if result is None else (result,)

    return graph.rewrite(change, ("anec.transpose",)).decided(*decisions)


def _in_passes(x: Value, perm: tuple[int, ...], node: Node, chip: Chip) -> Value:
    """Merges axes that stay adjacent into groups. If there are too many groups for one transpose, several transposes
    each move one group to its final position."""
    groups: list[list[int]] = []
    for p in perm:
        if groups and p == groups[-1][-1] + 1:
            groups[-1].append(p)
        else:
            groups.append([p])
    order = sorted(groups)  # groups in the order of x's axes
    extent = {g[0]: prod(x.shape[i] for i in g) for g in groups}
    lying, wanted = [g[0] for g in order], [g[0] for g in groups]
    y = x
    if len(lying) <= chip.extents.rank:
        y = layer("reshape", [y], node.sources, shape=tuple(extent[g] for g in lying))
        y = _legal(y, tuple(lying.index(g) for g in wanted), node, chip)
    else:
        for i, g in enumerate(wanted):
            at = lying.index(g)
            if at == i:
                continue
            outer, passed, inner = (prod(extent[h] for h in part) for part in (lying[:i], lying[i:at], lying[at + 1 :]))
            y = layer("reshape", [y], node.sources, shape=(outer, passed, extent[g], inner))
            y = _legal(y, (0, 2, 1, 3), node, chip)
            lying.insert(i, lying.pop(at))
    return layer("reshape", [y], node.sources, shape=node.types[0].shape)


def _legal(x: Value, perm: tuple[int, ...], node: Node, chip: Chip) -> Value:
    pieces = None if is_valid_ne_transpose_configuration(x.type, perm, chip) else _in_pieces(x, perm, node, chip)
    return pieces if pieces is not None else layer("transpose", [x], node.sources, perm=perm)


def _in_pieces(x: Value, perm: tuple[int, ...], node: Node, chip: Chip) -> Value | None:
    """Splits x into halves along its longest axis until the chip can transpose each piece. Returns None if even a
    single index of the axis is too large."""
    axis = max(range(x.type.rank), key=lambda i: x.shape[i])
    extent = x.shape[axis]
    if extent < 2:
        return None
    halves = []
    for begin, end in ((0, extent // 2), (extent // 2, extent)):
        part = view(x, axis, begin, end, node.sources)
        valid = is_valid_ne_transpose_configuration(part.type, perm, chip)
        half = layer("transpose", [part], node.sources, perm=perm) if valid else _in_pieces(part, perm, node, chip)
        if half is None:
            return None
        halves.append(half)
    return layer("concat", halves, node.sources, axis=perm.index(axis))
