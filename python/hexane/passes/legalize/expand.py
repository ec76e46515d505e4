"""Expands ops that have no kernel of their own into other ops."""

from hexane.graph import Graph, Node
from hexane.ops import OPS
from hexane.ops.rewriter import Rewriter
from hexane.passes.legalize.legalize_dtypes import has_kernel
from hexane.targets import Kernels, Target


def kernel_ops(*sources: str, kernels: Kernels | None = None) -> Rewriter:
    """Returns a Rewriter that expands each op without a kernel in `kernels`. With kernels=None it expands only ops that
    have no kernel for any target."""

    def legal(node: Node) -> bool:
        return has_kernel(node, kernels) if kernels is not None else bool(OPS[node.op].kernel)

    return Rewriter(*sources, legal=legal)


def expand(graph: Graph, target: Target) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Expands every op whose record has an expansion and for which no kernel supports its dtypes or wider ones. New ops
    are expanded in the same way. Keeps the graph's meaning.
    """
    return graph.rewrite(kernel_ops(kernels=target.kernels).change, _EXPANDED)


_EXPANDED = {name for name, op in OPS.items() if op.expand is not None}
