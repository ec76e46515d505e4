"""The pipeline: what happens to a graph on its way to a program, in order."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from hexane.compression.streams import stored_decisions
from hexane.errors import Error
from hexane.graph import Graph, Port, Value
from hexane.options import DEFAULTS, Options
from hexane.passes.engine.in_engine_steps import in_engine_steps
from hexane.passes.engine.lower_segment import PHASES
from hexane.passes.engine.multiply_bytes import multiply_bytes
from hexane.passes.engine.saturate_slices import saturate_slices
from hexane.passes.engine.scale_weights import scale_weights
from hexane.passes.legalize.keep_halves import keep_halves
from hexane.passes.legalize.save_states import save_states
from hexane.passes.order import Pass, passes
from hexane.passes.repair import repair
from hexane.passes.retarget import retarget, takes
from hexane.planning.plan import Watch, plan
from hexane.planning.whole import in_whole_tensors
from hexane.program import Program, Segment
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.stages.engine.numerics import in_engine_numerics
from hexane.stages.engine.place_layers import PlacedLayers, place_layers
from hexane.stages.engine.schedule_layers import schedule_layers
from hexane.stages.recompute.copies import recomputed
from hexane.stages.recompute.marks import marked, regions
from hexane.stages.segments.assign_steps import assign_steps, found_layers, in_order, with_layers
from hexane.stages.segments.devices import Programs
from hexane.stages.segments.join import Parts, join
from hexane.stages.segments.segment import segment
from hexane.stages.stream.stream import stream
from hexane.targets import Chip, Target, load_target
from hexane.verify import GraphLevel, level_of, verify

LOWERING = tuple(Pass(p.run, level="engine" if p is PHASES[-1] else "lowering") for p in PHASES)
# Layers to steps in the chip's own arithmetic.
ENGINE_STEPS = (Pass(saturate_slices), Pass(multiply_bytes), Pass(scale_weights), Pass(in_engine_steps))


def engine_form(piece: Graph, chip: Chip) -> Graph:
    """A segment of the engine as it is lowered to layers: users' ops in fp16, the ports too."""
    return _after(passes("engine", chip), piece, chip)


def lower(
    graph: Graph,
    target: Target,
    options: Options = DEFAULTS,
    *,
    skip: frozenset[str] = frozenset(),
    watch: Watch | None = None,
) -> Graph:
    """The graph after the passes of "host", but those named in `skip`, which tests switch off."""
    return _after(passes("host", target, options), graph, target, skip, watch)


