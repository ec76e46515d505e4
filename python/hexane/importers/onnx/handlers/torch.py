"""PyTorch ops that its ONNX export would otherwise replace by ops with other gradients."""

from hexane.errors import Error
from hexane.importers.onnx.node import Builder, OnnxNode, Result, known
from hexane.importers.onnx.registry import domain_op
from hexane.importers.torch import TORCH


@domain_op(TORCH, "hardtanh")
def hardtanh(b: Builder, n: OnnxNode) -> Result:
    """Returns clip(x), whose gradient is 0 at both bounds."""
    x, bounds = n.value(0), [known(n.value(i)) for i in (1, 2)]
    if bounds[0] is None or bounds[1] is None:
        raise Error("got bounds that are not known at import, need constants")
    low, high = (float(bound.reshape(())) for bound in bounds if bound is not None)
    if (low, high) == (0.0, 6.0):
        return b.relu6(x)
    inside = b.logical_and(b.greater(x, low), b.less(x, high))
    return b.select(inside, x, b.stop_gradient(b.clip(x, alpha=low, beta=high)))
