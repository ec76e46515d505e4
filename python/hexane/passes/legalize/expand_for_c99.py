"""Expands ops that have no kernel in the C99 runtime into other ops."""

from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS
from hexane.ops.rewriter import Pattern, Rewriter
from hexane.system.c99_library import kernel_names
from hexane.targets import Target


def expand_for_c99(graph: Graph, target: Target) -> Graph:
    """%1 = scaled_dot_product_attention(%q, %k, %v)  ->  %1 = matmul(softmax(matmul(%q, %k) * 0.125), %v)

    Expands every op that has a kernel on the host but none in the C99 runtime, if its record or this module defines an
    expansion. Keeps the graph's meaning.
    """
    return graph.rewrite(Rewriter(legal=_is_legal, patterns=_PATTERNS).change, graph.ops & _EXPANDED)


def _is_legal(node: Node) -> bool:
    op = OPS[node.op]
    return op.kernel is None or node.op not in _EXPANDED or op.kernel in kernel_names()


def _topk(b: Any, node: Node) -> tuple[Value, Value]:
    """Computes topk as the first indices of an argsort, and the elements at these indices."""
    (x,), attrs = node.inputs, node.attrs
    assert x is not None
    axis, rank = attrs["axis"] % len(x.shape), len(x.shape)
    order = b.argsort(x, axis=axis, descending=attrs["largest"], dtype=attrs["dtype"])
    indices = b.slice_by_index(
        order, begin=[0] * rank, end=[attrs["k"] if i == axis else n for i, n in enumerate(x.shape)]
    )
    return b.gather_along_axis(x, indices, axis=axis), indices


def _reduced(name: str, before: str, after: str) -> Pattern:
    """Returns the pattern of a reduction with an op before it, such as abs, and an op after it, such as sqrt."""

    def write(b: Any, node: Node) -> Value:
        x = node.inputs[0]
        total = getattr(b, name)(getattr(b, before)(x) if before else x, **node.attrs)
        result: Value = getattr(b, after)(total) if after else total
        return result

    return write


def _log_sum_exp(b: Any, node: Node) -> Value:
    """Computes log(sum(exp(x - max))) + max. The max is clipped to finite numbers, so that inf - inf does not occur."""
    x = node.inputs[0]
    most = b.reduce_max(x, axes=node.attrs["axes"], keep_dims=True)
    top = b.clip(most, alpha=-3.4028234663852886e38, beta=3.4028234663852886e38)
    total = b.log(b.reduce_sum(b.exp(b.sub(x, top)), axes=node.attrs["axes"], keep_dims=True))
    result: Value = b.add(total, top)
    if not node.attrs["keep_dims"]:
        result = b.reshape(result, shape=node.values[0].shape)
    return result


_PATTERNS: dict[str, tuple[Pattern, ...]] = {
    "topk": (_topk,),
    "reduce_l1_norm": (_reduced("reduce_sum", "abs", ""),),
    "reduce_l2_norm": (_reduced("reduce_sum_square", "", "sqrt"),),
    "reduce_log_sum": (_reduced("reduce_sum", "", "log"),),
    "reduce_log_sum_exp": (_log_sum_exp,),
}
_EXPANDED = {name for name, op in OPS.items() if op.expand is not None and op.kernel is not None} | {*_PATTERNS}
