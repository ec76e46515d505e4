"""The pipeline: what happens to a graph on its way to a program, in order."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph, Port, Value
from hexane.passes.engine.as_kernels import PASSES
from hexane.passes.engine.in_engine_steps import in_engine_steps
from hexane.passes.engine.lower_segment import PHASES
from hexane.passes.engine.multiply_bytes import multiply_bytes
from hexane.passes.engine.saturate_slices import saturate_slices
from hexane.passes.engine.scale_weights import scale_weights
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.fuse.fuse_bias import fuse_bias
from hexane.passes.fuse.fuse_clip import fuse_clip
from hexane.passes.fuse.fuse_epilogue import fuse_epilogue
from hexane.passes.fuse.fuse_gelu import fuse_gelu
from hexane.passes.fuse.fuse_gelu_tanh import fuse_gelu_tanh
from hexane.passes.fuse.fuse_layer_norm import fuse_layer_norm
from hexane.passes.fuse.fuse_rms_norm import fuse_rms_norm
from hexane.passes.fuse.fuse_rotary import fuse_rotary
from hexane.passes.fuse.fuse_silu import fuse_silu
from hexane.passes.fuse.fuse_transpose import fuse_transpose
from hexane.passes.fuse.group_heads import group_heads
from hexane.passes.layout.channels_last import channels_last
from hexane.passes.layout.trim_output_transpose import trim_output_transpose
from hexane.passes.legalize.engine_ports import engine_ports
from hexane.passes.legalize.expand import expand
from hexane.passes.legalize.legalize_dtypes import legalize_dtypes
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.passes.legalize.round_attributes import round_attributes
from hexane.passes.legalize.save_states import save_states
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.legalize.split_conv_3d import split_conv_3d
from hexane.passes.legalize.spread_conv_transpose_3d import spread_conv_transpose_3d
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.quantize.fold_qdq import fold_qdq
from hexane.passes.quantize.fuse_lookup import fuse_lookup
from hexane.passes.quantize.move_qdq_past_data_movement import move_qdq_past_data_movement
from hexane.passes.quantize.use_q31 import use_q31
from hexane.passes.retarget import retarget, takes
from hexane.passes.simplify.fold import fold
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm
from hexane.passes.simplify.fold_pad import fold_pad
from hexane.passes.simplify.simplify import simplify
from hexane.program import Program, Segment
from hexane.stages.allocate import allocate
from hexane.stages.assign_steps import assign_steps, found_layers, in_order, with_layers
from hexane.stages.devices import Programs
from hexane.stages.engine_numerics import in_engine_numerics
from hexane.stages.hold import hold
from hexane.stages.join import Parts, join
from hexane.stages.place import place
from hexane.stages.place_layers import PlacedLayers, place_layers
from hexane.stages.schedule_layers import schedule_layers
from hexane.stages.segment import segment
from hexane.stages.stream import stream
from hexane.stages.stream_ports import stream_ports
from hexane.targets import Chip, Target, load_target
from hexane.verify import GraphLevel, level_of, verify


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass under its one name, whether this target and these options want it, and the level of graphs from here on, where it
    changes."""

    name: str
    run: Callable[[Graph, Any], Graph]  # the target is the chip in passes over layers
    wanted: bool = True
    level: GraphLevel | None = None
    legal: bool = False  # for a chip: what it would make and the chip does not take is not made


# What models write out and one kernel or layer computes.
WRITTEN_OUT = (
    Pass("fuse_gelu", fuse_gelu),
    Pass("fuse_gelu_tanh", fuse_gelu_tanh),
    Pass("fuse_layer_norm", fuse_layer_norm),
    Pass("fuse_rms_norm", fuse_rms_norm),
    Pass("fuse_silu", fuse_silu),
)


