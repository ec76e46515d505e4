"""Forms of ops with more axes than the chip supports: adjacent axes are merged, transposes done in two steps."""

from itertools import pairwise
from math import prod

from hexane.graph import Node, TensorType, Value
from hexane.passes.retarget.axes import ELEMENTWISE, lines, reduced_axes
from hexane.passes.retarget.view_chains import folded
from hexane.passes.retarget.writer import Form, Rewritten, Writer

REDUCTIONS = frozenset(f"reduce_{name}" for name in ("sum", "mean", "max", "min", "sum_square", "l1_norm", "l2_norm"))
REDUCTIONS |= {"reduce_log_sum", "reduce_log_sum_exp"}
# Ops whose inputs broadcast to the result, each with the attributes that name axes or have one number per axis.
ALIGNED = {
    **dict.fromkeys(ELEMENTWISE, ()),
    **dict.fromkeys(("softmax", "log_softmax", "cumsum", "argsort", "topk", "concat", "lp_norm"), ("axis",)),
    **dict.fromkeys(("layer_norm", "rms_norm", "l2_norm", "mean_variance_norm", "reverse"), ("axes",)),
    **dict.fromkeys(REDUCTIONS, ("axes",)),
    "pad": ("begin", "end"),
    "matmul": (),
    "scaled_dot_product_attention": (),
}
# Layers of these ops support at most four axes.
FOUR = ("matmul", "scaled_dot_product_attention")


def fold_axes(b: Writer, node: Node) -> Rewritten | None:
    """relu(%x : [1, 2, 3, 4, 5, 6])  ->  reshape(relu(reshape(%x : [2, 3, 4, 5, 6])))

    On a chip without a depth axis, a node with five axes and a depth above 1 is merged to at most four axes.
    """
    rank, most = node.types[0].rank, 4 if node.op in FOUR else b.chip.extents.rank
    if node.op in REDUCTIONS and node.inputs[0] is not None:
        rank = node.inputs[0].type.rank
    if b.chip.extents.depth == 1 and any(t.rank == 5 and t.shape[2] > 1 for t in _types(node)):
        most = min(most, 4)
    if node.op not in ALIGNED or rank <= most:
        return None
    groups = _folded(node, rank, most)
    if groups is None:
        return None
    inputs = [None if v is None else _view(b, v, groups, rank) for v in node.inputs]
    changed = _remapped(node, groups)
    if node.op in REDUCTIONS:
        changed["keep_dims"] = True
    results = b.again(node, inputs, **changed)
    return Rewritten(
        tuple([b.view(y, t.shape) for y, t in zip(results, node.types, strict=True)]), f"written on {most} axes"
    )


def _types(node: Node) -> list[TensorType]:
    return [*node.types, *[v.type for v in node.inputs if v is not None]]


def _folded(node: Node, rank: int, most: int) -> list[list[int]] | None:
    """Returns the axes of the result in `most` groups of adjacent axes, merging the smallest first. Returns None if too
    many axes cannot be merged."""
    shape, free, reduced = node.types[0].shape, set(lines(node)), set[int]()
    if node.op in FOUR:
        free = set(range(rank - 2))
    elif node.op in REDUCTIONS and node.inputs[0] is not None:
        shape, reduced = node.inputs[0].shape, set(reduced_axes(node))
        free = set(range(rank)) - reduced
    sides = [_spread(v, rank) for v in node.inputs if v is not None]
    groups = [[i] for i in range(rank)]
    while len(groups) > most:
        pairs = [
            (prod(shape[j] for j in (*a, *z)), i)
            for i, (a, z) in enumerate(pairwise(groups))
            if (free.issuperset((*a, *z)) or reduced.issuperset((*a, *z)))
            and all(_foldable(side, shape, (*a, *z)) for side in sides)
        ]
        if not pairs:
            return None
        _, i = min(pairs)
        groups[i : i + 2] = [groups[i] + groups[i + 1]]
    return groups


def _spread(v: Value, rank: int) -> tuple[int, ...]:
    """Returns an input's shape with leading axes of extent 1."""
    return (1,) * (rank - v.type.rank) + v.shape


def _foldable(side: tuple[int, ...], shape: tuple[int, ...], axes: tuple[int, ...]) -> bool:
    return all(side[i] == shape[i] for i in axes) or all(side[i] == 1 for i in axes)


def _view(b: Writer, v: Value, groups: list[list[int]], rank: int) -> Value:
    spread = _spread(v, rank)
    shape = [prod(spread[i] for i in group) for group in groups]
    first = next((i for i, group in enumerate(groups) if group[-1] >= rank - v.type.rank), len(groups))
    return b.view(v, shape[first:])


