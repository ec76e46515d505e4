"""Writes ops that the C99 runtime has no kernel for as other ops."""

from hexane.graph import Graph, Node
from hexane.ops import OPS
from hexane.ops.rewriter import Rewriter
from hexane.system.c99_library import kernel_names
from hexane.targets import Target


def expand_for_c99(graph: Graph, target: Target) -> Graph:
    """%1 = scaled_dot_product_attention(%q, %k, %v)  ->  %1 = matmul(softmax(matmul(%q, %k) * 0.125), %v)

    Every op that has a kernel on the host, none in the C99 runtime, and a record that says how it is written out. Keeps
    the graph's meaning.
    """
    return graph.rewrite(Rewriter(legal=_is_legal).change, graph.ops & _EXPANDED)


def _is_legal(node: Node) -> bool:
    op = OPS[node.op]
    return op.kernel is None or op.expand is None or op.kernel in kernel_names()


_EXPANDED = {name for name, op in OPS.items() if op.expand is not None and op.kernel is not None}
