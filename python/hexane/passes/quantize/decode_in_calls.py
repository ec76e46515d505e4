"""Leaves weights that no kernel reads in few bits so, and decodes them in each call."""

import numpy as np

from hexane.compression.weights import LEAST_NUMBERS
from hexane.decisions import Decision
from hexane.dtypes import FP32
from hexane.graph import Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encoded_moves import moved
from hexane.ops.encodings import encoding_of
from hexane.ops.records.decode import DECODE, decodes_in_calls
from hexane.passes.quantize.stored import Stored, comes_of_integers, encoded, of_integers, scales_follow, stored_rows
from hexane.targets import Target


def decode_in_calls(graph: Graph, target: Target) -> Graph:
    """conv_transpose(%x, dequantize(const, const))  ->  conv_transpose(%x, cpu.decode(const, const))

    Of convolutions whose weight keep_encoded leaves, as far as decodes_in_calls says; on the same terms.
    """
    readers = graph.users()
    known: dict[Value, Value | None] = {}
    made: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, y = inputs[:2]
        assert x is not None
        assert y is not None
        if not decodes_in_calls(node) or y.type.size < LEAST_NUMBERS or {x.dtype, y.dtype} != {FP32}:
            return None
        if comes_of_integers(x) or scales_follow(node.values[0], readers):
            return None
        if y not in known:
            weight = encoded(y)
            known[y] = None if weight is None else _decoded(weight)
        found = known[y]
        if found is None:
            return None
        said = f"{encoding_of(y).kind}, {found.node.attrs['bits']} bits"
        made.append(Decision("keep_encoded", node.where, said, "decoded in each call"))
        return node.with_inputs((x, found, *inputs[2:])).values

    return graph.rewrite(change, ("conv", "conv_transpose")).decided(*made)


def _decoded(weight: Value) -> Value | None:
    """The same numbers, of an encoded constant whose scales or tables belong to the indices of one axis."""
    axis = _axis_of_numbers(weight.node)
    others = [i for i in range(weight.type.rank) if i != axis]
    turned = weight if axis == 0 else moved(apply(OPS["transpose"], [weight], {"perm": (axis, *others)})[0].node)
    if turned is None:
        return None
    found = _in_terms(turned) if turned.node.op == "decode_blocks" else stored_rows(turned)
    if found is None:
        return None
    operands = [constant(found.weight, weight.node.sources), constant(found.numbers, weight.node.sources)]
    attrs = {"bits": found.bits, "palette": found.palette, "shape": weight.shape, "axis": axis}
    return apply(OPS[DECODE], operands, attrs, weight.node.sources)[0]


def _axis_of_numbers(weight: Node) -> int:
    """The axis with most scales or tables."""
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
    """Of integers in blocks (out, rest..), whose rows are cut along their outermost axis alone."""
    integers, scales = (None if v is None else v.node.data for v in weight.node.inputs)
    assert integers is not None
    assert scales is not None
    columns = weight.shape[0]
    outermost = next((i for i, d in enumerate(weight.shape) if i and d != 1), 1)
    if any(d != 1 for i, d in enumerate(scales.shape) if i not in (0, outermost)):
        return None
    of_columns = np.repeat(scales.reshape(len(scales), -1), columns // len(scales), axis=0)
    return of_integers(integers.reshape(columns, -1), of_columns.T)
