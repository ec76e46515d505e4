"""Plans memory: turns a lowered graph into a program within memory limits. `hx.compile` and `hexane fit` use it before
they create anything that runs."""

from hexane.graph import Graph
from hexane.memory import Memory
from hexane.passes.run import Watch
from hexane.planning.extra_memory import ExtraBytes
from hexane.planning.flash import in_flash
from hexane.planning.search import fitted
from hexane.planning.whole import in_whole_tensors
from hexane.program import Program
from hexane.stages.bufferize.place import place
from hexane.stages.stream.stream import stream
from hexane.stages.stream.stream_ports import stream_ports
from hexane.targets import Target


def plan(
    graph: Graph,
    target: Target,
    memory: Memory,
    *,
    order: str = "",
    threads: int = 1,
    extra_bytes: ExtraBytes | None = None,
    watch: Watch | None = None,
) -> Program:
    """Returns the graph as a program with offsets, with the rows or the limits that `memory` states.

    order: see `schedule`. threads: of the CPU; each thread needs scratch. extra_bytes: a counter for this number of
    threads, which is reused. Raises Error if the graph does not fit.
    """
    if memory.rows:
        program = stream_ports(place(graph, target, order), memory.stream_input, memory.stream_output)
        program = stream(program, memory.rows, order=order, holds_ports=memory.hold_ports)
    else:
        program = in_whole_tensors(graph, target, memory, order)
    if watch is not None:
        watch("program", program)
    if memory.sram is not None or memory.limits:  # an sram of 0 bytes is a limit
        extra_bytes = extra_bytes or ExtraBytes(threads)
        program = in_flash(fitted(program, extra_bytes, memory, order), extra_bytes, memory)
    if watch is not None and memory.sram is not None and program.loops:
        watch("program-streamed", program)
    return program
