"""Layers, and the moves of their operands, in another order of the axes."""

from collections.abc import Sequence

from hexane.graph import Node, TensorType, Value, tensor_type
from hexane.ops import OPS, apply
from hexane.ops.slots import slot
from hexane.passes.engine.moves import RANK, Shape, Step, four_axes


def laid_shape(shape: Shape, layout: Shape) -> Shape:
    four = four_axes(shape)
    return tuple(four[p] for p in layout)


def operands_of_axes(node: Node) -> int:
    """Returns the number of leading inputs that have the axes of the result. Later inputs have one number per
    channel."""
    first = {"anec.layer_norm": 1, "anec.reduction": 1, "anec.l2_norm": 1, "anec.gain_offset_control": 1}
    if node.op in first:
        return first[node.op]
    if not OPS[node.op].takes_slots:
        return len(node.inputs)
    return len(OPS[node.op].inputs)


def relaid(node: Node, operands: Sequence[Value | None], layout: Shape) -> Value:
    """Returns the layer rewritten for operands in the new layout: its axes are renumbered."""
    inputs = [*operands, *node.inputs[len(operands) :]]
    attrs = dict(node.attrs)
    given = node.inputs[0]
    assert given is not None
    rank = given.type.rank if "axes" in node.attrs else node.types[0].rank

    def to(axis: int) -> int:
        at = axis % rank if rank else rank - 1  # a single number has no axes, so any axis will do
        return layout.index(at + RANK - rank)

    if "axis" in attrs:
        attrs["axis"] = to(attrs["axis"])
    if "axes" in attrs:
        attrs["axes"] = tuple(sorted(to(a) for a in attrs["axes"]))
    if attrs.get("epilogue"):
        attrs["epilogue"] = tuple(
            slot("gain_offset", **{**dict(s.attributes), "axis": to(dict(s.attributes)["axis"])})
            if s.op == "gain_offset"
            else s
            for s in attrs["epilogue"]
        )
    return apply(OPS[node.op], inputs, attrs, node.sources)[0]


def is_number(value: Value) -> bool:
    return value.node.op == "const" and not value.shape


def laid_type(value: Value, layout: Shape) -> TensorType:
    return tensor_type(value.dtype, laid_shape(value.shape, layout))


def there(shape: Shape, layout: Shape) -> list[Step]:
    """Returns the moves from the original shape to the layout."""
    return [*_reshaped(shape, four_axes(shape)), ("transpose", layout)]


def back(kind: TensorType, layout: Shape) -> list[Step]:
    """Returns the moves from the layout back to the original shape."""
    inverse = tuple(layout.index(i) for i in range(RANK))
    return [("transpose", inverse), *_reshaped(four_axes(kind.shape), kind.shape)]


def _reshaped(old: Shape, new: Shape) -> list[Step]:
    return [] if tuple(old) == tuple(new) else [("reshape", tuple(new))]
