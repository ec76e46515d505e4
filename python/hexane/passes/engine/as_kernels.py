"""Writes layers of the engine as what the CPU executor runs, so that a program is made from its layers and from nothing else."""

from hexane.graph import Graph
from hexane.passes.layout.channels_last import channels_last
from hexane.passes.legalize.expand import expand
from hexane.passes.legalize.legalize_dtypes import legalize_dtypes
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.legalize.split_conv_3d import split_conv_3d
from hexane.passes.simplify.fold import fold
from hexane.passes.simplify.simplify import simplify
from hexane.targets import Target

PASSES = (
    ("expand", expand),
    ("fold", fold),
    ("split_conv_3d", split_conv_3d),
    ("simplify", simplify),
    ("channels_last", channels_last),
    ("fold", fold),
    ("expand", expand),
    ("select_kernels", select_kernels),
    ("legalize_dtypes", legalize_dtypes),
)


def as_kernels(graph: Graph, host: Target) -> Graph:
    """anec.convolution(%x, %w, none, %b) {epilogue=(gain_offset(..), post_activation(mode=relu, ..))}  ->  cpu.conv(%x, %w, %b) {epilogue=(relu())}

    Each layer rounds where its node says, so no pass of these fuses ops of two layers or computes them in another precision. `host`
    has the kernels. Who joins segments runs `save_states` behind it, when all readers of a state are there.
    """
    for _, run in PASSES:
        graph = run(graph, host)
    return graph
