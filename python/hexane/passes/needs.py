"""What a graph must contain for a pass to find work in it, by the names of ops."""

from collections.abc import Callable

from hexane.dtypes import BF16
from hexane.graph import Graph
from hexane.lowering.row_updates import SCATTERS
from hexane.ops import OPS
from hexane.ops.encodings import DECODERS
from hexane.ops.records.recurrent import RECURRENT

Needs = Callable[[Graph], bool]


def anything(graph: Graph) -> bool:
    return True


def has(*ops: str) -> Needs:
    """Returns a test for graphs that contain all of these ops. In "softmax|log_softmax" one of the ops suffices."""
    groups = [frozenset(group.split("|")) for group in ops]
    unknown = frozenset().union(*groups) - OPS.keys()
    assert not unknown, f"no ops: {unknown}"

    def needed(graph: Graph) -> bool:
        return not any(group.isdisjoint(graph.ops) for group in groups)

    return needed


has_affine = has("batch_norm|add|sub|mul|real_div")
has_convolution_sums = has("conv", "add")
has_encoded_weights = has("conv|conv_transpose|gather|linear|matmul", "|".join(DECODERS))
has_losses = has("log_softmax|softmax", "gather_along_axis|scatter_along_axis")
has_recurrence = has("|".join(RECURRENT))
has_scattered_writes = has("write_state", "|".join(SCATTERS))


def has_narrow_products(graph: Graph) -> bool:
    """True if weights may be narrower than fp32: something is cast, or a product is in bf16."""
    return "cast" in graph.ops or any(t.dtype is BF16 for node in graph.nodes for t in node.types)


def has_volumes(graph: Graph) -> bool:
    """True if the graph has a convolution over three axes."""
    return any(node.op in _CONVOLUTIONS and node.types[0].rank == 5 for node in graph.nodes)


def has_groups(graph: Graph) -> bool:
    """True if the graph has a convolution in groups."""
    return any(node.op == "conv" and node.attrs["groups"] > 1 for node in graph.nodes)


def has_squares(graph: Graph) -> bool:
    """True if the graph may compute squares: by an op for squares or products, or by a product of computed operands."""
    return not _SQUARES.isdisjoint(graph.ops) or any(
        node.op == "matmul" and all(v is None or v.node.op != "const" for v in node.inputs[:2]) for node in graph.nodes
    )


def has_square_matrices(graph: Graph) -> bool:
    """True if the graph has a product with a constant matrix of as many rows as columns."""
    return any(
        v is not None and v.node.op == "const" and v.type.rank == 2 and v.shape[0] == v.shape[1]
        for node in graph.nodes
        if node.op in ("linear", "matmul")
        for v in node.inputs[:2]
    )


_SQUARES = frozenset(("einsum", "mul", "pow", "reduce_l2_norm", "reduce_sum_square", "square"))
_CONVOLUTIONS = ("conv", "conv_transpose")
