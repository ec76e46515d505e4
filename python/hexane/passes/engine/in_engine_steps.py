"""Expands layers into steps that have kernels in the chip's arithmetic; each step rounds to fp16."""

from hexane.dtypes import FP16
from hexane.graph import Graph, Node, Value
from hexane.ops import OPS
from hexane.ops.records.engine.form import is_finished
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.layer_steps import STEPS
from hexane.passes.engine.steps import Steps
from hexane.targets import Target

_KERNELS = {
    "anec.convolution": "conv", "anec.cross_correlation": "conv", "anec.matmul": "matmul", "anec.linear": "matmul", "anec.add": "add", "anec.sub": "sub", "anec.mul": "mul", "anec.div": "real_div",  # noqa: E501
}  # fmt: skip
_COMPOUND = ("anec.min_max_norm", "anec.dynamic_goc", "anec.scaled_elementwise")


def in_engine_steps(graph: Graph, target: Target) -> Graph:
    """anec.matmul(%x, %y, %gain) {epilogue=(gain_offset(gain=2, ..), post_activation(mode=relu, ..))}  ->  relu(mul(matmul(%x, %y), %gain))

    In programs in the chip's arithmetic, a layer that one kernel does not compute completely becomes steps in fp16.
    Each step is rounded unless the hardware is known not to round after it. A gain and its offset are rounded
    once together, and so are a reduction's squares, sum, gain and offset. Constants are fp16.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        op = OPS[node.op]
        if (
            not (op.takes_slots or node.op in _COMPOUND or node.op in STEPS)
            or op.level != "engine"
            or op.expand is None
        ):
            return None
        if not any(v is not None and v.dtype is FP16 for v in inputs):
            return None
        steps = Steps(*node.sources)
        if node.op in STEPS and (node.op != "anec.deconvolution" or node.types[0].rank == 4):
            return (STEPS[node.op](steps, *inputs, **node.attrs),)
        if slots_of(node) and is_finished(_KERNELS.get(node.op, ""), inputs[:2], slots_of(node), inputs):
            return None
        result = op.expand(steps, *inputs, **node.attrs)
        return (result,) if isinstance(result, Value) else tuple(result)

    return graph.rewrite(change)
