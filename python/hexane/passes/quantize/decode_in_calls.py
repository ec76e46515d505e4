"""Keeps weights encoded that no kernel can read encoded, and decodes them in each call."""

import numpy as np

from hexane.compression.weights import LEAST_NUMBERS
from hexane.dtypes import FP16, FP32, DType
from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of
from hexane.ops.records.decode import DECODE, decodes_in_calls
from hexane.passes.quantize.stored import (
    Stored,
    before_rounding,
    comes_of_integers,
    encoded,
    fits_rounded,
    of_integers,
    scales_follow,
    stored_rows,
)
from hexane.targets import Target


def decode_in_calls(graph: Graph, target: Target) -> Graph:
    """conv_transpose(%x, dequantize(const, const))  ->  conv_transpose(%x, cpu.decode(const, const))

    Applies to convolutions whose weights keep_encoded and keep_encoded_fp16 do not keep encoded, if `decodes_in_calls`
    returns True for the convolution. All other conditions of keep_encoded apply.
    """
    return _in_calls(graph, rounds=False)


def decode_in_calls_halves(graph: Graph, target: Target) -> Graph:
    """conv_transpose(%x, dequantize(const, const))  ->  conv_transpose(%x, cpu.decode(const, const))

    Like decode_in_calls, for a network that becomes fp16, under the conditions of keep_encoded_halves.
    """
    return _in_calls(graph, rounds=True)


def _in_calls(graph: Graph, rounds: bool) -> Graph:
    """Rewrites the weights of convolutions. rounds: whether fp32 weights are rounded to fp16."""
    readers = graph.users()
    known: dict[Value, tuple[Value, str] | None] = {}
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, y = inputs[:2]
        assert x is not None
        assert y is not None
        if not decodes_in_calls(node) or y.type.size < LEAST_NUMBERS:
            return None
        if x.dtype is not y.dtype or y.dtype not in (FP32, FP16):
            return None
        if comes_of_integers(x) or scales_follow(node.values[0], readers):
            return None
        if y not in known:
            weight = encoded(before_rounding(y))
            decoded = None if weight is None else _decoded(weight, y.dtype, rounds or y.dtype is FP16)
            known[y] = None if weight is None or decoded is None else (decoded, encoding_of(weight).kind)
        if (stored := known[y]) is None:
            return None
        decode, kind = stored
        said = f"{kind}, {decode.node.attrs['bits']} bits"
        decisions.append(Decision("keep_encoded", node.where, said, "decoded in each call"))
        return node.with_inputs((x, decode, *inputs[2:])).values

    return graph.rewrite(change, ("conv", "conv_transpose")).decided(*decisions)


def _decoded(weight: Value, dtype: DType, rounds: bool) -> Value | None:
    """Returns a decode op that gives the weight's numbers in this dtype, or None. The scales or tables of the weight
    must vary along one axis only. rounds: whether the numbers are rounded to fp16."""
    axis = _axis_of_numbers(weight.node)
    others = [i for i in range(weight.type.rank) if i != axis]
    transposed = weight if axis == 0 else moved(apply(OPS["transpose"], [weight], {"perm": (axis, *others)})[0].node)
    if transposed is None:
        return None
    stored = _in_terms(transposed) if transposed.node.op == "decode_blocks" else stored_rows(transposed)
    if stored is None or (rounds and not fits_rounded(stored, weight.dtype)):
        return None
    operands = [constant(stored.weight, weight.node.sources), constant(stored.numbers, weight.node.sources)]
    attrs = {"bits": stored.bits, "palette": stored.palette, "shape": weight.shape, "axis": axis}
    attrs |= {"dtype": dtype}
    return apply(OPS[DECODE], operands, attrs, weight.node.sources)[0]


def _axis_of_numbers(weight: Node) -> int:
    """Returns the axis along which the weight has most scales or tables."""
    numbers = weight.inputs[1]
    assert numbers is not None
    if weight.op == "dequantize":
        return int(weight.attrs["axis"]) if numbers.type.rank else 0
    if weight.op == "decode_vectors":
        return int(weight.attrs["axis"])
    if weight.op not in ("decode_blocks", "decode_palette"):
        return 0
    blocks = numbers.shape[: weight.types[0].rank]
    return blocks.index(max(blocks))


def _in_terms(weight: Value) -> Stored | None:
    """Returns the stored form of integers in blocks (out, rest..). None if blocks split another axis than the output
    axis and the outermost of the remaining axes."""
    integers, scales = (None if v is None else v.node.data for v in weight.node.inputs)
    assert integers is not None
    assert scales is not None
    columns = weight.shape[0]
    outermost = next((i for i, d in enumerate(weight.shape) if i and d != 1), 1)
    if any(d != 1 for i, d in enumerate(scales.shape) if i not in (0, outermost)):
        return None
    of_columns = np.repeat(scales.reshape(len(scales), -1), columns // len(scales), axis=0)
    return of_integers(integers.reshape(columns, -1), of_columns.T)
