"""Computes matrix products, convolutions and attention with operands in bf16."""

from collections.abc import Callable, Collection, Container
from math import prod

from hexane.dtypes import BF16, BOOL, FP32, DType
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.bf16_product import BF16_ATTENTION, BF16_CONV, BF16_MATMUL, STORED_CONV
from hexane.passes.quantize.narrow_weights import narrow_source
from hexane.targets import Target

ATTENTION, CONV = "scaled_dot_product_attention", "cpu.conv"
_PRODUCTS = {  # op -> the op's form in bf16
    "cpu.matmul": BF16_MATMUL,
    CONV: BF16_CONV,
    ATTENTION: BF16_ATTENTION,
}

_READERS = (BF16_MATMUL, BF16_CONV)  # ops that round x to bf16

FEW_ROWS = 3  # for so few rows, packing a computed matrix costs more than bf16 saves.
PANEL = 16  # Columns of a tile.
LEAST_QUERIES, LEAST_KEYS = 64, 192  # For smaller attentions, packing and softmax take most of the time.


def use_bf16(graph: Graph, target: Target) -> Graph:
    """cpu.matmul(%x, %y) : fp32  ->  cpu.bf16_matmul(%x, cast(%y) : bf16) : fp32
    cpu.conv(%x, %w) : fp32  ->  cpu.bf16_conv(%x, cast(%w) : bf16) : fp32
    scaled_dot_product_attention(%q, %k, %v)  ->  cpu.bf16_scaled_dot_product_attention(%q, %k, %v)
    cpu.matmul(%x, %y) : bf16  ->  cast(cpu.bf16_matmul(cast(%x) : fp32, %y)) : bf16

    Both operands of a product are rounded to bf16; the kernel rounds x as it reads x. Sums, bias, epilogue and result
    are in fp32. Constant weights are rounded at compile time. Depthwise convolutions, convolutions with narrow groups,
    and products of a few rows with a computed matrix stay in fp32. Attention with less than 64 queries or 192 keys
    stays in fp32 too. A result that only products in bf16 read, as x, is rounded to bf16 when it is stored instead of
    when it is read (`narrow`), with equal bits. A depthwise convolution between products in bf16 reads and stores bf16.
    """

    return _in_bf16(graph, bf16_products(graph))


def use_bf16_in(numbers: Collection[int]) -> Callable[[Graph, Target], Graph]:
    """Returns the pass for some products only. numbers: their positions in `bf16_products`."""

    def use_bf16(graph: Graph, target: Target) -> Graph:
        products = bf16_products(graph)
        return _in_bf16(graph, [products[i] for i in numbers])

    return use_bf16


def bf16_products(graph: Graph) -> list[Node]:
    """Returns the products that the pass rewrites, in the order of the graph."""
    return [node for node in graph.nodes if node.op in _PRODUCTS and _is_taken(node)]


def _in_bf16(graph: Graph, chosen: Collection[Node]) -> Graph:
    known = set(chosen)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node not in known:
            return None
        narrow = () if node.op == ATTENTION else (1,)  # operands that the kernel reads in bf16
        operands = [
            v if v is None or v.dtype is BOOL else _cast(v, BF16 if i in narrow else FP32) for i, v in enumerate(inputs)
        ]
        product = apply(OPS[_PRODUCTS[node.op]], operands, node.attrs, node.sources)
        return (_cast(product[0], node.types[0].dtype),)

    return _stored_in_bf16(graph.rewrite(change, tuple(_PRODUCTS)))


def _stored_in_bf16(graph: Graph) -> Graph:
    """cpu.bf16_matmul(cpu.bf16_matmul(%x, %y), %z)  ->  cpu.bf16_matmul(cpu.bf16_matmul(%x, %y) {narrow}, %z)
    cpu.bf16_matmul(cast(%x : bf16) : fp32, %y)  ->  cpu.bf16_matmul(%x, %y)
    cpu.bf16_conv(cpu.conv(%x, %w), %v)  ->  cpu.bf16_conv(cpu.bf16_stored_conv(%x, %w) {narrow}, %v)

    A product that adds a residual stays fp32, the dtype of its residual. A convolution in fp32 that products in bf16
    read is stored in bf16, and so is the product that only this convolution reads: a depthwise convolution and the
    products around it.
    """
    counts = graph.use_counts()

    def is_narrow(node: Node, readers: Container[Node]) -> bool:
        value = node.values[0]
        if any(slot.operand is not None for slot in node.attrs["epilogue"]):
            return False
        as_x = sum(u in readers and u.inputs[0] == value and u.inputs.count(value) == 1 for u in graph.readers(value))
        return as_x == counts[value] > 0

    readers = {node for node in graph.nodes if node.op in _READERS}
    between = {node for node in graph.nodes if node.op == CONV and _is_fp32(node) and is_narrow(node, readers)}
    readers |= between

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node not in readers:
            return None
        x = inputs[0]
        assert x is not None
        source = x.node.inputs[0] if x.node.op == "cast" else None
        left = source if source is not None and source.dtype is BF16 else x
        narrow = node in between or is_narrow(node, readers)
        op = STORED_CONV if node in between else node.op
        product = apply(OPS[op], (left, *inputs[1:]), {**node.attrs, "narrow": narrow}, node.sources)
        return (_cast(product[0], FP32),)

    return graph.rewrite(change, (*_READERS, CONV))


def _is_fp32(node: Node) -> bool:
    return all(v is None or v.dtype is FP32 for v in (*node.inputs, *node.values))


def _is_taken(node: Node) -> bool:
    dtype, (x, y) = node.types[0].dtype, node.inputs[:2]
    assert x is not None
    assert y is not None
    takes = (dtype, BOOL) if node.op == ATTENTION else (dtype,)  # a mask
    if dtype not in (FP32, BF16) or any(v is not None and v.dtype not in takes for v in node.inputs):
        return False
    if node.op == ATTENTION:
        return x.shape[-2] >= LEAST_QUERIES and y.shape[-2] >= LEAST_KEYS
    return _gains(node, x, y)


def _cast(value: Value, dtype: DType) -> Value:
    if value.dtype is dtype:
        return value
    if dtype is BF16 and (source := narrow_source(value)) is not None:
        if source.dtype is BF16:
            return source
        value = (fold_node(value.node) or (value,))[0]
    cast = apply(OPS["cast"], [value], {"dtype": dtype}, value.node.sources)
    return (fold_node(cast[0].node) or cast)[0]


def _gains(node: Node, x: Value, y: Value) -> bool:
    if node.op == "cpu.matmul":
        rows = x.shape[-1 if node.attrs["transpose_x"] else -2]
        if y.type.rank == 2:
            rows *= prod(x.shape[:-2])
        return y.node.op == "const" or narrow_source(y) is not None or rows > FEW_ROWS
    groups = node.attrs["groups"]
    return groups == 1 or (y.shape[1] % 2 == 0 and y.shape[0] // groups >= PANEL)
