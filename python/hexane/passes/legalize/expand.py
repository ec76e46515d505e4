"""Writes ops that have no kernel of their own as other ops."""

from hexane.graph import Graph, Node
from hexane.ops import OPS
from hexane.ops.rewriter import Rewriter
from hexane.passes.legalize.legalize_dtypes import has_kernel
from hexane.targets import Kernels, Target


def kernel_ops(*sources: str, kernels: Kernels | None = None) -> Rewriter:
    """A Rewriter that expands each op that `kernels` does not have. With kernels=None it expands only ops without any
    kernel."""

    def legal(node: Node) -> bool:
        return has_kernel(node, kernels) if kernels is not None else bool(OPS[node.op].kernel)

    return Rewriter(*sources, legal=legal)


def expand(graph: Graph, target: Target) -> Graph:
    """%1 = linear(%x, %w, %b)  ->  %1 = matmul(%x, %w, %b) {transpose_y=True}

    Every op whose record says how and that no kernel takes in its dtypes or wider ones, until none is left. Keeps the
    graph's meaning.
    """
    return graph.rewrite(kernel_ops(kernels=target.kernels).change, _EXPANDED)


_EXPANDED = {name for name, op in OPS.items() if op.expand is not None}
