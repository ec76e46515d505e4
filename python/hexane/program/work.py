"""The work of a layer, computed from types and shapes alone: operations, and bytes from and to main memory. Work has no
times: no source gives the operations of a core in a cycle, or the bytes that a chip moves in a second."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from hexane.graph import Node

# The meaning of `Work.operations`, for legends.
OPERATIONS = (
    "2 for each multiply-add; of other layers, the elements read or written, whichever are more; 0 for transfers"
)


class Work(NamedTuple):
    """A layer's work. operations: for products FLOPs, two for each multiply-add; for other layers the elements read or
    those written, whichever are more; 0 for transfers. bytes: tensors loaded and stored, spills included, and weights,
    which are read once."""

    operations: int
    bytes: int

    def __add__(self, other: object) -> "Work":
        assert isinstance(other, Work)
        return Work(self.operations + other.operations, self.bytes + other.bytes)


# Ops that multiply and add. A kernel whose name ends in such an op, such as q31_conv, computes the same product.
PRODUCTS = (
    "conv",
    "pixels",
    "linear",
    "conv_transpose",
    "matmul",
    "scaled_dot_product_attention",
    "attention_gradient",
)

NO_WORK = Work(0, 0)


def total(works: Iterable[Work]) -> Work:
    return sum(works, NO_WORK)


def of_program(node: Node) -> Work:
    """The work of calling a device's program, from its attributes. Traffic on chip does not count."""
    return Work(2 * multiply_adds(node), int(str(node.attrs["moved"])))


def in_bytes(node: Node) -> bool:
    """True if a kernel multiplies integers of 8 bits, so that both its operands are of 8 bits."""
    pair = [value.type.dtype for value in node.inputs[:2] if value is not None]
    return len(pair) == 2 and all(dtype.bits == 8 and dtype.kind in ("int", "uint") for dtype in pair)


def multiply_adds(node: Node) -> int:
    """Multiply-adds of a kernel, padding included, or of a device's program; 0 for other nodes."""
    inputs = node.inputs
    if node.op.rpartition(".")[2] == "program":
        return int(str(node.attrs["multiply_adds"]))
    op = _product(node.op)
    if op is None:
        return 0
    assert inputs[0] is not None
    assert inputs[1] is not None
    x, weight, result = inputs[0].type, inputs[1].type, node.types[0]
    if "bits" in node.attrs or "columns" in node.attrs:  # an encoded weight (out, bytes), or a weight without its zeros
        axis = -2 if node.attrs.get("transpose_x") else 1 if node.attrs.get("layout") == "nchw" else -1
        return result.size * x.shape[axis] * prod(node.attrs.get("kernel_sizes", ()))
    if op == "conv":  # weight (out, in of a group, kernel)
        return result.size * prod(weight.shape[1:])
    if op == "conv_transpose":  # weight (in, out of a group, kernel)
        return x.size * prod(weight.shape[1:])
    if op == "attention_gradient":  # five products: scores, and the gradients of weights, queries, keys and values
        return 5 * x.size * x.shape[-2]
    if op in ("matmul", "linear"):
        return result.size * x.shape[-2 if node.attrs.get("transpose_x") else -1]
    assert inputs[2] is not None
    return prod(x.shape[:-1]) * weight.shape[-2] * (x.shape[-1] + inputs[2].shape[-1])  # keys, then values


def _product(name: str) -> str | None:
    """The product that an op or a kernel computes, in whatever form of its operands, such as conv for cpu.q31_conv.
    None for ops that are no product."""
    op = name.rpartition(".")[2]
    return next((product for product in PRODUCTS if op == product or op.endswith(f"_{product}")), None)
