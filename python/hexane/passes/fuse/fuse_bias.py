"""Moves the addition of a per-column or per-channel constant into the op before it."""

from hexane.graph import Graph, Value
from hexane.ops import OPS
from hexane.ops.match import Found, Pattern, op, rewrite
from hexane.ops.predicates import channel_axis, is_product, only_along
from hexane.ops.records.quant import BYTES
from hexane.targets import Target


def fuse_bias(graph: Graph, target: Target) -> Graph:
    """matmul(%x, %w) + %b  ->  matmul(%x, %w, %b)

    Requires that %b has one element per output column (matmul) or channel (convolutions), and that the product has no
    bias and no other reader. A product rounded to 8 bits is not changed, because it is rounded before the addition.
    """
    return rewrite(graph, _BIASED, _build)


_BIASED = op("add", Pattern(name="product", alone=True, fits=is_product), "bias")


def _build(m: Found) -> tuple[Value, ...] | None:
    maker, bias = m["product"].node, m["bias"]
    kind, axis, place = maker.types[0], channel_axis(maker), OPS[maker.op].inputs.index("bias?")
    if maker.inputs[place] is not None or kind.dtype in BYTES or not only_along(bias, axis, kind.shape):
        return None
    return m.absorb(maker, place, bias, (kind.shape[axis],))