def _after(
    chosen: Sequence[Pass], graph: Graph, target: Target, skip: frozenset[str] = frozenset(), watch: Watch | None = None
) -> Graph:
    """The graph after these passes.

    With HEXANE_VERIFY=1 in the environment, Error is raised for the first pass whose graph is not sound, or has lost a
    decision.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    level: GraphLevel = level_of(graph) if checks else "user"
    for p in chosen:
        if p.name not in skip:
            before, level_before = graph, level
            graph, level = _run(p, graph, target), p.level or level
            if checks and (graph is not before or level != level_before):
                verify_after(p.name, graph, level, target, before)
            if watch is not None:
                watch(p.name, graph)
    return graph


def _run(p: Pass, graph: Graph, target: Target) -> Graph:
    if not (p.legal and isinstance(target, Chip)):
        return p.run(graph, target)
    asked = graph.annotated(takes=partial(takes, chip=target))
    return p.run(asked, target).annotated(takes=None)


def verify_after(name: str, graph: Graph, level: GraphLevel, target: Target, before: Graph) -> None:
    """`verify`, whose Error names the pass as well; and what was decided before is still there."""
    try:
        verify(graph, level, target)
    except Error as error:
        raise Error(f"[after {name}] {error}") from None
    if graph.decisions[: len(before.decisions)] != before.decisions:
        raise Error(f"[after {name}] got decisions other than those before it, need them kept: {before.decisions}")


def compile_graph(
    graph: Graph,
    target: Target,
    options: Options = DEFAULTS,
    *,
    skip: frozenset[str] = frozenset(),
    watch: Watch | None = None,
    planned: bool = True,
) -> Program:
    """Graph -> Program within the memory of the options, ready to be emitted. skip: as `lower` has it. planned: False
    for the program of whole tensors that plans are made from."""
    assert not isinstance(target, Chip), "compile_segments compiles for chips"
    if watch is not None:
        watch("graph", graph)
    graph, marks = marked(graph)
    graph = lower(graph, target, options, skip=skip, watch=watch)
    if marks is not None:
        graph = save_states(recomputed(*regions(graph, marks)), target)
        if watch is not None:
            watch("recomputed", graph)
    if not planned:
        return in_whole_tensors(graph, target, options.memory, options.schedule)
    return plan(graph, target, options.memory, order=options.schedule, threads=options.num_threads, watch=watch)


def divide(
    graph: Graph, chip: Chip, watch: Watch | None = None, programs: Programs | None = None
) -> tuple[Graph, tuple[Segment, ...]]:
    """What a chip's program is made of: the graph as the chip takes it, with what was decided, and its segments in
    order. programs: as `segment` has it.

    Static analysis: `preflight` and `compile` ask the same.
    """
    if watch is not None:
        watch("graph", graph)
    graph = graph.decided(*stored_decisions(graph, chip))
    graph = repair(graph, chip)
    if watch is not None:
        watch("repair", graph)
    graph = retarget(graph, chip)
    if watch is not None:
        watch("retarget", graph)
    graph, segments = segment(graph, chip, programs)
    if watch is not None:
        watch("segment", graph)
    return graph, segments


def compile_segments(
    graph: Graph,
    segments: tuple[Segment, ...],
    chip: Chip,
    options: Options = DEFAULTS,
    *,
    watch: Watch | None = None,
    on_engine: Callable[[Graph], Graph] | None = None,
) -> Program:
    """The program of a chip, for the CPU that runs it in its place: segments one after the other, in one plan.
    on_engine: the function that makes a graph of one step of a segment of the engine, where the engine itself runs it.

    Segments of the engine are in fp16, those of the host in the model's dtypes, or in fp16 too by `dtype` of the
    options.
    """
    in_engine = options.numerics != "ieee"
    on_host = Options(dtype=options.dtype)
    host = load_target("host")
    engine = replace(host, name=chip.name, asked=chip.asked, residual_epilogue=chip.residual_epilogue)
    parts = Parts(graph, segments, halved=options.dtype == "fp16")
    alone = frozenset({"save_states"})  # who reads what a state held is known when all segments are there
    lowered = []
    placed = PlacedLayers()
    for found, piece in zip(segments, parts.graphs(), strict=True):
        named = _prefixed(watch, f"segment{found.index}-")
        if found.device != "ane":
            lowered.append(lower(piece, host, on_host, skip=alone, watch=named))
            continue
        if on_engine is not None:
            lowered.append(on_engine(piece))
            continue
        layers = _after([*passes("engine", chip), *LOWERING], piece, chip, watch=named)
        scheduled = schedule_layers(layers, chip, options.schedule or "apple")
        layers = with_layers(layers, scheduled.values, len(placed.layers))
        placed = placed.joined(place_layers(scheduled, chip, found.index, placed))
        layers = _after(ENGINE_STEPS if in_engine else (), layers, chip, watch=named)
        lowered.append(_after(passes("layers", engine), layers, engine, watch=named))
    constants = parts.constants()
    joined, roots = join(parts, lowered, None if constants is None else lower(constants, host), options.io == "fp16")
    # Only now are the casts at the ports of programs in one graph with their readers.
    if on_engine is not None and not options.memory.rows:
        joined, roots = _halved(joined, roots, engine)
    joined, roots = _with_roots(joined, roots, engine)
    joined, made = found_layers(joined, len(placed.layers))
    if watch is not None:
        watch("join", joined)
    first = [value for values in in_order(placed.layers, made, roots) for value in values]
    program = placed.into(place(joined, engine, first=first))
    program = assign_steps(program, segments, made, roots, host)
    if in_engine and on_engine is None:
        program = in_engine_numerics(program, chip, host.arithmetic)
    rows = options.memory.rows
    program = stream(program, rows) if rows else allocate(program)
    if watch is not None:
        watch("program", program)
    return program


def _prefixed(watch: Watch | None, prefix: str) -> Watch | None:
    return None if watch is None else lambda name, made: watch(prefix + name, made)


def _halved(graph: Graph, roots: Sequence[Sequence[Value]], target: Target) -> tuple[Graph, list[list[Value]]]:
    """The graph after keep_halves, and what became of the roots of its segments. A root that the graph does not compute
    any more becomes the values that it was made of."""
    became: dict[Value, Value] = {}
    halved = keep_halves(graph, target, became)
    there = set(halved.nodes)

    def left(values: Sequence[Value]) -> list[Value]:
        seen: dict[Value, None] = {}
        waiting = list(reversed(values))
        while waiting:
            value = waiting.pop()
            value = became.get(value, value)
            if value not in seen:
                seen[value] = None
                waiting += () if value.node in there else [v for v in reversed(value.node.inputs) if v is not None]
        return [value for value in seen if value.node in there]

    return halved, [left(values) for values in roots]


def _with_roots(graph: Graph, roots: Sequence[Sequence[Value]], target: Target) -> tuple[Graph, list[list[Value]]]:
    """The graph after save_states, and what became of the roots of its segments."""
    hidden = [Port(f"%{i}.{j}", v) for i, values in enumerate(roots) for j, v in enumerate(values)]
    saved = save_states(replace(graph, outputs=(*graph.outputs, *hidden)), target)
    if os.environ.get("HEXANE_VERIFY") == "1":
        verify_after("save_states", saved, "kernel", target, graph)
    num_outputs = len(graph.outputs)
    values = iter([port.value for port in saved.outputs[num_outputs:]])
    return replace(saved, outputs=saved.outputs[:num_outputs]), [[next(values) for _ in kept] for kept in roots]
