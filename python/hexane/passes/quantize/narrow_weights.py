"""Stores weights in 16 bits if 16 bits hold their numbers."""

from collections.abc import Callable, Mapping
from weakref import WeakKeyDictionary

import ml_dtypes
import numpy as np

from hexane.dtypes import BF16, FP16, FP32
from hexane.graph import Array, Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.fold import fold_node
from hexane.ops.records.widening_product import WIDENING_BF16_MATMUL, WIDENING_MATMUL
from hexane.targets import Target

LEAST_NUMBERS = 1 << 16  # of a weight; for smaller ones the traffic does not count
_SAMPLE = 4096  # numbers that most weights in fp32 fail at
_PRODUCTS: Mapping[str, str] = {"bf16": WIDENING_BF16_MATMUL, "fp16": WIDENING_MATMUL}  # by the dtype of y


def narrow_weights(graph: Graph, target: Target) -> Graph:
    """cpu.matmul(%x, const : fp32) : fp32  ->  cpu.widening_bf16_matmul(%x, const : bf16) : fp32
    gather(const : fp32, %i)  ->  cast(gather(const : bf16, %i)) : fp32
    cpu.matmul(%x, cast(const : fp16))  ->  cpu.widening_matmul(%x, const : fp16) : fp32

    Applies to matrices of at least LEAST_NUMBERS numbers that only products in fp32 and gathers read. All numbers must
    equal numbers of bf16, or all numbers of fp16, as in a model whose file stores 16 bits. No bit of a result changes:
    the kernels widen the numbers as they read them. Computes the casts of other constants that the fold before has
    skipped.
    """
    users, counts = graph.users(), graph.use_counts()
    stored: dict[Value, Value | None] = {}
    decisions: list[Decision] = []

    def narrow(value: Value | None) -> Value | None:
        if value is None or value.node.op not in ("const", "cast"):
            return None
        if value not in stored:
            readers = users.get(value, ())
            known = len(readers) == counts[value] and all(
                _multiplies(one) and reads_weight(one, value) for one in readers
            )
            stored[value] = _in_16_bits(value) if known else None
        return stored[value]

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op == "cast":
            widened = narrow_source(node.values[0]) is not None and narrow(node.values[0]) is None
            return fold_node(node) if widened else None
        place = 0 if node.op == "gather" else 1
        weight = narrow(node.inputs[place])
        if weight is None:
            return None
        operands = [weight if i == place else v for i, v in enumerate(inputs)]
        decisions.append(Decision("narrow_weights", node.where, weight.dtype.name, "holds all numbers of the weight"))
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


_known: "WeakKeyDictionary[Node, Value | None]" = WeakKeyDictionary()


def _in_16_bits(value: Value) -> Value | None:
    """Returns the constant in bf16 or fp16 with equal numbers, or None."""
    if (source := narrow_source(value)) is not None:
        return source
    node = value.node
    if node.op != "const" or value.dtype is not FP32 or value.type.size < LEAST_NUMBERS:
        return None
    if node not in _known:
        assert node.data is not None
        _known[node] = next(
            (constant(a, node.sources) for to in (_bf16, _fp16) if (a := to(node.data)) is not None), None
        )
    return _known[node]


def _bf16(data: Array) -> Array | None:
    def is_exact(part: Array) -> bool:
        return not (part.view(np.uint32) & 0xFFFF).any()

    return _converted(data, is_exact, lambda part: (part.view(np.uint32) >> 16).astype(np.uint16), ml_dtypes.bfloat16)


def _fp16(data: Array) -> Array | None:
    def is_exact(part: Array) -> bool:
        with np.errstate(over="ignore"):
            return bool((part.astype(np.float16).astype(np.float32).view(np.uint32) == part.view(np.uint32)).all())

    return _converted(data, is_exact, lambda part: part.astype(np.float16).view(np.uint16), np.float16)


def _converted(
    data: Array, is_exact: Callable[[Array], bool], bits: Callable[[Array], Array], dtype: type
) -> Array | None:
    """Returns the numbers in the dtype, made from their bits, or None if a number is not exact. Works on parts, which
    need little memory."""
    numbers = np.ascontiguousarray(data).reshape(-1)
    if not is_exact(numbers[:_SAMPLE]):
        return None
    result = np.empty(numbers.size, np.uint16)
    step = 1 << 20
    for begin in range(0, numbers.size, step):
        part = numbers[begin : begin + step]
        if not is_exact(part):
            return None
        result[begin : begin + step] = bits(part)
    return result.view(dtype).reshape(data.shape)