def passes(target: Target, dtype: str = "", trim: bool = False, numerics: str = "") -> list[Pass]:
    """The passes from the user's graph to what the kernels run. numerics: "q31" for quantised ops as TFLite computes them."""
    return [
        Pass("expand", expand),
        # Before constants are folded: quantised weights would be floats.
        Pass("fuse_bias", fuse_bias),
        Pass("move_qdq_past_data_movement", move_qdq_past_data_movement),
        Pass("fuse_lookup", fuse_lookup),
        Pass("fold_qdq", fold_qdq, level="lowering"),
        # Before constants are folded: products of scales are exact while they are written out.
        Pass("use_q31", use_q31, numerics == "q31"),
        Pass("fold", fold),
        # Before those that look for neighbours: nothing stands between them any more.
        Pass("simplify", simplify),
        # Before precision drops: the constants of a written-out GELU are recognised by their digits.
        *WRITTEN_OUT,
        # Before precision drops and scales become weights: what it reads is as the model writes it.
        Pass("fuse_attention", fuse_attention),
        Pass("group_heads", group_heads),
        Pass("fuse_rotary", fuse_rotary),
        Pass("fuse_clip", fuse_clip),
        # Before precision drops: weights are scaled in fp64 and rounded once.
        Pass("fold_batch_norm", fold_batch_norm),
        Pass("fold_pad", fold_pad),
        Pass("fuse_bias", fuse_bias),
        Pass("fuse_transpose", fuse_transpose),
        Pass("to_fp16", to_fp16, dtype == "fp16"),
        Pass("spread_conv_transpose_3d", spread_conv_transpose_3d),
        # A convolution that is not in pieces yet takes batch norms, pads and biases, and is rounded once.
        Pass("split_conv_3d", split_conv_3d),
        # Casts to what has become fp16 do nothing now, and pieces brought reshapes of their own.
        Pass("simplify", simplify),
        Pass("channels_last", channels_last, target.channels_last),
        # After the layout is chosen, which puts transposes at outputs.
        Pass("trim_output_transpose", trim_output_transpose, trim),
        # Constants that moved to another layout or were reshaped as biases are computed now, not in every call.
        Pass("fold", fold),
        # What passes brought may have no kernel of its dtype (fp64).
        Pass("expand", expand),
        # From here on ops have epilogues. When axes have their order, which a kernel may not read.
        Pass("select_kernels", select_kernels, level="kernel"),
        Pass("fuse_epilogue", fuse_epilogue),
        # When nothing moves any more: a reader may have come to need the update as well.
        Pass("save_states", save_states),
        # Last, so that what is fused is rounded once.
        Pass("legalize_dtypes", legalize_dtypes),
    ]


def engine_passes() -> list[Pass]:
    """The passes from a segment of the engine, in users' ops that the chip takes, to kernels: in fp16, then as layers, which the
    engine's own passes fuse and make legal, then as what the executor has for each layer.

    Ops have been judged before: those that passes in front of the layers make of them have to be such as the chip takes (`legal`). No pass
    behind the layers fuses two of them: what is one layer is decided by the engine's passes.
    """
    return [
        Pass("fold", fold),
        Pass("simplify", simplify, legal=True),
        # Before precision drops: the constants of a written-out GELU are recognised by their digits.
        *(replace(p, legal=True) for p in WRITTEN_OUT),
        Pass("fuse_attention", fuse_attention, legal=True),
        Pass("fuse_clip", fuse_clip, legal=True),
        # Before precision drops: weights are scaled in fp64 and rounded once.
        Pass("fold_batch_norm", fold_batch_norm, legal=True),
        Pass("fold_pad", fold_pad, legal=True),
        Pass("to_fp16", to_fp16),
        # Before anything moves the casts at the ports.
        Pass("narrow_ports", narrow_ports),
        Pass("engine_ports", engine_ports),
        # When all is in fp16: numbers as the chip's programs have them.
        Pass("round_attributes", round_attributes),
        # Casts to what has become fp16 do nothing now.
        Pass("simplify", simplify, legal=True),
        *(Pass(phase.name, phase.run, level="engine" if phase is PHASES[-1] else "lowering") for phase in PHASES),
    ]


def engine_form(piece: Graph, chip: Chip) -> Graph:
    """A segment of the engine as it is lowered to layers: users' ops in fp16, the ports too."""
    return _after([p for p in engine_passes() if p.level is None], piece, chip)


Watch = Callable[[str, Graph | Program], None]  # is told of each pass or stage by name, and what it made


def lower(
    graph: Graph,
    target: Target,
    dtype: str = "",
    skip: frozenset[str] = frozenset(),
    trim: bool = False,
    watch: Watch | None = None,
    numerics: str = "",
) -> Graph:
    """The graph after all passes but those named in `skip`, which tests switch off. trim: outputs lose their transposes. numerics: as
    `passes` has it."""
    return _after(passes(target, dtype, trim, numerics), graph, target, skip, watch)


