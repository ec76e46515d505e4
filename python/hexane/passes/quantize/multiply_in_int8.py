"""Computes products with weights in int8 as integer products."""

from hexane.dtypes import FP32
from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.records.by_range import QUANTIZE_BY_RANGE
from hexane.ops.records.encoded_product import ENCODED_MATMUL
from hexane.targets import Target

NONE = "no matrix product has an fp32 input and weights in int8"
MOST_TERMS = (2**31 - 1) // (127 * 128)  # An int32 sum holds so many products of two integers in int8.


def multiply_in_int8(graph: Graph, target: Target) -> Graph:
    """cpu.encoded_matmul(%x, const : int8[96, 64], const, %b)
        ->  %q, %s, _ = quantize_by_range(%x) {symmetric=True}
            add(mul(quantized_matmul(%q, const : int8[96, 64], const) : fp32, %s), %b)

    Each row of x is rounded to int8, with the scale that maps its largest magnitude to 127. Sums are exact, in int32.
    Applies to fp32 products with weights in 8 bits and one scale per column. Products that read the same x share its
    integers. A row with a NaN or an infinity gives a row of numbers that are not finite.
    """
    rows: dict[Value, tuple[Value, Value]] = {}
    decisions: list[Decision] = []

    def integers(x: Value, node: Node) -> tuple[Value, Value]:
        if x not in rows:
            attrs = {"axis": x.type.rank - 1, "symmetric": True}
            q, scale, _ = apply(OPS[QUANTIZE_BY_RANGE], [x], attrs, node.sources)
            rows[x] = q, scale
        return rows[x]

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, weight, numbers, bias = inputs
        assert x is not None
        assert weight is not None
        assert numbers is not None
        assert numbers.node.data is not None
        if node.attrs["bits"] != 8 or node.attrs["palette"] or node.attrs["transpose_x"] or len(numbers.node.data) > 1:
            return None
        if x.dtype is not FP32 or not 0 < x.shape[-1] <= MOST_TERMS or not x.type.size:
            return None
        q, scale = integers(x, node)
        columns = constant(numbers.node.data[0], numbers.node.sources)
        product = apply(
            OPS["quantized_matmul"],
            [q, weight, columns, None, None, None],
            {"transpose_y": True, "dtype": FP32},
            node.sources,
        )
        result = apply(OPS["mul"], [product[0], scale], {}, node.sources)
        decisions.append(Decision("multiply_in_int8", node.where, "int8", "each row of x is rounded to int8"))
        return result if bias is None else apply(OPS["add"], [result[0], bias], {}, node.sources)

    result = graph.rewrite(change, (ENCODED_MATMUL,))
    if not decisions:
        decisions.append(Decision("multiply_in_int8", "the graph", "unchanged", NONE))
    return result.decided(*decisions)
