"""Creates programs of whole tensors, in which each tensor has its own place in the arena."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from hexane.graph import Graph, Value
from hexane.memory import Memory
from hexane.ops import LEAVES
from hexane.program import Program
from hexane.program.work import multiply_adds
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.order import live_bytes, orders
from hexane.stages.bufferize.place import place
from hexane.stages.bufferize.ports_in_arena import hold
from hexane.stages.recompute.rematerialize import rematerialized
from hexane.stages.stream.stream_ports import stream_ports
from hexane.targets import Target


def in_whole_tensors(
    graph: Graph, target: Target, memory: Memory, order: str = "", first: Sequence[Value] = ()
) -> Program:
    """Returns the graph as a program with offsets. memory: says where ports lie. order, first: as in `schedule`."""
    program = place(graph, target, order, first, runtime=memory.runs_on)
    if memory.stream_input or memory.stream_output:
        program = stream_ports(program, memory.stream_input, memory.stream_output)
    return allocate(hold(program)[0] if memory.hold_ports else program)


def computing_again(program: Program, memory: Memory, budget: int) -> Iterator[Program]:
    """Yields programs of a training step that recompute values in the backward pass, for an arena of about `budget`
    bytes. Programs with few copies come first. For each order of the graph, the last program needs the least memory.
    Yields nothing for a graph without updates, which has no backward pass."""
    graph, target = program.graph, program.target
    if not graph.updates:
        return
    for order in sorted(orders(graph), key=live_bytes(graph)):
        for recomputed, first in rematerialized(graph, order, budget):
            again = in_whole_tensors(recomputed, target, memory, first=first)
            yield replace(again, repeated=_products(recomputed) - _products(graph))


def _products(graph: Graph) -> int:
    return sum(multiply_adds(node) for node in graph.nodes if node.op not in LEAVES)
