"""Replaces a recurrent network by one op whose kernel loops over the steps, instead of several ops per step."""

from hexane.dtypes import FP32
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.compose import checked_lengths
from hexane.ops.fold import Folder
from hexane.ops.records.recurrent import LENGTHS, RECURRENT, is_written_out, loop_name
from hexane.passes.legalize.legalize_dtypes import has_kernel
from hexane.targets import Target


def keep_recurrent(graph: Graph, target: Target) -> Graph:
    """%y, %h, %c = lstm(%x, %w, %r, %b)  ->  %y, %h, %c = cpu.lstm(%x, %w, %r, %b) {sequence=True}

    Applies to gru and rnn too. Skips dtypes without a kernel, and empty tensors. Skips a network whose gradients have
    unrolled the steps, because the kernel would repeat the steps. In fp32 no bit of a result changes.
    """
    return _kept(graph, target, on_device=False)


def keep_recurrent_for_c99(graph: Graph, target: Target) -> Graph:
    """%y, %h = gru(%x, %w, %r)  ->  %y, %h, %room = cpu.gru_with_room(%x, %w, %r) {sequence=True}

    Like keep_recurrent, for the C99 runtime's kernel, which supports fp32 only and has no scratch. A GRU whose reset
    gate scales the state gets an additional output (%room) as working memory.
    """
    return _kept(graph, target, on_device=True)


def _kept(graph: Graph, target: Target, on_device: bool) -> Graph:
    if not graph.ops.intersection(RECURRENT):
        return graph
    nodes = set(graph.nodes)
    read = {*graph.users(), *(port.value for port in (*graph.outputs, *graph.taps)), *graph.updates}
    decisions: list[Decision] = []

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        def decide(verdict: str, reason: str) -> None:
            decisions.append(Decision("keep_recurrent", node.where, verdict, reason))

        if any(t.size == 0 for t in node.types) or any(v is not None and v.type.size == 0 for v in inputs):
            decide("written out", "it has no elements")
            return None
        b = Folder(*node.sources)
        if is_written_out(b, node, nodes):
            decide("written out", "gradients need its steps")
            return None
        operands = list(inputs)
        if (lengths := operands[LENGTHS]) is not None:
            x = operands[0]
            assert x is not None
            operands[LENGTHS] = checked_lengths(b, lengths, x.shape[1 if node.attrs["batch_first"] else 0])
        attrs = {**node.attrs, "sequence": node.values[0] in read}
        name = loop_name(node.op, on_device and not node.attrs.get("linear_before_reset", True))
        loop = apply(OPS[name], operands, attrs, node.sources)
        if not has_kernel(loop[0].node, target.kernels) or (on_device and node.types[0].dtype != FP32):
            decide("written out", f"no kernel computes it in {node.types[0].dtype.name}")
            return None
        decide("one loop", "its kernel runs all steps, with the weights packed once")
        results = tuple(loop[: len(node.values)])
        return results if attrs["sequence"] else (node.values[0], *results[1:])

    return graph.rewrite(change, RECURRENT).decided(*decisions)
