"""Rewrites ops on a view that is wider than a chip supports as ops on the image that it views.

A plane of 200 x 200 pixels in one row has 40,000 numbers; M1 supports 16,384. As an image, the plane is within the
limit.
"""

from collections.abc import Sequence

from hexane.graph import Node, Value
from hexane.ops import OPS
from hexane.ops.match import Found, Pattern, made_by
from hexane.passes.repair.form import Form
from hexane.passes.repair.view_blocks import Block, Shape, axes_of_source, blocks_of, broadcast_shape

WIDE = 16384  # the smallest width limit of all chips, such as M1's
MOST_AXES = 4
VIEWS = ("reshape", "expand_dims", "squeeze", "flatten")
REDUCTIONS = (
    "reduce_mean", "reduce_sum", "reduce_max", "reduce_min", "reduce_l1_norm", "reduce_l2_norm", "reduce_sum_square",
)  # fmt: skip
ALONG_AXES = ("l2_norm", "mean_variance_norm", "layer_norm", "rms_norm")
ELEMENTWISE = tuple(sorted(name for name, record in OPS.items() if record.elementwise and record.level == "user"))


def of_source(m: Found) -> Value | None:
    """relu(reshape(%x : [N, C, H, W]) : [N, C, H * W])  ->  reshape(relu(%x)), also reductions, norms and transposes"""
    node, inputs = m.node, m.inputs
    view = next((v for v in inputs if _is_wide_view(v)), None)
    source = None if view is None else view.node.inputs[0]
    if view is None or source is None or len(node.types) != 1:
        return None
    shape = node.types[0].shape
    if node.op in VIEWS:
        return source if source.shape == shape else m.make("reshape", [source], shape=shape)[0]
    blocks = blocks_of(view.shape, source.shape)
    if OPS[node.op].elementwise and "axis" in node.attrs:
        result = None
    elif OPS[node.op].elementwise:
        operands = _operands(m, inputs, view, source, blocks)
        result = None if operands is None or shape != view.shape else m.make(node.op, operands, **node.attrs)[0]
    elif view != inputs[0]:
        result = None
    elif node.op == "transpose":
        result = _transposed(m, source, blocks)
    elif (axes := axes_of_source(node.attrs["axes"], view.shape, blocks)) is None:
        result = None
    elif any(inputs[1:]) and [source.shape[a] for a in axes] != [view.shape[a] for a in node.attrs["axes"]]:
        result = None  # gamma and beta have the shape of the axes
    else:
        kept = {"keep_dims": True} if node.op in REDUCTIONS else {}
        result = m.make(node.op, [source, *inputs[1:]], **{**node.attrs, "axes": axes, **kept})[0]
    return result if result is None or result.shape == shape else m.make("reshape", [result], shape=shape)[0]


def _is_wide_view(v: Value | None) -> bool:
    if (view := made_by(v, "reshape")) is None or (x := view.inputs[0]) is None or 0 in x.shape:
        return False
    return max(view.types[0].shape, default=0) > WIDE >= max(x.shape, default=0) and x.type.rank <= MOST_AXES


def _operands(
    m: Found, inputs: Sequence[Value | None], view: Value, source: Value, blocks: Sequence[Block]
) -> list[Value | None] | None:
    """Returns each operand of an elementwise op in a shape that broadcasts over the source, or None."""
    result = list[Value | None]()
    for v in inputs:
        if v is None or (v.type.size == 1 and v.type.rank <= source.type.rank):
            result.append(v)
        elif (inner := made_by(v, "reshape")) is not None and v.shape == view.shape and _viewed(inner) == source.shape:
            result.append(inner.inputs[0])
        elif (shape := broadcast_shape(v.shape, view.shape, source.shape, blocks)) is None or max(v.shape) > WIDE:
            return None
        else:
            result.append(v if v.shape == shape else m.make("reshape", [v], shape=shape)[0])
    return result


def _viewed(view: Node) -> Shape | None:
    return None if view.inputs[0] is None else view.inputs[0].shape


def _transposed(m: Found, source: Value, blocks: Sequence[Block]) -> Value | None:
    if any(len(block.view) != 1 for block in blocks):
        return None
    of = {block.view[0]: block.source for block in blocks}
    return m.make("transpose", [source], perm=tuple(a for axis in m.node.attrs["perm"] for a in of[axis]))[0]


FORMS = (
    Form(
        "op of a wide view",
        Pattern(frozenset((*ELEMENTWISE, *VIEWS, *REDUCTIONS, *ALONG_AXES, "transpose"))),
        of_source,
        quiet=True,
    ),
)
