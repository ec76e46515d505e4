"""Lets layers be computed in the chip's arithmetic, whose kernels store fp16: products whose chain no kernel finishes, softmax, attention."""

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.records.engine.form import is_finished
from hexane.passes.engine.chain import CONVOLUTIONS, slots_of
from hexane.targets import Target

_KERNELS = {"anec.convolution": "conv", "anec.cross_correlation": "conv", "anec.deconvolution": "conv_transpose"}
_STEPS = {"anec.softmax": "softmax", "anec.sdpa": "scaled_dot_product_attention"}


def round_accumulators(graph: Graph, target: Target) -> Graph:
    """anec.matmul(%x, %y, %gain) {epilogue=(gain_offset(gain=2, ..)), rounds=(output)}  ->  .. {.., rounds=(accumulate, output)}

    For programs in the chip's arithmetic: kernels finish with biases and activations, and what else is in the chain reads a product
    that was rounded to fp16. Softmax and attention are written out in fp32 otherwise; here they become the ops whose kernels take the
    chip's steps.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in _STEPS:
            if node.op == "anec.sdpa" and not node.attrs["subtract_max"]:
                return None
            attrs = {name: value for name, value in node.attrs.items() if name != "subtract_max"}
            return apply(OPS[_STEPS[node.op]], inputs, attrs, node.sources)
        finished = is_finished(_KERNELS.get(node.op, "matmul"), inputs[:2], slots_of(node), inputs)
        if finished or "accumulate" in node.attrs["rounds"]:
            return None
        return apply(
            OPS[node.op], inputs, {**node.attrs, "rounds": ("accumulate", *node.attrs["rounds"])}, node.sources
        )

    return graph.rewrite(change, {*CONVOLUTIONS, *_STEPS})
