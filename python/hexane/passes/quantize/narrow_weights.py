"""Keeps weights in the 16 bits in which the model stores them."""

from collections.abc import Mapping

from hexane.dtypes import BF16, FP16, FP32, DType
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.widening_product import WIDENING_BF16_MATMUL, WIDENING_MATMUL
from hexane.targets import Target

LEAST_NUMBERS = 1 << 16  # Traffic of weights with fewer numbers is negligible.
_PRODUCTS: Mapping[str, str] = {"bf16": WIDENING_BF16_MATMUL, "fp16": WIDENING_MATMUL}  # Ops by the dtype of y.


def narrow_weights(graph: Graph, target: Target) -> Graph:
    """cpu.matmul(%x, cast(const : bf16)) : fp32  ->  cpu.widening_bf16_matmul(%x, const : bf16) : fp32
    cpu.matmul(%x, cast(const : fp16)) : fp32  ->  cpu.widening_matmul(%x, const : fp16) : fp32
    gather(cast(const : bf16), %i) : fp32  ->  cast(gather(const : bf16, %i)) : fp32
    cpu.matmul(%x, const) : bf16  ->  cast(cpu.widening_bf16_matmul(cast(%x) : fp32, const)) : bf16

    Applies to matrices of at least LEAST_NUMBERS numbers. A cast matrix may have only products in fp32 and gathers as
    readers. A product in bf16 has its sums in fp32, too. No bit of a result changes: the kernels widen the numbers as
    they read them. Computes the casts of other constants that fold_but_narrow_weights has skipped.
    """
    users, counts = graph.users(), graph.use_counts()
    decisions: list[Decision] = []

    def narrow(value: Value | None) -> Value | None:
        source = None if value is None else narrow_source(value)
        if value is None or source is None:
            return None
        readers = users.get(value, ())
        reads = all(_multiplies(one) and reads_weight(one, value) for one in readers)
        return source if reads and len(readers) == counts[value] else None

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op == "cast":
            widened = narrow_source(node.values[0]) is not None and narrow(node.values[0]) is None
            return fold_node(node) if widened else None
        if node.op == "cpu.matmul" and _is_in_bf16(node):
            decisions.append(Decision("narrow_weights", node.where, BF16.name, "widened as it is read"))
            operands = [v if i == 1 or v is None else _cast(v, FP32) for i, v in enumerate(inputs)]
            product = apply(OPS[WIDENING_BF16_MATMUL], operands, node.attrs, node.sources)
            return (_cast(product[0], BF16),)
        place = 0 if node.op == "gather" else 1
        weight = narrow(node.inputs[place])
        if weight is None:
            return None
        operands = [weight if i == place else v for i, v in enumerate(inputs)]
        decisions.append(Decision("narrow_weights", node.where, weight.dtype.name, "widened as it is read"))
        if node.op == "gather":
            rows = apply(OPS[node.op], operands, node.attrs, node.sources)
            return apply(OPS["cast"], rows, {"dtype": FP32}, node.sources)
        return apply(OPS[_PRODUCTS[weight.dtype.name]], operands, node.attrs, node.sources)

    return graph.rewrite(change, ("cpu.matmul", "gather", "cast")).decided(*decisions)


def narrow_source(value: Value) -> Value | None:
    """Returns the constant matrix in bf16 or fp16 that is cast to this large fp32 value, or None."""
    source = value.node.inputs[0] if value.node.op == "cast" and value.dtype is FP32 else None
    if source is None or source.node.op != "const" or source.dtype not in (BF16, FP16):
        return None
    return source if value.type.size >= LEAST_NUMBERS else None


def reads_weight(node: Node, value: Value) -> bool:
    """True if the node reads the value as a product's matrix or as the rows of a table, and in no other place."""
    if node.inputs.count(value) != 1 or value.type.rank != 2:
        return False
    if node.op == "gather":
        return node.inputs[0] == value
    return node.op in ("linear", "matmul", "cpu.matmul") and node.inputs[1] == value


def _multiplies(node: Node) -> bool:
    """True for gathers, and for products that a kernel for weights in 16 bits computes."""
    x = node.inputs[0]
    is_fp32 = x is not None and x.dtype is FP32 and node.types[0].dtype is FP32
    return node.op == "gather" or (node.op == "cpu.matmul" and is_fp32)


def _is_in_bf16(node: Node) -> bool:
    """True for a product whose operands and result are bf16, of a large constant matrix."""
    y = node.inputs[1]
    if y is None or y.node.op != "const" or y.type.rank != 2 or y.type.size < LEAST_NUMBERS:
        return False
    return all(v is None or v.dtype is BF16 for v in (*node.inputs, *node.values))


def _cast(value: Value, dtype: DType) -> Value:
    cast = apply(OPS["cast"], [value], {"dtype": dtype}, value.node.sources)
    return (fold_node(cast[0].node) or cast)[0]
