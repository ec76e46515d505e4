"""Dequantises weights before they are multiplied, as in the chip's arithmetic."""

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.records.engine.convolution import CONVOLUTIONS
from hexane.ops.slots import moved
from hexane.passes.engine.chain import slots_of
from hexane.targets import Target


def scale_weights(graph: Graph, target: Target) -> Graph:
    """anec.convolution(%x, const int8, none, %s) {epilogue=(kernel_scale(scale=3, ..))}  ->  anec.convolution(%x, dequantize(const int8, %s))

    Applies only to programs in the chip's arithmetic: the engine multiplies in fp16 and scales weights before it
    multiplies them (guide ch7). Each scaled weight is rounded once to fp16.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        chain = slots_of(node)
        if not chain or chain[0].op != "kernel_scale":
            return None
        place, x = dict(chain[0].attributes)["scale"], inputs[0]
        assert x is not None
        attrs = {"axis": 0, "dtype": x.dtype}
        (weight,) = apply(OPS["dequantize"], [inputs[1], inputs[place], None], attrs, node.sources)
        operands = [weight if i == 1 else v for i, v in enumerate(inputs) if i != place]
        new_places = {i: i - 1 for i in range(place + 1, len(inputs))}
        slots = tuple(moved(s, new_places) for s in chain[1:])
        return apply(OPS[node.op], operands, {**node.attrs, "epilogue": slots}, node.sources)

    return graph.rewrite(change, {*CONVOLUTIONS})
