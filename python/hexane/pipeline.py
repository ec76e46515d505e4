"""The pipeline: everything that happens to a graph on its way to a program, in order."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from hexane import _core
from hexane.compression.stored import stored_decisions
from hexane.dtypes import DTYPES
from hexane.emit.c99_room import carried_bytes, room_bytes
from hexane.emit.plan import emit_plan
from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, Value, constant
from hexane.graph.decisions import Decision
from hexane.memory import Memory
from hexane.ops import OPS, apply
from hexane.ops.checkpoints import CHECKPOINTED
from hexane.ops.records.control import COMPILED, LOOP, type_text
from hexane.options import DEFAULTS, Options
from hexane.passes.engine.in_engine_steps import in_engine_steps
from hexane.passes.engine.lower_segment import PHASES
from hexane.passes.engine.multiply_bytes import multiply_bytes
from hexane.passes.engine.saturate_slices import saturate_slices
from hexane.passes.engine.scale_weights import scale_weights
from hexane.passes.legalize.save_states import save_states
from hexane.passes.legalize.use_bf16 import use_bf16, use_bf16_in
from hexane.passes.needs import has
from hexane.passes.order import Pass, passes
from hexane.passes.repair import repair
from hexane.passes.retarget import retarget
from hexane.passes.run import Watch, run_checked
from hexane.planning.plan import plan
from hexane.planning.whole import in_whole_tensors
from hexane.program import Program, Segment
from hexane.stages.bufferize.allocate import allocate
from hexane.stages.bufferize.place import place
from hexane.stages.engine.numerics import in_engine_numerics
from hexane.stages.engine.place_layers import PlacedLayers, place_layers
from hexane.stages.engine.schedule_layers import LayerSchedule, schedule_layers
from hexane.stages.recompute.copies import recomputed
from hexane.stages.recompute.marks import marked, regions
from hexane.stages.segments.assign_steps import assign_steps, found_layers, in_order, with_layers
from hexane.stages.segments.devices import Programs
from hexane.stages.segments.join import SegmentParts, join
from hexane.stages.segments.roots import with_halves, with_saved_states
from hexane.stages.segments.segment import segment
from hexane.stages.stream.stream import stream
from hexane.targets import Chip, Target, load_target

LOWERING = tuple(Pass(p.run, level="engine" if p is PHASES[-1] else "lowering", needs=p.needs) for p in PHASES)
# Layers to steps in the chip's own arithmetic.
ENGINE_STEPS = (
    Pass(saturate_slices, needs=has("anec.input_view")),
    Pass(multiply_bytes, needs=has("anec.dequant")),
    Pass(scale_weights),
    Pass(in_engine_steps),
)

WHEN_JOINED = frozenset({"save_states"})  # run after segments are joined, because they need all readers of a state


def engine_form(piece: Graph, chip: Chip) -> Graph:
    """A segment of the engine in the form that is lowered to layers: users' ops in fp16, including the ports."""
    return run_checked(passes("engine", chip), piece, chip)


def lower(
    graph: Graph,
    target: Target,
    options: Options = DEFAULTS,
    *,
    skip: frozenset[str] = frozenset(),
    watch: Watch | None = None,
    in_bf16: Collection[int] | None = None,
) -> Graph:
    """The graph after the passes of "host", except those named in `skip`, which tests switch off. in_bf16: if the dtype
    is "auto", the indices in `bf16_products` of products that become bf16."""
    chosen = passes("host", target, options)
    if options.auto_dtype is not None:
        some = use_bf16_in(in_bf16 or ())
        chosen = [replace(p, run=some) if p.run is use_bf16 else p for p in chosen]
    return compile_bodies(run_checked(chosen, graph, target, skip, watch), target, options)


def compile_bodies(graph: Graph, target: Target, options: Options = DEFAULTS) -> Graph:
    """loop(%limit, none, %x) {body=graph}  ->  compiled_loop(const of a plan, %limit, none, %x)

    Each body of a loop or branch becomes a plan of its own, which the step holds as a constant. The C99 runtime has no
    other memory for a body, so for C99 the step has one more result: a part of the arena. Raises Error if the host has
    memory limits, because the memory of bodies is not counted on the host.
    """
    memory = options.memory
    own = Memory() if memory.runs_on == "host" else Memory(runtime=memory.runs_on)

    def compiled(body: Graph) -> bytes:
        program = compile_graph(body, target, replace(options, memory=own, io=DEFAULTS.io))
        return bytes(_core.plan_write(emit_plan(program)))

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        if memory.runs_on == "host" and memory.sram is not None:
            raise Error(
                f"[{node.where}] got a loop or branch that is decided at run time, with a memory limit, need no limit:"
                " give its trip count or condition as a constant (hexane.compile's input_values=)"
            )
        plans = [compiled(value) for value in node.attrs.values() if isinstance(value, Graph)]
        bodies = [constant(np.frombuffer(one, np.uint8)) for one in plans]
        attrs: dict[str, Any] = {"carried": node.attrs["carried"]} if node.op == LOOP else {}
        types = list(node.types)
        if memory.runs_on != "host":
            room = max(map(room_bytes, plans)) + carried_bytes(types[: attrs.get("carried", 0)])
            types.append(TensorType(DTYPES["uint8"], (room,)))
        attrs["types"] = tuple(map(type_text, types))
        said.append(
            Decision("bodies", node.where, "kept", "the data decide its course: each body is a plan of its own")
        )
        results = apply(OPS[COMPILED[node.op]], [*bodies, *inputs], attrs, node.sources)
        return results[: len(node.values)]

    said: list[Decision] = []
    if not graph.ops.intersection(COMPILED):
        return graph
    return graph.rewrite(change, only=COMPILED.keys()).decided(*said)


