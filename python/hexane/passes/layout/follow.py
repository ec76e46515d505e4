"""Nodes in channels-last form: how each kind of op follows its operands into that form."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hexane.graph import Node, Value
from hexane.lowering.layouts import first_perm, last_perm
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.passes.fuse.fuse_transpose import transposed


class Moved:
    """Maps each value of the old graph to its form in the original layout, its channels-last form, or both."""

    def __init__(self) -> None:
        self._plain: dict[Value, Value] = {}
        self._last: dict[Value, Value] = {}

    def add(self, node: Node, values: tuple[Value, ...], last: bool = False) -> None:
        (self._last if last else self._plain).update(zip(node.values, values, strict=True))

    def leads(self, node: Node, alike: bool) -> bool:
        """True if an operand exists only in channels-last form. alike: also true if all operands exist in that form."""
        computed = [v for v in node.inputs if v is not None and v.node.op != "const"]
        if any(v in self._last and v not in self._plain for v in computed):
            return True
        return alike and bool(computed) and all(v in self._last for v in computed)

    def plain(self, value: Value) -> Value:
        if value not in self._plain:
            self._plain[value] = transposed(self._last[value], first_perm(value.type.rank), value.node.sources)
        return self._plain[value]

    def last(self, value: Value) -> Value:
        if value not in self._last:
            plain, perm = self._plain[value], last_perm(value.type.rank)
            self._last[value] = _quantized(plain, perm) or transposed(plain, perm, value.node.sources)
        return self._last[value]


def _quantized(value: Value, perm: tuple[int, ...]) -> Value | None:
    """Returns transpose(quantize(%port)) rewritten as quantize(transpose(%port)), or None for other values. The
    quantize reads the port with strides, so nothing is copied."""
    node = made_by(value, "quantize")
    if node is None or node.inputs[0].node.op != "input" or node.inputs[1].type.rank:  # type: ignore[union-attr]
        return None
    first, *rest = node.inputs
    assert first is not None
    return apply(OPS["quantize"], [transposed(first, perm, node.sources), *rest], node.attrs, node.sources)[0]


PLANES = "resize_nearest_neighbor"
EITHER = frozenset((PLANES, "instance_norm"))


def is_beside_last(node: Node, moved: Moved, users: Mapping[Value, Sequence[Node]]) -> bool:
    """True if the node's operand exists in channels-last form, or if a reader of its result needs that form."""
    spatial = (
        user.op in OPS and user.op not in EITHER and OPS[user.op].layout == "spatial"
        for user in users.get(node.values[0], ())
    )
    return moved.leads(node, alike=True) or any(spatial)


def resized_planes(node: Node, moved: Moved) -> tuple[Value, ...]:
    """Resizes each channel as an image of its own: both layouts of an image with one channel are equal."""
    first = node.inputs[0]
    assert first is not None
    x = moved.plain(first)
    planes = apply(OPS["reshape"], [x], {"shape": (x.shape[0] * x.shape[1], *x.shape[2:], 1)}, node.sources)
    resized = apply(OPS[node.op], planes, {**node.attrs, "layout": "nhwc"}, node.sources)
    return apply(OPS["reshape"], resized, {"shape": node.types[0].shape}, node.sources)


def _place(axis: int, rank: int) -> int:
    """Returns where an axis of the channels-first form is in the channels-last form."""
    return last_perm(rank).index(axis)


def move(node: Node, moved: Moved) -> bool:
    """Adds the channels-last form of the node, if there is one and the operand exists in that form. True if it is
    added."""
    op = OPS.get(node.op)
    if op is None or not node.inputs or not 3 <= node.inputs[0].type.rank <= 5:  # type: ignore[union-attr]
        return False
    if op.layout == "spatial":
        if node.attrs["layout"] == "nhwc":
            return False
        first, *rest = node.inputs
        assert first is not None
        inputs = [moved.last(first), *(None if v is None else moved.plain(v) for v in rest)]
        moved.add(node, apply(op, inputs, {**node.attrs, "layout": "nhwc"}, node.sources), last=True)
        return True
    follow = _elementwise if op.elementwise else _FOLLOW.get("reshape" if node.op == "reshape" else op.layout)
    return follow is not None and moved.leads(node, follow in _ALIKE) and follow(node, moved)


