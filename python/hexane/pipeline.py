"""The pipeline: what happens to a graph on its way to a program, in order."""

import os
from collections.abc import Callable
from dataclasses import dataclass

from hexane.errors import Error
from hexane.graph import Graph
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
from hexane.passes.legalize.expand import expand
from hexane.passes.legalize.legalize_dtypes import legalize_dtypes
from hexane.passes.legalize.save_states import save_states
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.legalize.split_conv_3d import split_conv_3d
from hexane.passes.legalize.spread_conv_transpose_3d import spread_conv_transpose_3d
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.quantize.fold_qdq import fold_qdq
from hexane.passes.quantize.fuse_lookup import fuse_lookup
from hexane.passes.quantize.move_qdq_past_data_movement import move_qdq_past_data_movement
from hexane.passes.simplify.fold import fold
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm
from hexane.passes.simplify.fold_pad import fold_pad
from hexane.passes.simplify.simplify import simplify
from hexane.program import Program
from hexane.stages.allocate import allocate
from hexane.stages.place import place
from hexane.stages.stream import stream
from hexane.targets import Target
from hexane.verify import GraphLevel, level_of, verify


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass under its one name, whether this target and these options want it, and the level of graphs from here on, where it
    changes."""

    name: str
    run: Callable[[Graph, Target], Graph]
    wanted: bool = True
    level: GraphLevel | None = None


def passes(target: Target, dtype: str = "", trim: bool = False) -> list[Pass]:
    """The passes from the user's graph to what the kernels run."""
    return [
        Pass("expand", expand),
        # Before constants are folded: quantised weights would be floats.
        Pass("fuse_bias", fuse_bias),
        Pass("move_qdq_past_data_movement", move_qdq_past_data_movement),
        Pass("fuse_lookup", fuse_lookup),
        Pass("fold_qdq", fold_qdq, level="lowering"),
        Pass("fold", fold),
        # Before those that look for neighbours: nothing stands between them any more.
        Pass("simplify", simplify),
        # Before precision drops: the constants of a written-out GELU are recognised by their digits.
        Pass("fuse_gelu", fuse_gelu),
        Pass("fuse_gelu_tanh", fuse_gelu_tanh),
        Pass("fuse_layer_norm", fuse_layer_norm),
        Pass("fuse_rms_norm", fuse_rms_norm),
        Pass("fuse_silu", fuse_silu),
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


Watch = Callable[[str, Graph | Program], None]  # is told of each pass or stage by name, and what it made


def lower(
    graph: Graph,
    target: Target,
    dtype: str = "",
    skip: frozenset[str] = frozenset(),
    trim: bool = False,
    watch: Watch | None = None,
) -> Graph:
    """The graph after all passes but those named in `skip`, which tests switch off. trim: outputs lose their transposes.

    With HEXANE_VERIFY=1 in the environment, Error is raised for the first pass whose graph is not sound, or has lost a decision.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    level: GraphLevel = level_of(graph) if checks else "user"
    for p in passes(target, dtype, trim):
        if p.wanted and p.name not in skip:
            before, graph, level = graph, p.run(graph, target), p.level or level
            if checks:
                verify_after(p.name, graph, level, target, before)
            if watch is not None:
                watch(p.name, graph)
    return graph


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
    watch: Watch | None = None,
) -> Program:
    """Graph -> Program, ready to be emitted. stream_rows: what a trip of a streamed chain computes, 0 to stream none."""
    if watch is not None:
        watch("graph", graph)
    program = place(lower(graph, target, dtype, skip, trim, watch), target)
    program = allocate(stream(program, stream_rows) if stream_rows else program)
    if watch is not None:
        watch("program", program)
    return program