def compile_graph(
    graph: Graph,
    target: Target,
    options: Options = DEFAULTS,
    *,
    skip: frozenset[str] = frozenset(),
    watch: Watch | None = None,
    planned: bool = True,
    in_bf16: Collection[int] | None = None,
) -> Program:
    """Graph -> Program within the memory of the options, ready to be written. skip, in_bf16: as for `lower`. planned:
    False gives the program of whole tensors without offsets, from which planning starts."""
    assert not isinstance(target, Chip), "compile_segments compiles for chips"
    if watch is not None:
        watch("graph", graph)
    graph, marks = marked(graph) if CHECKPOINTED in graph.ops else (graph, None)
    graph = lower(graph, target, options, skip=skip, watch=watch, in_bf16=in_bf16)
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
    """Returns the graph rewritten for a chip, with the decisions, and the graph's segments in order. programs: as for
    `segment`.

    The graph is analysed without running it, for `preflight` and `compile`.
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
    segment_compiler: Callable[[Graph], Graph] | None = None,
) -> Program:
    """The program of a chip for this CPU, which runs it in place of the chip. All segments are in one plan, one after
    another. segment_compiler: makes a graph of one step from a segment of the engine, if the engine itself runs it.

    Segments of the engine are in fp16. Segments of the host are in the model's dtypes, or in fp16 if `dtype` of the
    options says so.
    """
    host = load_target("host")
    engine = replace(host, name=chip.name, asked=chip.asked, residual_epilogue=chip.residual_epilogue)
    ends_in = ENGINE_STEPS if options.numerics != "ieee" else ()
    parts = SegmentParts(graph, segments, halved=options.dtype == "fp16")
    lowered, placed = list[Graph](), PlacedLayers()
    for part, piece in zip(segments, parts.graphs(), strict=True):
        named = _prefixed(watch, f"segment{part.index}-")
        if part.device != "ane":
            lowered.append(lower(piece, host, Options(dtype=options.dtype), skip=WHEN_JOINED, watch=named))
        elif segment_compiler is not None:
            lowered.append(segment_compiler(piece))
        else:
            layers, _, placed = _as_layers(piece, chip, options.schedule or "apple", part.index, placed, named)
            layers = run_checked(ends_in, layers, chip, watch=named)
            lowered.append(run_checked(passes("layers", engine), layers, engine, watch=named))
    constants = parts.constants()
    joined, roots = join(parts, lowered, None if constants is None else lower(constants, host), options.io == "fp16")
    if segment_compiler is not None and not options.memory.rows:  # needs casts at ports next to their readers
        joined, roots = with_halves(joined, roots, engine)
    joined, roots = with_saved_states(joined, roots, engine)
    joined, results = found_layers(joined, len(placed.layers))
    if watch is not None:
        watch("join", joined)
    first = [value for values in in_order(placed.layers, results, roots) for value in values]
    program = assign_steps(placed.into(place(joined, engine, first=first)), segments, results, roots, host)
    if ends_in and segment_compiler is None:
        program = in_engine_numerics(program, chip, host.arithmetic)
    program = stream(program, options.memory.rows) if options.memory.rows else allocate(program)
    if watch is not None:
        watch("program", program)
    return program


def scheduled_segments(
    graph: Graph, segments: tuple[Segment, ...], chip: Chip, schedule: str
) -> Iterator[tuple[Segment, LayerSchedule, PlacedLayers]]:
    """Yields each segment of the engine with its layers in order, and the on-chip placement of all layers so far."""
    placed = PlacedLayers()
    for part, piece in zip(segments, SegmentParts(graph, segments).graphs(), strict=True):
        if part.device == "ane":
            _, scheduled, placed = _as_layers(piece, chip, schedule, part.index, placed, None)
            yield part, scheduled, placed


def _as_layers(
    piece: Graph, chip: Chip, schedule: str, number: int, placed: PlacedLayers, watch: Watch | None
) -> tuple[Graph, LayerSchedule, PlacedLayers]:
    """Returns a segment of the engine as layers in order, and the on-chip placement of all layers so far."""
    layers = run_checked([*passes("engine", chip), *LOWERING], piece, chip, watch=watch)
    scheduled = schedule_layers(layers, chip, schedule)
    layers = with_layers(layers, scheduled.values, len(placed.layers))
    return layers, scheduled, placed.joined(place_layers(scheduled, chip, number, placed))


def _prefixed(watch: Watch | None, prefix: str) -> Watch | None:
    return None if watch is None else lambda name, form: watch(prefix + name, form)