def _after(
    chosen: Sequence[Pass], graph: Graph, target: Target, skip: frozenset[str] = frozenset(), watch: Watch | None = None
) -> Graph:
    """The graph after these passes.

    With HEXANE_VERIFY=1 in the environment, Error is raised for the first pass whose graph is not sound, or has lost a decision.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    level: GraphLevel = level_of(graph) if checks else "user"
    for p in chosen:
        if p.wanted and p.name not in skip:
            before, graph, level = graph, _run(p, graph, target), p.level or level
            if checks:
                verify_after(p.name, graph, level, target, before)
            if watch is not None:
                watch(p.name, graph)
    return graph


def _run(p: Pass, graph: Graph, target: Target) -> Graph:
    if not (p.legal and isinstance(target, Chip)):
        return p.run(graph, target)
    asked = replace(graph, takes=partial(takes, chip=target))
    return replace(p.run(asked, target), takes=None)


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
    dtype: str = "",
    skip: frozenset[str] = frozenset(),
    trim: bool = False,
    stream_rows: int = 0,
    schedule: str = "",
    watch: Watch | None = None,
    holds_ports: bool = False,
    numerics: str = "",
    streams_input: bool = False,
    streams_output: bool = False,
) -> Program:
    """Graph -> Program, ready to be emitted. stream_rows: rows that a run of a streamed step computes, 0 to stream none. holds_ports:
    inputs and outputs lie in the arena. streams_input, streams_output: their rows come and go one by one. schedule: "optimal" for the order that keeps fewest bytes live. numerics: as `passes` has it."""
    assert not isinstance(target, Chip), "compile_segments compiles for chips"
    if watch is not None:
        watch("graph", graph)
    program = place(lower(graph, target, dtype, skip, trim, watch, numerics), target, schedule)
    program = stream_ports(program, streams_input, streams_output)
    if stream_rows:
        program = stream(program, stream_rows, order=schedule, holds_ports=holds_ports)
    else:
        program = allocate(hold(program)[0] if holds_ports else program)
    if watch is not None:
        watch("program", program)
    return program


def divide(
    graph: Graph, chip: Chip, watch: Watch | None = None, programs: Programs | None = None
) -> tuple[Graph, tuple[Segment, ...]]:
    """What a chip's program is made of: the graph as the chip takes it, with what was decided, and its segments in order. programs:
    as `segment` has it.

    Static analysis: `preflight` and `compile` ask the same.
    """
    if watch is not None:
        watch("graph", graph)
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
    dtype: str = "",
    numerics: str = "engine",
    narrow: bool = False,
    stream_rows: int = 0,
    schedule: str = "apple",
    watch: Watch | None = None,
    on_engine: Callable[[Graph], Graph] | None = None,
) -> Program:
    """The program of a chip, for the CPU that runs it in its place: segments one after the other, in one plan. on_engine: what the
    graph of a segment of the engine becomes, where the engine itself runs it.

    Segments of the engine are in fp16, those of the host in the model's dtypes, or in fp16 too by `dtype`. Those of the engine
    compute as `in_engine_numerics` has it, all others, and those too where numerics is "ieee", in IEEE arithmetic. narrow: the
    floats of the model's ports are fp16.
    schedule: the order of the engine's layers, as `schedule_layers` has it.
    """
    host = load_target("host")
    engine = replace(host, name=chip.name, asked=chip.asked, residual_epilogue=chip.residual_epilogue)
    parts = Parts(graph, segments, halved=dtype == "fp16")
    alone = frozenset({"save_states"})  # who reads what a state held is known when all segments are there
    lowered = []
    placed = PlacedLayers()
    for found, piece in zip(segments, parts.graphs(), strict=True):
        named = _prefixed(watch, f"segment{found.index}-")
        if found.device != "ane":
            lowered.append(lower(piece, host, dtype, alone, watch=named))
            continue
        if on_engine is not None:
            lowered.append(on_engine(piece))
            continue
        layers = _after(engine_passes(), piece, chip, watch=named)
        scheduled = schedule_layers(layers, chip, schedule)
        layers = with_layers(layers, scheduled.values, len(placed.layers))
        placed = placed.joined(place_layers(scheduled, chip, found.index, placed))
        steps = [
            Pass("saturate_slices", lambda graph, _: saturate_slices(graph, chip), numerics == "engine"),
            Pass("multiply_bytes", lambda graph, _: multiply_bytes(graph, chip), numerics == "engine"),
            Pass("scale_weights", scale_weights, numerics == "engine"),
            Pass("in_engine_steps", in_engine_steps, numerics == "engine"),
        ]
        lowered.append(_after([*steps, *(Pass(*run) for run in PASSES)], layers, engine, watch=named))
    constants = parts.constants()
    joined, roots = join(parts, lowered, None if constants is None else lower(constants, host), narrow)
    joined, roots = _with_roots(joined, roots, engine)
    joined, made = found_layers(joined, len(placed.layers))
    if watch is not None:
        watch("join", joined)
    first = [value for values in in_order(placed.layers, made, roots) for value in values]
    program = placed.into(place(joined, engine, first=first))
    program = assign_steps(program, segments, made, roots, host)
    if numerics == "engine" and on_engine is None:
        program = in_engine_numerics(program, chip, host.arithmetic)
    program = stream(program, stream_rows) if stream_rows else allocate(program)
    if watch is not None:
        watch("program", program)
    return program


def _prefixed(watch: Watch | None, prefix: str) -> Watch | None:
    return None if watch is None else lambda name, made: watch(prefix + name, made)


def _with_roots(graph: Graph, roots: Sequence[Sequence[Value]], target: Target) -> tuple[Graph, list[list[Value]]]:
    """The graph after save_states, and what became of the roots of its segments."""
    hidden = [Port(f"%{i}.{j}", v) for i, values in enumerate(roots) for j, v in enumerate(values)]
    saved = save_states(replace(graph, outputs=(*graph.outputs, *hidden)), target)
    if os.environ.get("HEXANE_VERIFY") == "1":
        verify_after("save_states", saved, "kernel", target, graph)
    num_outputs = len(graph.outputs)
    values = iter([port.value for port in saved.outputs[num_outputs:]])
    return replace(saved, outputs=saved.outputs[:num_outputs]), [[next(values) for _ in kept] for kept in roots]