def _remapped(node: Node, groups: list[list[int]]) -> dict[str, object]:
    """Returns the attributes about axes, renumbered for the merged axes. An axis that an attribute names is merged only
    with other axes that the same attribute names."""
    place = {group[0]: i for i, group in enumerate(groups)}
    result: dict[str, object] = {}
    for name in ALIGNED[node.op]:
        value = node.attrs[name]
        if name == "axis":
            result[name] = place[value]
        elif name == "axes":
            result[name] = tuple([place[a] for a in value or range(max(map(max, groups)) + 1) if a in place])
        else:
            result[name] = tuple([value[group[0]] if len(group) == 1 else 0 for group in groups])
    return result


def fold_transpose(b: Writer, node: Node) -> Rewritten | None:
    """transpose(%x : [2, 1, 3, 4, 5, 6], perm=(0, 1, 4, 5, 2, 3))  ->  transpose on three axes: merges axes that stay together, drops axes of extent 1"""  # noqa: E501
    (x,) = node.inputs
    assert x is not None
    if x.type.rank <= b.chip.extents.rank and (x.type.rank < 5 or node.attrs["perm"][0] == 0):
        return None
    fold = folded(x.shape, node.attrs["perm"])
    if fold is None or len(fold[0]) > b.chip.extents.rank:
        return None
    shape, perm = fold
    y = b.view(x, shape)
    if perm != tuple(range(len(perm))):
        y = b.transpose(y, perm=perm)
    return Rewritten((b.view(y, node.types[0].shape),), f"written on {len(shape)} axes")


def transpose_twice(b: Writer, node: Node) -> Rewritten | None:
    """transpose(%x : five axes, perm=(3, ..))  ->  a transpose of axis 3 to the front on three axes, then one of the other four"""  # noqa: E501
    (x,) = node.inputs
    assert x is not None
    perm = node.attrs["perm"]
    first = perm[0] if perm else 0
    if x.type.rank != 5 or first == 0:
        return None
    before, after = prod(x.shape[:first]), prod(x.shape[first + 1 :])
    y = b.transpose(b.view(x, (before, x.shape[first], after)), perm=(1, 0, 2))
    rest = [i for i in range(5) if i != first]
    y = b.view(y, (x.shape[first], *[x.shape[i] for i in rest]))
    left = (0, *[1 + rest.index(i) for i in perm[1:]])
    y = y if left == (0, 1, 2, 3, 4) else b.transpose(y, perm=left)
    return Rewritten((b.view(y, node.types[0].shape),), "written as two transposes")


def rows_of_linear(b: Writer, node: Node) -> Rewritten | None:
    """linear(%x : five axes)  ->  linear of a matrix whose rows are the leading axes"""
    x, *rest = node.inputs
    assert x is not None
    if x.type.rank < 5:
        return None
    y = b.linear(b.view(x, (prod(x.shape[:-1]), x.shape[-1])), *rest)
    return Rewritten((b.view(y, node.types[0].shape),), "written on 2 axes")


def rows_of_matmul(b: Writer, node: Node) -> Rewritten | None:
    """matmul(%x : five axes, %y : two axes)  ->  matmul of a matrix whose rows are the leading axes of %x"""
    x, y, bias = node.inputs
    assert x is not None
    assert y is not None
    if x.type.rank < 5 or y.type.rank != 2 or node.attrs["transpose_x"]:
        return None
    (z,) = b.again(node, (b.view(x, (prod(x.shape[:-1]), x.shape[-1])), y, bias))
    return Rewritten((b.view(z, node.types[0].shape),), "written on 2 axes")


def fold_grid(b: Writer, node: Node) -> Rewritten | None:
    """quantize(%x : six axes)  ->  quantize on four axes, or on three if one axis has several scales"""
    x, scale, zero = node.inputs
    assert x is not None
    assert scale is not None
    if x.type.rank <= b.chip.extents.rank or scale.type.rank > 1:
        return None
    axis, shape = int(node.attrs["axis"]) % x.type.rank, x.shape
    if scale.type.rank == 0:
        axis, few = 0, (prod(shape[:-3]), *shape[-3:])
    else:
        axis, few = 1, (prod(shape[:axis]), shape[axis], prod(shape[axis + 1 :]))
    (y,) = b.again(node, (b.view(x, few), scale, zero), axis=axis)
    return Rewritten((b.view(y, node.types[0].shape),), f"written on {len(few)} axes")


FORMS: dict[str, tuple[Form, ...]] = {
    "quantize": (fold_grid,),
    "dequantize": (fold_grid,),
    "matmul": (rows_of_matmul,),
    "linear": (rows_of_linear,),
    "transpose": (fold_transpose, transpose_twice),
}
