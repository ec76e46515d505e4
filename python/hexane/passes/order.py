"""The order of all passes over ops, and the pipelines that run them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from hexane.graph import Graph
from hexane.lowering.round_attributes import round_attributes
from hexane.ops.verify import GraphLevel
from hexane.options import DEFAULTS, Options
from hexane.passes.fuse.fold_signs import fold_signs
from hexane.passes.fuse.fuse_accumulation import fuse_accumulation
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.fuse.fuse_attention_gradient import fuse_attention_gradient
from hexane.passes.fuse.fuse_bias import fuse_bias
from hexane.passes.fuse.fuse_clip import fuse_clip
from hexane.passes.fuse.fuse_cross_entropy import fuse_cross_entropy
from hexane.passes.fuse.fuse_epilogue import fuse_epilogue
from hexane.passes.fuse.fuse_gelu import fuse_gelu
from hexane.passes.fuse.fuse_gelu_tanh import fuse_gelu_tanh
from hexane.passes.fuse.fuse_layer_norm import fuse_layer_norm
from hexane.passes.fuse.fuse_norm_gradient import fuse_norm_gradient
from hexane.passes.fuse.fuse_rms_norm import fuse_rms_norm
from hexane.passes.fuse.fuse_rotary import fuse_rotary
from hexane.passes.fuse.fuse_silu import fuse_silu
from hexane.passes.fuse.fuse_transpose import fuse_transpose
from hexane.passes.fuse.group_heads import group_heads
from hexane.passes.fuse.split_products import split_products
from hexane.passes.layout.channels_last import channels_last
from hexane.passes.layout.products_as_convolutions import products_as_convolutions
from hexane.passes.layout.split_stalled_kernels import split_stalled_kernels
from hexane.passes.layout.trim_output_transpose import trim_output_transpose
from hexane.passes.legalize.engine_ports import engine_ports
from hexane.passes.legalize.expand import expand
from hexane.passes.legalize.expand_for_c99 import expand_for_c99
from hexane.passes.legalize.keep_halves import keep_halves
from hexane.passes.legalize.keep_recurrent import keep_recurrent, keep_recurrent_for_c99
from hexane.passes.legalize.legalize_dtypes import legalize_dtypes
from hexane.passes.legalize.narrow_ports import narrow_ports
from hexane.passes.legalize.repeat_channels import repeat_channels
from hexane.passes.legalize.save_states import save_states
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.legalize.split_conv_3d import split_conv_3d
from hexane.passes.legalize.spread_conv_transpose_3d import spread_conv_transpose_3d
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.legalize.to_fp16_where_held import to_fp16_where_held
from hexane.passes.legalize.use_bf16 import use_bf16
from hexane.passes.needs import (
    Needs,
    anything,
    has,
    has_affine,
    has_convolution_sums,
    has_encoded_weights,
    has_groups,
    has_losses,
    has_narrow_products,
    has_recurrence,
    has_scattered_writes,
    has_volumes,
)
from hexane.passes.quantize.decode_in_calls import decode_in_calls, decode_in_calls_halves
from hexane.passes.quantize.fold_qdq import fold_qdq
from hexane.passes.quantize.fuse_lookup import fuse_lookup
from hexane.passes.quantize.keep_encoded import (
    keep_encoded,
    keep_encoded_fp16,
    keep_encoded_halves,
    keep_encoded_rows,
    keep_encoded_vectors,
)
from hexane.passes.quantize.keep_sparse import keep_sparse
from hexane.passes.quantize.move_qdq_past_data_movement import move_qdq_past_data_movement
from hexane.passes.quantize.multiply_in_int8 import multiply_in_int8
from hexane.passes.quantize.narrow_weights import narrow_weights
from hexane.passes.quantize.use_q31 import use_q31
from hexane.passes.simplify.fold import fold, fold_but_narrow_weights
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm, fold_batch_norm_halves
from hexane.passes.simplify.fold_pad import fold_pad
from hexane.passes.simplify.merge_convolutions import (
    merge_convolutions,
    merge_convolutions_bf16,
    merge_convolutions_halves,
)
from hexane.passes.simplify.simplify import simplify
from hexane.passes.simplify.write_rows import write_rows
from hexane.targets import Target

Pipeline = Literal["host", "engine", "mil", "layers"]
PIPELINES: dict[Pipeline, str] = {
    "host": "lowers a graph of users' ops to kernels of the CPU",
    "engine": "converts a segment of a chip's engine, in ops that the chip runs, to fp16 and lowers it to layers",
    "mil": "converts the same segment to ops of MIL",
    "layers": "lowers layers of the engine to kernels of a CPU that runs them instead of the engine",
}

Wanted = Callable[[Target, Options], bool]


def _always(target: Target, options: Options) -> bool:
    return True


def _wide(target: Target, options: Options) -> bool:
    return options.dtype != "fp16"


def _in_bf16(target: Target, options: Options) -> bool:
    return options.dtype == "bf16"


def _unrounded(target: Target, options: Options) -> bool:
    return options.dtype not in ("fp16", "bf16")


def _halved(target: Target, options: Options) -> bool:
    return options.dtype == "fp16"


def _runs_on_host(target: Target, options: Options) -> bool:
    return options.memory.runs_on == "host"


def _runs_on_device(target: Target, options: Options) -> bool:
    return options.memory.runs_on != "host"


def _in_halves(target: Target, options: Options) -> bool:
    return options.dtype == "fp16" and options.memory.runs_on == "host"


def _for_host(target: Target, options: Options) -> bool:
    return options.dtype != "fp16" and options.memory.runs_on == "host"


def _with_zeros_left_out(target: Target, options: Options) -> bool:
    memory = options.memory
    return options.dtype != "fp16" and memory.runs_on == "host" and not memory.whole_weights


def _narrows(options: Options) -> bool:
    """True if weights may stay in 16 bits."""
    return options.dtype != "fp16" and options.memory.runs_on == "host" and not options.memory.rows


def _room(options: Options) -> bool:
    memory = options.memory
    return not memory.whole_weights and memory.runs_on == "host" and memory.sram is None


def _with_room(target: Target, options: Options) -> bool:
    return options.dtype != "fp16" and _room(options)


def _with_room_in_halves(target: Target, options: Options) -> bool:
    return options.dtype == "fp16" and _room(options)


@dataclass(frozen=True, slots=True)
class Pass:
    """A pass, and the pipelines that run it.

    wanted: whether the pass runs for this target and these options. legal: in the pipeline "engine" the pass may create
    only ops that the chip runs, because ops have been judged before. level: the graph's level after this pass, if it
    changes. needs: False for graphs that the pass leaves unchanged; the pass is then not run.
    """

    run: Callable[[Graph, Any], Graph]  # passes over layers get the chip as their target
    pipelines: tuple[Pipeline, ...] = ()
    wanted: Wanted = _always
    legal: bool = False
    level: GraphLevel | None = None
    needs: Needs = anything

    @property
    def name(self) -> str:
        return self.run.__name__


# In MIL attention is expanded: the engine ignores the mask of MIL's own attention op. In "layers" each layer rounds at
# the points that its node states, so no pass fuses two layers or computes them in another precision.
ORDER = (
    # write_rows comes before any pass rewrites the views.
    Pass(write_rows, ("host",), needs=has_scattered_writes),
    # keep_encoded_rows comes before other passes store a transposed weight, for which the C99 runtime has no kernel.
    Pass(keep_encoded_rows, ("host",), _for_host, level="lowering", needs=has_encoded_weights),
    # keep_encoded comes before tables and block scales are decoded. In fp16, decoding rounds numbers.
    Pass(keep_encoded, ("host",), _wide, level="lowering", needs=has_encoded_weights),
    # multiply_in_int8 follows keep_encoded, which has the integers of weights in the form of products.
    Pass(multiply_in_int8, ("host",), lambda _, options: options.dtype == "int8", level="lowering"),
    # keep_encoded_vectors comes before tables of vectors are decoded, which the C99 runtime's kernels do not read.
    Pass(keep_encoded_vectors, ("host",), _for_host, level="lowering", needs=has_encoded_weights),
    # keep_encoded_halves comes before encoded weights are decoded. The C99 runtime has no kernels for it.
    Pass(keep_encoded_halves, ("host",), _in_halves, level="lowering", needs=has_encoded_weights),
    # keep_encoded_fp16 comes before encoded weights that are fp16 in the model are decoded.
    Pass(keep_encoded_fp16, ("host",), _runs_on_host, level="lowering", needs=has_encoded_weights),
    # decode_in_calls follows keep_encoded, which handles weights that kernels read encoded. decode_in_calls is skipped
    # if working memory, which decoded weights need, is limited.
    Pass(decode_in_calls, ("host",), _with_room, level="lowering", needs=has_encoded_weights),
    # decode_in_calls_halves is decode_in_calls for a network that becomes fp16.
    Pass(decode_in_calls_halves, ("host",), _with_room_in_halves, level="lowering", needs=has_encoded_weights),
    # keep_recurrent comes before the time steps of recurrent ops are unrolled.
    Pass(keep_recurrent, ("host",), _runs_on_host, level="lowering", needs=has_recurrence),
    Pass(keep_recurrent_for_c99, ("host",), _runs_on_device, level="lowering", needs=has_recurrence),
    Pass(expand, ("host", "layers")),
    # fuse_bias to fold_qdq come before constants are folded, which would turn quantised weights into floats.
    Pass(fuse_bias, ("host", "mil"), needs=has("add")),
    Pass(move_qdq_past_data_movement, ("host",), needs=has("quantize|dequantize")),
    Pass(fuse_lookup, ("host",), needs=has("quantize")),
    Pass(fold_qdq, ("host",), level="lowering", needs=has("quantize|dequantize|quantized_conv|quantized_matmul")),
    # use_q31 comes before constants are folded: until then, products of scales are exact.
    Pass(use_q31, ("host",), lambda _, options: options.numerics == "q31"),
    Pass(fold, ("engine", "mil", "layers")),
    Pass(fold, ("host",), lambda _, options: not _narrows(options)),
    Pass(fold_but_narrow_weights, ("host",), lambda _, options: _narrows(options)),
    # simplify comes before passes that match adjacent ops: removable ops between them would hide the match.
    Pass(simplify, ("host", "engine", "mil"), legal=True),
    # fuse_gelu comes before precision drops: the constants of a GELU are recognised by their digits.
    Pass(fuse_gelu, ("host", "engine", "mil"), legal=True, needs=has("erf", "mul")),
    Pass(fuse_gelu_tanh, ("host", "engine", "mil"), legal=True, needs=has("tanh", "mul")),
    Pass(fuse_layer_norm, ("host", "engine", "mil"), legal=True, needs=has("reduce_mean|layer_norm")),
    Pass(fuse_rms_norm, ("host", "engine", "mil"), legal=True, needs=has("reduce_mean|rms_norm")),
    Pass(fuse_silu, ("host", "engine", "mil"), legal=True, needs=has("sigmoid", "mul")),
    # fuse_attention matches the model's ops, so it comes before precision drops and scales go into weights.
    Pass(fuse_attention, ("host", "engine"), legal=True, needs=has("softmax", "matmul")),
    # split_products follows fuse_attention, which accepts split and whole products. On the host one product is faster.
    Pass(split_products, ("engine", "mil"), legal=True, needs=has("split|slice_by_index", "matmul|linear")),
    # fold_signs skips the host, where a rotary embedding is one kernel.
    Pass(fold_signs, ("engine", "mil"), legal=True, needs=has("concat", "mul")),
    Pass(group_heads, ("host",), needs=has("scaled_dot_product_attention")),
    Pass(fuse_rotary, ("host",), needs=has("concat", "mul")),
    Pass(fuse_clip, ("host", "engine", "mil"), legal=True, needs=has("clip")),
    # fold_batch_norm comes before precision drops: weights are scaled in fp64 and rounded once.
    Pass(fold_batch_norm, ("host",), _wide, needs=has_affine),
    Pass(fold_batch_norm_halves, ("host",), _halved, needs=has_affine),
    Pass(fold_batch_norm, ("engine", "mil"), legal=True, needs=has_affine),
    Pass(fold_pad, ("host", "engine", "mil"), legal=True, needs=has("pad")),
    # merge_convolutions follows fold_batch_norm and fold_pad, which leave convolutions alone in each branch.
    Pass(merge_convolutions, ("host",), _unrounded, needs=has_convolution_sums),
    Pass(merge_convolutions_bf16, ("host",), _in_bf16, needs=has_convolution_sums),
    Pass(merge_convolutions_halves, ("host",), _halved, needs=has_convolution_sums),
    Pass(merge_convolutions, ("engine", "mil"), legal=True, needs=has_convolution_sums),
    # fold_batch_norm runs again for batch norms of sums that are one convolution now.
    Pass(fold_batch_norm, ("host",), _wide, needs=has_affine),
    Pass(fold_batch_norm_halves, ("host",), _halved, needs=has_affine),
    Pass(fold_batch_norm, ("engine", "mil"), legal=True, needs=has_affine),
    Pass(fuse_bias, ("host", "mil"), needs=has("add")),
    # expand_for_c99 follows the passes that recognise attention, GELU and norms.
    Pass(expand_for_c99, ("host",), _runs_on_device),
    Pass(fuse_transpose, ("host",), needs=has("transpose")),
    Pass(to_fp16_where_held, ("host",), _halved),
    Pass(to_fp16, ("engine", "mil")),
    # narrow_ports comes before any pass moves the casts at the ports.
    Pass(narrow_ports, ("engine", "mil")),
    Pass(engine_ports, ("engine", "mil")),
    # With all values in fp16, attributes are rounded to the numbers of the chip's programs.
    Pass(round_attributes, ("engine", "mil")),
    # products_as_convolutions runs once weights have their final size.
    Pass(products_as_convolutions, ("engine", "mil"), legal=True),
    # split_stalled_kernels runs once ops have the form of layers, because it splits the weights of layers.
    Pass(split_stalled_kernels, ("engine", "mil"), legal=True),
    Pass(spread_conv_transpose_3d, ("host",), needs=has_volumes),
    # split_conv_3d runs late: until it is split, a convolution absorbs batch norms, pads and biases and is rounded
    # once.
    Pass(split_conv_3d, ("host", "layers"), needs=has_volumes),
    # simplify removes casts and reshapes of earlier passes.
    Pass(simplify, ("host", "engine", "mil", "layers"), legal=True),
    Pass(channels_last, ("host", "layers"), lambda target, _: target.channels_last),
    # repeat_channels runs once channels are last, so that the copies of a channel are adjacent. repeat_channels is
    # skipped if working memory is limited, because of the copies.
    Pass(repeat_channels, ("host", "layers"), lambda _, options: _room(options), needs=has_groups),
    # trim_output_transpose follows channels_last, which puts transposes at outputs.
    Pass(trim_output_transpose, ("host",), lambda _, options: options.trim_output_transpose),
    # fold moves the constants that earlier passes transpose or reshape.
    Pass(fold, ("mil", "layers")),
    Pass(fold, ("host",), lambda _, options: not _narrows(options)),
    Pass(fold_but_narrow_weights, ("host",), lambda _, options: _narrows(options)),
    # expand runs again: ops that earlier passes have created may have no kernel in their dtype (fp64).
    Pass(expand, ("host", "layers")),
    # fuse_cross_entropy runs once the logits have their final dtype: its kernels are fp32 only.
    Pass(fuse_cross_entropy, ("host",), level="lowering", needs=has_losses),
    Pass(fuse_attention_gradient, ("host",), level="lowering", needs=has("softmax", "reduce_sum", "sub")),
    Pass(fuse_norm_gradient, ("host",), level="lowering", needs=has("rsqrt", "reduce_mean", "sub")),
    # keep_sparse runs once weights have their final values and order.
    Pass(keep_sparse, ("host",), _with_zeros_left_out, level="lowering"),
    # select_kernels follows the choice of the layout, because a kernel may not support it. From select_kernels on, ops
    # have epilogues.
    Pass(select_kernels, ("host", "layers"), level="kernel"),
    Pass(fuse_epilogue, ("host",)),
    Pass(fuse_accumulation, ("host",), needs=has("accumulate_step")),
    # keep_halves runs once products have epilogues, and before save_states: it may change who reads a state.
    Pass(keep_halves, ("host",), lambda _, options: not options.memory.rows, needs=has("cast")),
    # use_bf16 runs once products have epilogues. Values in fp16 stay fp16.
    Pass(use_bf16, ("host",), lambda _, options: options.dtype == "bf16" or options.auto_dtype is not None),
    # narrow_weights runs once the products in bf16 are known.
    Pass(narrow_weights, ("host",), lambda _, options: _narrows(options), needs=has_narrow_products),
    # save_states runs once no pass moves ops any more, because a moved reader may need the update as well. With
    # segments for an engine, save_states runs on the joined graph, after "layers".
    Pass(save_states, ("host",), needs=has("write_state")),
    # legalize_dtypes runs last, so that a fused op is rounded once.
    Pass(legalize_dtypes, ("host", "layers")),
)


def passes(pipeline: Pipeline, target: Target, options: Options = DEFAULTS) -> list[Pass]:
    """Returns the passes of a pipeline, in order."""
    return [p for p in ORDER if pipeline in p.pipelines and p.wanted(target, options)]


def run_passes(pipeline: Pipeline, graph: Graph, target: Target) -> Graph:
    """Returns the graph after a pipeline. Does not verify the graph between passes."""
    for p in passes(pipeline, target):
        graph = p.run(graph, target) if p.needs(graph) else graph
    return graph
