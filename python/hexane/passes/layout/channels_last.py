"""Moves spatial tensors to channels last, the layout of the CPU kernels."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.lowering.layouts import first_perm, last_perm
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.targets import Target


def channels_last(graph: Graph, target: Target) -> Graph:
    """conv(%x) {layout=nchw}  ->  transpose(conv(transpose(%x) {perm=(0, 2, 3, 1)}) {layout=nhwc}) {perm=(0, 3, 1, 2)}

    Ops between two convolutions adopt the layout of their operand, so that transposes meet and cancel. The remaining
    transposes are at the ports and before ops that need the model's axis order. If the model itself transposes an image
    to channels first, both forms of the image exist, and elementwise ops use either. A quantised input is transposed
    before it is quantised, which copies nothing. A nearest-neighbour resize or an instance norm with no channels-last
    neighbour keeps its layout. The resize treats each channel as an image with one channel.
    """
    if not any(_may_start(node) for node in graph.nodes):
        return graph
    moved, users = _Moved(), graph.users()
    for node in graph.nodes:
        alone = node.op in _EITHER and node.attrs["layout"] == "nchw" and not _is_beside_last(node, moved, users)
        if alone and node.op == _PLANES:
            moved.add(node, _planes(node, moved))
        elif alone or not _move(node, moved):
            values = node.with_inputs(tuple([None if v is None else moved.plain(v) for v in node.inputs])).values
            moved.add(node, values)
            if _is_to_first(node):
                moved.add(node, (moved.plain(node.inputs[0]),), last=True)  # type: ignore[arg-type]
    return replace(
        graph,
        outputs=tuple(p._replace(value=moved.plain(p.value)) for p in graph.outputs),
        updates=tuple(moved.plain(v) for v in graph.updates),
        taps=graph.tapped(moved.plain),
    )


class _Moved:
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


_PLANES = "resize_nearest_neighbor"
_EITHER = frozenset((_PLANES, "instance_norm"))
_STARTS = frozenset((_PLANES, *(op.name for op in OPS.values() if op.layout == "spatial")))


def _may_start(node: Node) -> bool:
    """True if a channels-last form may begin at this node."""
    return node.op in _STARTS or _is_to_first(node)


def _is_to_first(node: Node) -> bool:
    """True if the node transposes an image to channels first. Transposes of rank 3 are excluded, because they may
    exchange any two axes."""
    rank = node.types[0].rank
    return node.op == "transpose" and rank > 3 and node.attrs["perm"] == first_perm(rank)


def _is_beside_last(node: Node, moved: _Moved, users: Mapping[Value, Sequence[Node]]) -> bool:
    """True if the node's operand exists in channels-last form, or if a reader of its result needs that form."""
    spatial = (
        user.op in OPS and user.op not in _EITHER and OPS[user.op].layout == "spatial"
        for user in users.get(node.values[0], ())
    )
    return moved.leads(node, alike=True) or any(spatial)


def _planes(node: Node, moved: _Moved) -> tuple[Value, ...]:
    """Resizes each channel as an image of its own: both layouts of an image with one channel are equal."""
    first = node.inputs[0]
    assert first is not None
    x = moved.plain(first)
    planes = apply(OPS["reshape"], [x], {"shape": (x.shape[0] * x.shape[1], *x.shape[2:], 1)}, node.sources)
    resized = apply(OPS[node.op], planes, {**node.attrs, "layout": "nhwc"}, node.sources)
    return apply(OPS["reshape"], resized, {"shape": node.types[0].shape}, node.sources)


def in_layout(
    layout: str, node: Node, inputs: tuple[Value | None, ...], run: Callable[[tuple[Value | None, ...]], Value]
) -> tuple[Value]:
    """Calls `run` with the first input in this layout and returns its result in the node's own layout. Transposes are
    added if the node has another layout."""
    image = inputs[0]
    if image is None or node.attrs["layout"] == layout:
        return (run(inputs),)
    perms = [perm(image.type.rank) for perm in (first_perm, last_perm)]
    to, back = perms if layout == "nchw" else perms[::-1]
    return (transposed(run((transposed(image, to, node.sources), *inputs[1:])), back, node.sources),)


def _place(axis: int, rank: int) -> int:
    """Returns where an axis of the channels-first form is in the channels-last form."""
    return last_perm(rank).index(axis)


def _move(node: Node, moved: _Moved) -> bool:
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


def _elementwise(node: Node, moved: _Moved) -> bool:
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


def _first(node: Node, moved: _Moved) -> bool:
    first, *rest = node.inputs
    assert first is not None
    inputs = [moved.last(first), *(None if v is None else moved.plain(v) for v in rest)]
    moved.add(node, apply(OPS[node.op], inputs, node.attrs, node.sources), last=True)
    return True


def _axis(node: Node, moved: _Moved) -> bool:
    rank = node.types[0].rank
    same_rank = [v is not None and v.type.rank == rank for v in node.inputs]
    inputs = [
        None if v is None else moved.last(v) if same else moved.plain(v)
        for v, same in zip(node.inputs, same_rank, strict=True)
    ]
    attrs = {**node.attrs, "axis": _place(int(node.attrs["axis"]), rank)}
    moved.add(node, apply(OPS[node.op], inputs, attrs, node.sources), last=True)
    return True


def _reduce(node: Node, moved: _Moved) -> bool:
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


def _per_axis(node: Node, moved: _Moved) -> bool:
    value = node.inputs[0]
    assert value is not None
    perm = last_perm(value.type.rank)
    attrs: dict[str, Any] = {k: tuple(v[p] for p in perm) if isinstance(v, tuple) else v for k, v in node.attrs.items()}
    moved.add(node, apply(OPS[node.op], [moved.last(value)], attrs, node.sources), last=True)
    return True


def _transpose(node: Node, moved: _Moved) -> bool:
    value = node.inputs[0]
    assert value is not None
    perm: tuple[int, ...] = node.attrs["perm"]
    composed = tuple(_place(p, len(perm)) for p in perm)
    moved.add(node, (transposed(moved.last(value), composed, node.sources),))
    return True


def _reshape(node: Node, moved: _Moved) -> bool:
    """A reshape that only merges or splits spatial axes has a channels-last form: (N, C, H, W) -> (N, C, H * W)."""
    value = node.inputs[0]
    assert value is not None
    shape = node.types[0].shape
    if len(shape) < 3 or shape[:2] != value.shape[:2]:
        return False
    attrs = {"shape": (shape[0], *shape[2:], shape[1])}
    moved.add(node, apply(OPS["reshape"], [moved.last(value)], attrs, node.sources), last=True)
    return True


_FOLLOW: dict[str, Callable[[Node, _Moved], bool]] = {
    "first": _first,
    "axis": _axis,
    "reduce": _reduce,
    "per_axis": _per_axis,
    "transpose": _transpose,
    "reshape": _reshape,
}
_ALIKE = (_elementwise, _first, _per_axis)