def _elementwise(node: Node, moved: Moved) -> bool:
    """Reshapes operands of lower rank to the rank of the result first, so that they broadcast alike in both layouts."""
    rank = node.types[0].rank
    if rank != max(v.type.rank for v in node.inputs if v is not None):
        return False
    inputs = []
    for value in node.inputs:
        assert value is not None
        if value.type.size == 1:
            inputs.append(moved.plain(value))
        elif value.type.rank == rank:
            inputs.append(moved.last(value))
        else:
            shape = (*[1] * (rank - value.type.rank), *value.shape)
            full = apply(OPS["reshape"], [moved.plain(value)], {"shape": shape}, value.node.sources)[0]
            inputs.append(transposed(full, last_perm(rank)))
    moved.add(node, apply(OPS[node.op], inputs, node.attrs, node.sources), last=True)
    return True


def _first(node: Node, moved: Moved) -> bool:
    first, *rest = node.inputs
    assert first is not None
    inputs = [moved.last(first), *(None if v is None else moved.plain(v) for v in rest)]
    moved.add(node, apply(OPS[node.op], inputs, node.attrs, node.sources), last=True)
    return True


def _axis(node: Node, moved: Moved) -> bool:
    rank = node.types[0].rank
    same_rank = [v is not None and v.type.rank == rank for v in node.inputs]
    inputs = [
        None if v is None else moved.last(v) if same else moved.plain(v)
        for v, same in zip(node.inputs, same_rank, strict=True)
    ]
    attrs = {**node.attrs, "axis": _place(int(node.attrs["axis"]), rank)}
    moved.add(node, apply(OPS[node.op], inputs, attrs, node.sources), last=True)
    return True


def _reduce(node: Node, moved: Moved) -> bool:
    value = node.inputs[0]
    assert value is not None
    rank = value.type.rank
    axes: tuple[int, ...] = node.attrs["axes"]
    attrs = {**node.attrs, "axes": tuple(_place(a, rank) for a in axes)}
    kept = [a for a in range(1, rank) if a not in axes]
    if not node.attrs["keep_dims"] and 1 in kept and len(kept) > 1:
        return False  # spatial axes and channels remain, in another order than the model's
    moved.add(node, apply(OPS[node.op], [moved.last(value)], attrs, node.sources), last=bool(node.attrs["keep_dims"]))
    return True


def _per_axis(node: Node, moved: Moved) -> bool:
    value = node.inputs[0]
    assert value is not None
    perm = last_perm(value.type.rank)
    attrs: dict[str, Any] = {k: tuple(v[p] for p in perm) if isinstance(v, tuple) else v for k, v in node.attrs.items()}
    moved.add(node, apply(OPS[node.op], [moved.last(value)], attrs, node.sources), last=True)
    return True


def _transpose(node: Node, moved: Moved) -> bool:
    value = node.inputs[0]
    assert value is not None
    perm: tuple[int, ...] = node.attrs["perm"]
    composed = tuple(_place(p, len(perm)) for p in perm)
    moved.add(node, (transposed(moved.last(value), composed, node.sources),))
    return True


def _reshape(node: Node, moved: Moved) -> bool:
    """A reshape that only merges or splits spatial axes has a channels-last form: (N, C, H, W) -> (N, C, H * W)."""
    value = node.inputs[0]
    assert value is not None
    shape = node.types[0].shape
    if len(shape) < 3 or shape[:2] != value.shape[:2]:
        return False
    attrs = {"shape": (shape[0], *shape[2:], shape[1])}
    moved.add(node, apply(OPS["reshape"], [moved.last(value)], attrs, node.sources), last=True)
    return True


_FOLLOW: dict[str, Callable[[Node, Moved], bool]] = {
    "first": _first,
    "axis": _axis,
    "reduce": _reduce,
    "per_axis": _per_axis,
    "transpose": _transpose,
    "reshape": _reshape,
}
_ALIKE = (_elementwise, _first, _per_axis)
