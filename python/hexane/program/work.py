"""How much a layer does, as far as types and shapes say it: operations, and bytes from and to main memory. No times: no
source says how many operations a core does in a cycle, or how many bytes a chip moves in a second."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from hexane.graph import Node


class Work(NamedTuple):
    """operations: FLOPs of products, two for each multiply-add; of other layers elements read or written, whichever are
    more; 0 for transfers. bytes: tensors loaded and stored, spills included, and weights, which are read once."""

    operations: int
    bytes: int

    def __add__(self, other: object) -> "Work":
        assert isinstance(other, Work)
        return Work(self.operations + other.operations, self.bytes + other.bytes)


NO_WORK = Work(0, 0)


def total(works: Iterable[Work]) -> Work:
    return sum(works, NO_WORK)


def of_program(node: Node) -> Work:
    """The work of a call of a device's program, from its attributes. Traffic on chip is not counted."""
    return Work(2 * multiply_adds(node), int(str(node.attrs["moved"])))


def multiply_adds(node: Node) -> int:
    """Multiply-adds of a kernel, padding included, or of a device's program; 0 for other nodes."""
    op, inputs = node.op.rpartition(".")[2], node.inputs
    for prefix in ("quantized_", "encoded_", "rows_", "sparse_", "widening_", "accumulating_", "bf16_"):
        op = op.removeprefix(prefix)
    if op == "program":
        return int(str(node.attrs["multiply_adds"]))
    if op not in (
        "conv",
        "pixels",
        "linear",
        "conv_transpose",
        "matmul",
        "scaled_dot_product_attention",
        "attention_gradient",
    ):
        return 0
    assert inputs[0] is not None
    assert inputs[1] is not None
    x, weight, result = inputs[0].type, inputs[1].type, node.types[0]
    if "bits" in node.attrs or "columns" in node.attrs:  # a weight (out, bytes), or without its zeros
        axis = -2 if node.attrs.get("transpose_x") else 1 if node.attrs.get("layout") == "nchw" else -1
        return result.size * x.shape[axis] * prod(node.attrs.get("kernel_sizes", ()))
    if op == "conv":  # weight (out, in of a group, kernel)
        return result.size * prod(weight.shape[1:])
    if op == "conv_transpose":  # weight (in, out of a group, kernel)
        return x.size * prod(weight.shape[1:])
    if op == "attention_gradient":  # scores, what values get, and the gradients of queries, keys and values
        return 5 * x.size * x.shape[-2]
    if op in ("matmul", "linear"):
        return result.size * x.shape[-2 if node.attrs.get("transpose_x") else -1]
    assert inputs[2] is not None
    return prod(x.shape[:-1]) * weight.shape[-2] * (x.shape[-1] + inputs[2].shape[-1])  # keys, then values
