"""The front half of the chip compiler: lowers the ops of a segment to layers of the engine."""

from collections.abc import Callable
from typing import NamedTuple

from hexane.errors import Error
from hexane.graph import Graph
from hexane.lowering.layers import lower
from hexane.ops.encodings import DECODERS
from hexane.passes.engine.chain import ALIKE
from hexane.passes.engine.fuse.channels_first import channels_first
from hexane.passes.engine.fuse.collapse_quant_dequant import collapse_quant_dequant
from hexane.passes.engine.fuse.collapse_transpose import collapse_transpose
from hexane.passes.engine.fuse.deduplicate_standalone_dequant_gocs_across_concat import (
    deduplicate_standalone_dequant_gocs_across_concat,
)
from hexane.passes.engine.fuse.fold_scale import fold_scale
from hexane.passes.engine.fuse.fold_weights_with_scale import fold_weights_with_scale
from hexane.passes.engine.fuse.fuse_output_quant import fuse_output_quant
from hexane.passes.engine.fuse.hoist_goc_or_activation_for_conv_fusion import hoist_goc_or_activation_for_conv_fusion
from hexane.passes.engine.fuse.join_moves import join_moves
from hexane.passes.engine.fuse.keep_images import keep_images
from hexane.passes.engine.fuse.merge_fusable_activation_pairs import merge_fusable_activation_pairs
from hexane.passes.engine.fuse.mirror_by_product import mirror_by_product
from hexane.passes.engine.fuse.ne_transpose_fusion import ne_transpose_fusion
from hexane.passes.engine.fuse.record_barriers import record_barriers
from hexane.passes.engine.fuse.replace_matmul_with_conv import replace_matmul_with_conv
from hexane.passes.engine.fuse.rows_as_batch import rows_as_batch
from hexane.passes.engine.fuse.scaled_ew_or_ew_with_const_in_to_goc import scaled_ew_or_ew_with_const_in_to_goc
from hexane.passes.engine.fuse.share_keys import share_keys
from hexane.passes.engine.fuse.simple_activation import simple_activation
from hexane.passes.engine.legalize.check_layers import check_layers
from hexane.passes.engine.legalize.even_kernel_width import even_kernel_width
from hexane.passes.engine.legalize.fold_axes import fold_axes
from hexane.passes.engine.legalize.slice_matmul_along_height import slice_matmul_along_height
from hexane.passes.engine.legalize.split_kernel import split_kernel
from hexane.passes.engine.legalize.split_kernel_memory import split_kernel_memory
from hexane.passes.engine.legalize.split_transposes import split_transposes
from hexane.passes.needs import Needs, anything, has
from hexane.targets import Chip, Target


class Phase(NamedTuple):
    """A pass and its name. needs: False for graphs that the pass leaves unchanged; the pass is then not run."""

    name: str
    run: Callable[[Graph, Chip], Graph]
    needs: Needs = anything


PHASES = (
    Phase("lower", lower),
    # share_keys comes before passes that move transposes, to match repeated keys as the model writes them.
    Phase("share_keys", share_keys, has("anec.broadcast|anec.tile")),
    # Phase 1, fusion. Products become convolutions first, so that per-column biases and gains become per-channel ones.
    Phase("replace_matmul_with_conv", replace_matmul_with_conv, has("anec.matmul|anec.linear")),
    Phase("collapse_transpose", collapse_transpose, has("anec.transpose|anec.reshape")),
    Phase(
        "deduplicate_standalone_dequant_gocs_across_concat",
        deduplicate_standalone_dequant_gocs_across_concat,
        has("anec.concat", "anec.dequant"),
    ),
    Phase(
        "scaled_ew_or_ew_with_const_in_to_goc",
        scaled_ew_or_ew_with_const_in_to_goc,
        has("anec.add|anec.sub|anec.mul|anec.div|anec.batch_norm"),
    ),
    Phase("fold_scale", fold_scale, has("anec.gain_offset_control")),
    Phase("merge_fusable_activation_pairs", merge_fusable_activation_pairs, has("anec.neuron")),
    Phase(
        "hoist_goc_or_activation_for_conv_fusion",
        hoist_goc_or_activation_for_conv_fusion,
        has("|".join(ALIKE)),
    ),
    # Transposes merge here: no other layer separates them any more, and the slots of convolutions are filled.
    Phase("collapse_transpose", collapse_transpose, has("anec.transpose|anec.reshape")),
    Phase("channels_first", channels_first, has("anec.transpose|anec.reshape")),
    Phase("join_moves", join_moves, has("anec.transpose|anec.reshape")),
    # rows_as_batch compares chains that are the shortest already; join_moves then shortens what it has changed.
    Phase("rows_as_batch", rows_as_batch, has("anec.convolution", "anec.transpose")),
    Phase("join_moves", join_moves, has("anec.transpose|anec.reshape")),
    # keep_images runs once layers have the channels as their second axis.
    Phase("keep_images", keep_images, has("anec.reshape")),
    Phase("join_moves", join_moves, has("anec.transpose|anec.reshape")),
    # mirror_by_product runs once the axis of each norm is final.
    Phase("mirror_by_product", mirror_by_product, has("anec.concat")),
    Phase("collapse_transpose", collapse_transpose, has("anec.transpose|anec.reshape")),
    Phase("fold_weights_with_scale", fold_weights_with_scale, has("anec.convolution|anec.linear")),
    # collapse_quant_dequant prepends the scale of quantised weights to the filled slots.
    Phase("collapse_quant_dequant", collapse_quant_dequant, has("|".join(("anec.quant", *DECODERS)))),
    Phase("simple_activation", simple_activation, has("|".join(ALIKE))),
    # The passes of the last slots come last: no slot can be added after a transpose or a quantisation.
    Phase("ne_transpose_fusion", ne_transpose_fusion, has("anec.transpose")),
    Phase("fuse_output_quant", fuse_output_quant, has("anec.quant")),
    Phase("record_barriers", record_barriers),
    # Phase 2, legalisation. Kernels get their final size before the size of their weights is checked.
    Phase("even_kernel_width", even_kernel_width, has("anec.convolution")),
    Phase("split_kernel", split_kernel, has("anec.convolution")),
    Phase("slice_matmul_along_height", slice_matmul_along_height, has("anec.matmul")),
    Phase("split_kernel_memory", split_kernel_memory, has("anec.convolution|anec.deconvolution|anec.linear")),
    Phase("fold_axes", fold_axes),
    # split_transposes follows every pass that may turn a transpose slot back into a layer.
    Phase("split_transposes", split_transposes, has("anec.transpose")),
    # collapse_transpose merges the reshapes that fold_axes and split_transposes have made.
    Phase("collapse_transpose", collapse_transpose, has("anec.transpose|anec.reshape")),
    Phase("check_layers", check_layers),
)


def lower_segment(graph: Graph, target: Target) -> Graph:
    """Returns the segment as fused and legal layers of the chip's engine.

    Raises Error if the target is not a chip, if no layer computes an op, or if the chip rejects a layer.
    """
    if not isinstance(target, Chip):
        raise Error(f"[lower] target: got {target.name!r}, need a chip")
    for phase in PHASES:
        graph = phase.run(graph, target) if phase.needs(graph) else graph
    return graph
