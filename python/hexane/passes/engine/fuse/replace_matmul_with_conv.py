"""Rewrites products with weights that fit the chip's fast memory as convolutions, whose weights are resident."""

from math import prod

import numpy as np

from hexane.graph import Graph, Node, Value, constant, tensor_type
from hexane.graph.decisions import Decision
from hexane.lowering.weights import is_constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import encoding_of
from hexane.passes.engine.chain import refused_reshape
from hexane.passes.engine.legalize.compression import kernel_bytes
from hexane.targets import Chip

STAGE = "replace_matmul_with_conv"
SOURCE = "guide ch22 and ch35, field 0x1b8"


def replace_matmul_with_conv(graph: Graph, chip: Chip) -> Graph:
    """anec.matmul(%x, const [K, N]) : [B, M, N]  ->  transpose(anec.convolution(transpose(%x) : [B, K, 1, M], const [N, K, 1, 1]))

    Requires that the right-hand operand is a constant matrix no larger than the chip's working set, that rows and
    columns fit the largest image, and that the chip accepts the reshapes. A larger matrix stays a matrix product, which
    is later split along its rows. Linear layers become convolutions, too. Rows become the width, columns the
    channels.
    """  # noqa: E501
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, weight = inputs[:2]
        assert x is not None
        assert weight is not None
        reason = _kept(node, x, weight, chip)
        if reason:
            decisions.append(Decision(STAGE, node.where, "kept", reason, SOURCE))
            return None
        decisions.append(
            Decision(
                STAGE,
                node.where,
                "rewritten",
                f"as a resident convolution: {_bytes(weight, chip)} bytes of weights",
                SOURCE,
            )
        )
        return (_as_conv(node, x, weight),)

    return graph.rewrite(change, ("anec.matmul", "anec.linear")).decided(*decisions)


def _stored(weight: Value) -> Value | None:
    """Returns the constant that holds the weights, encoded or not, or None if the weights are not constant."""
    encoding = encoding_of(weight)
    return encoding.stored if encoding.kind == "integers" or is_constant(weight) else None


def _bytes(weight: Value, chip: Chip) -> int:
    return kernel_bytes(encoding_of(weight), chip)


def _kept(node: Node, x: Value, weight: Value, chip: Chip) -> str:
    """Returns why the product is not rewritten, or "" if it is."""
    if _stored(weight) is None:
        return "both operands are computed" if node.op == "anec.matmul" else "its weights may change"
    if weight.type.rank != 2 or x.type.rank < 2:
        return f"the weights {weight.type} are no matrix"
    if node.op == "anec.linear" and node.inputs[2] is not None:
        return "its weights are indices of a table"
    if _bytes(weight, chip) > chip.memory.working_set:
        return f"{_bytes(weight, chip)} bytes of weights, the working set has {chip.memory.working_set}"
    batch, outer, rows, inner = _image(node, x)
    e = chip.extents
    for name, got, most in (
        ("batch", batch, e.batch),
        ("height", outer, e.height),
        ("width", rows, e.width),
        ("channels", inner, e.channels),
    ):
        if got > most:
            return f"as an image its {name} would be {got}, the chip takes {most}"
    result = node.types[0]
    kind = tensor_type(x.dtype, (batch, outer, rows, result.shape[-1]))
    for before, shape in ((x.type, (batch, outer, rows, inner)), (kind, result.shape)):
        if reason := refused_reshape(before, shape, chip):
            return f"an image needs {before} reshaped to {shape}: {reason}"
    return ""


def _image(node: Node, x: Value) -> tuple[int, int, int, int]:
    """Returns (batch, outer rows, rows, columns) of the left operand."""
    *lead, rows, inner = x.shape
    if node.attrs.get("transpose_lhs", False):
        rows, inner = inner, rows
    return (prod(lead[:-1]), lead[-1] if lead else 1, rows, inner)


def _as_conv(node: Node, x: Value, weight: Value) -> Value:
    batch, outer, rows, inner = _image(node, x)
    transposed = bool(node.attrs.get("transpose_lhs", False))

    def layer(name: str, inputs: list[Value | None], **attrs: object) -> Value:
        return apply(OPS[f"anec.{name}"], inputs, attrs, node.sources)[0]

    def shaped(v: Value, shape: tuple[int, ...]) -> Value:
        return v if v.shape == shape else layer("reshape", [v], shape=shape)

    flat = shaped(x, (batch, outer, inner, rows) if transposed else (batch, outer, rows, inner))
    image = layer("transpose", [flat], perm=(0, 2, 1, 3) if transposed else (0, 3, 1, 2))
    out_first = node.op == "anec.linear" or node.attrs["transpose_rhs"]
    filters = _filters(weight, bool(out_first))
    attrs = {k: node.attrs[k] for k in ("epilogue", "rounds")}
    assert not attrs["epilogue"], "slots are filled after this pass"
    product = layer("convolution", [image, filters, None], **attrs)
    return shaped(layer("transpose", [product], perm=(0, 2, 3, 1)), node.types[0].shape)


def _filters(weight: Value, out_first: bool) -> Value:
    """Returns the matrix as 1 x 1 weights with the output channels first, with its dequantisation if it has one."""
    stored = _stored(weight)
    assert stored is not None
    assert stored.node.data is not None
    matrix = stored.node.data if out_first else stored.node.data.T
    filters = constant(np.ascontiguousarray(matrix)[:, :, None, None], stored.node.sources)
    if stored == weight:
        return filters
    node = weight.node
    axis = int(node.attrs["axis"])
    axis = axis if out_first or node.inputs[1] is None or not node.inputs[1].shape else 1 - axis
    return apply(OPS["anec.dequant"], [filters, *node.inputs[1:]], {**node.attrs, "axis": axis}, node.sources)[0]
