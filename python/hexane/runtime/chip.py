"""Compiles a graph for a chip, and warns the user."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from hexane.emit.mil.refusals import Loaded
from hexane.errors import FallbackWarning, HazardWarning, UnsupportedError, warn
from hexane.graph import Graph
from hexane.graph.decisions import Decision, counted
from hexane.options import DEFAULTS, Options
from hexane.passes.legalize.to_fp16 import lost_factors
from hexane.passes.repair import without_repair
from hexane.passes.retarget.marked import HOST, LEFT_OUT, marked_programs
from hexane.passes.run import Watch
from hexane.pipeline import compile_segments, divide
from hexane.program import Program, Segment
from hexane.runtime.collector import collector_paused
from hexane.stages.segments.segment import FEWER, TO_HOST
from hexane.targets import Chip

MOST_LISTED = 10


def chip_program(
    graph: Graph,
    chip: Chip,
    options: Options = DEFAULTS,
    *,
    watch: Watch | None = None,
    segment_compiler: Callable[[Graph], Graph] | None = None,
) -> Program:
    """Returns the program of a chip. segment_compiler: see `compile_segments`. One warning lists the host's ops,
    including cuts and joins for ops that the engine computes in pieces, but not the ops that `on_engine` left to the
    host. Another warning lists the ops that the chip computes differently, and a third the ops whose weights fp16 does
    not hold.

    Raises Error with the list of the host's ops if the option `fallback` is "error".
    """
    if segment_compiler is not None:
        graph = _with_writes(graph)
    if not options.repair:
        graph = without_repair(graph)
    with collector_paused():
        graph, segments = divide(graph, chip, watch, None if segment_compiler is None else Loaded())
    left = _said_of_host(graph, segments)
    said = left + _said_of_programs(graph, segments)
    if said:
        words = f"[compile] {chip.label}: {'. '.join(said)}"
        if options.fallback == "error" and left:
            raise UnsupportedError(f"{words}; need ops that the engine takes, or fallback='host'")
        warn(words, FallbackWarning)
    if hazards := [d for d in graph.decisions if d.verdict == "hazard"]:
        warn(f"[compile] {chip.label} computes some ops differently from the model: {listed(hazards)}", HazardWarning)
    with collector_paused():
        program = compile_segments(graph, segments, chip, options, watch=watch, segment_compiler=segment_compiler)
    # Several nodes may come from one op: one warning per place.
    lost = {d.node: d for d in lost_factors(program.decisions)}
    if lost:
        warn(f"[compile] {chip.label}: fp16 does not hold the weights of {listed(list(lost.values()))}", HazardWarning)
    return program


def left_to_host(graph: Graph) -> list[Decision]:
    """Returns the decisions about the host's ops, cuts and joins, without ops that `on_engine` left to the host."""
    return [d for d in graph.decisions if d.verdict in ("host", "border") and d.reason != HOST]


def _said_of_host(graph: Graph, segments: Sequence[Segment]) -> list[str]:
    """Describes the host's work in sentences; empty if the host has none."""
    count = sum(len(segment.nodes) for segment in segments)
    moved = sum(len(segment.moved) for segment in segments)
    along = f", and {moved} that only move elements with them" if moved else ""
    decisions = left_to_host(graph)
    computed = [d for d in decisions if d.verdict == "host"]
    borders = [d for d in decisions if d.verdict == "border"]
    said = [f"{_of(computed, count)} on the CPU{along}: {listed(computed)}"] if computed else []
    if borders:
        along = "" if computed else along
        said.append(
            f"{len(borders)} of {count} ops cut and join on the CPU what the engine computes in pieces{along}:"
            f" {listed(borders)}"
        )
    # Ops that only move elements, but stay on the host, for example because fp16 does not hold their integers.
    refused = [d for d in graph.decisions if d.verdict == "moved" and d.reason not in (FEWER, f"{TO_HOST}{HOST}")]
    if refused and not decisions:
        said.append(f"{_of(refused, count, ' that only move elements')} on the CPU: {listed(refused)}")
    return said


def _of(decisions: Sequence[Decision], count: int, which: str = "") -> str:
    """Returns a text such as "1 of 3 ops runs"."""
    return f"{len(decisions)} of {counted(count, 'op')}{which} {'runs' if len(decisions) == 1 else 'run'}"


def _said_of_programs(graph: Graph, segments: Sequence[Segment]) -> list[str]:
    """Describes, for a graph cut by `on_engine`, programs that do not run whole on the engine, and weight products
    outside of all programs."""
    marked = marked_programs(graph)
    device = {id(node): segment.device for segment in segments for node in segment.nodes}
    kept = {number for key, number in marked.number.items() if device.get(key) == "ane"}
    reasons = {d.node: d.reason for d in graph.decisions if d.verdict == "host" and d.reason != HOST}
    off = dict.fromkeys(sorted(set(range(len(marked.names))) - kept), "all its ops run on the CPU")
    for node in reversed(graph.nodes):  # the first node of a program decides its reason
        if id(node) in marked.number and device.get(id(node)) == "host" and node.where in reasons:
            off[marked.number[id(node)]] = reasons[node.where]
    said = []
    if off:
        places = (marked.names[i].partition(".") for i in off)
        programs = [
            Decision("segment", f"{kind} at {layer}", "host", why)
            for (layer, _, kind), why in zip(places, off.values(), strict=True)
        ]
        said.append(f"{len(off)} of {len(marked.names)} programs are not the engine's as a whole: {listed(programs)}")
    if left_out := [d for d in graph.decisions if d.verdict == LEFT_OUT]:
        said.append(f"{len(left_out)} products with weights are in no program of the engine: {listed(left_out)}")
    return said


def _with_writes(graph: Graph) -> Graph:
    """Returns the graph with all writes of states as updates: a node that reads a state after a write may use the value
    that a program computed for the write."""
    writes = [node.values[0] for node in graph.nodes if node.op == "write_state"]
    return replace(graph, updates=tuple(dict.fromkeys((*graph.updates, *writes))))


def listed(decisions: Sequence[Decision]) -> str:
    """Lists ops and reasons for a message, grouped by kind and reason, the most frequent first."""
    groups: dict[tuple[str, str], list[str]] = {}
    for decision in decisions:
        op = decision.node.partition(" at ")[0]
        groups.setdefault((op, decision.reason), []).append(decision.node)
    kinds = sorted(groups.items(), key=lambda group: -len(group[1]))
    lines = [
        nodes[0] + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "") + f" ({reason})"
        for (_, reason), nodes in kinds[:MOST_LISTED]
    ]
    more = [f"and {len(kinds) - MOST_LISTED} other kinds, which preflight lists"] if len(kinds) > MOST_LISTED else []
    return "; ".join([*lines, *more])
