"""Each form that stands for an op: what it fires on and which chips need it, what it leaves alone, and that results are
the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.ops import USER_OPS
from hexane.ops.reference import run_reference
from hexane.passes.retarget import becomes, retarget
from hexane.passes.retarget.forms import FORMS, HOSTS
from hexane.targets.query import load_chip
from retargeted import assert_retargeted, ops, w, whole_numbers, x

Build = Callable[[], Any]
RESIZED = {"scale_factor_height": 2, "scale_factor_width": 3}


def bools(name: str) -> hx.Tensor:
    return x(3, 5, name=name, dtype="bool")


# (what is built, a chip that needs the form, how it says it is written, whether results are equal to the bit)
FIRES: dict[str, tuple[Build, str, str, bool]] = {
    "sin": (lambda: hx.sin(x(4, 9)), "h13", "written as a polynomial", False),
    "cos": (lambda: hx.cos(x(4, 9)), "h14", "written as a polynomial", False),
    "argmin": (lambda: hx.reduce_argmin(x(4, 9), axis=1), "h13", "written as neg, reduce_argmax", True),
    "logical_and": (lambda: hx.logical_and(bools("x"), bools("y")), "h13", "written as select", True),
    "logical_or": (lambda: hx.logical_or(bools("x"), bools("y")), "h17s", "written as select", True),
    "logical_xor": (lambda: hx.logical_xor(bools("x"), bools("y")), "h13", "written as not_equal", True),
    "hard_swish": (lambda: hx.hard_swish(x(4, 9)), "h13", "written as sigmoid_hard, mul", False),
    "mish": (lambda: hx.mish(x(4, 9)), "h13", "written as softplus, tanh, mul", False),
    "selu": (lambda: hx.selu(x(4, 9)), "h13", "written as elu, mul", False),
    "rms_norm": (lambda: hx.rms_norm(x(4, 9)), "h13", "written as abs, reduce_max, maximum, mul, inverse, square, reduce_mean, add, rsqrt", False),
    "prelu_of_rows": (lambda: hx.prelu(x(4, 9), w(9)), "h13", "written as less, mul, select", True),
    "divide_by_a_constant": (lambda: hx.real_div(x(4, 9), w(9) + 4), "h12", "written as mul by the reciprocal", False),
    "divide_by_a_power": (lambda: hx.real_div(x(4, 9), 8.0), "h11", "written as mul by the reciprocal", True),
    "batch_norm": (lambda: hx.batch_norm(x(2, 4, 3, 5), w(4), abs(w(4)) + 1, w(4), w(4)), "h12", "written as mul, add", False),
    "batch_norm_of_columns": (lambda: hx.batch_norm(x(2, 4), w(4), np.float32([1, 4, 16, 64]), epsilon=0.0), "h11", "written as mul, add", True),
    "clip": (lambda: hx.clip(x(4, 9), alpha=-1.0, beta=2.0), "h12", "written as maximum, minimum", True),
    "clip_above": (lambda: hx.clip(x(4, 9), beta=2.0), "h11", "written as minimum", True),
    "sigmoid_hard": (lambda: hx.sigmoid_hard(x(4, 9)), "h12", "written as mul, add, clip", False),
    "mean_of_pixels": (lambda: hx.reduce_mean(x(2, 4, 4, 8), axes=(2, 3), keep_dims=False), "h12", "written as avg_pool", True),
    "mean_of_columns": (lambda: hx.reduce_mean(x(2, 4, 3, 8), axes=(3,), keep_dims=True), "h11", "written as avg_pool", True),
    "largest_of_pixels": (lambda: hx.reduce_max(x(2, 4, 3, 7), axes=(2, 3), keep_dims=True), "h12", "written as max_pool", True),
    "broadcast_rows": (lambda: hx.broadcast_to(x(1, 4, 1, 5), shape=(1, 4, 3, 5)), "h12", "written as add of zeros", True),
    "broadcast_channels": (lambda: hx.broadcast_to(x(1, 1, 3, 1), shape=(1, 4, 3, 5)), "h11", "written as a convolution with ones", True),
    "one_axis": (lambda: hx.conv(x(2, 3, 9), w(4, 3, 3), w(4), pad=(2, 0), strides=2), "h13", "written as an image of height 1", True),
    "one_axis_transposed": (lambda: hx.conv_transpose(x(1, 3, 9), w(3, 2, 3), strides=2, output_padding=1), "h17s", "written as an image of height 1", True),
    "one_axis_pooled": (lambda: hx.max_pool(x(1, 3, 9), kernel_sizes=2, dilations=2), "h13", "written as an image of height 1", True),
    "three_axes": (lambda: hx.conv(x(1, 2, 4, 5, 6), w(3, 2, 2, 3, 3), w(3), pad=1, strides=(2, 1, 1)), "h13", "written as 2 convolutions of images", True),
    "pool_of_three_axes": (lambda: hx.max_pool(x(2, 3, 6, 8, 7), kernel_sizes=(2, 3, 3), strides=3, pad=(1, 0, 1, 1, 2, 0)), "h13", "written as pools of images", True),
    "pool_of_three_axes_dilated": (lambda: hx.max_pool(x(1, 2, 9, 8, 9), kernel_sizes=2, dilations=(3, 1, 2), strides=2), "h17s", "written as pools of images", True),
    "mean_of_three_axes": (lambda: hx.avg_pool(x(1, 2, 6, 8, 40), kernel_sizes=(2, 3, 32), strides=2, pad=(1, 0, 1, 1, 2, 5)), "h13", "written as pools of images", False),
    "mean_of_three_axes_all_counted": (lambda: hx.avg_pool(x(1, 2, 6, 8, 9), kernel_sizes=2, dilations=2, pad=1, exclude_padding=False), "h13", "written as pools of images", False),
    "norm_of_wide_windows": (lambda: hx.lp_pool(x(1, 2, 4, 64), kernel_sizes=(2, 32), strides=2), "h13", "written as", False),
    "channels_last": (lambda: hx.conv(x(1, 5, 6, 3), w(4, 3, 3, 3), layout="nhwc"), "h13", "written with transposes", True),
    "channels_last_pooled": (lambda: hx.max_pool(x(1, 5, 6, 3), kernel_sizes=2, layout="nhwc"), "h13", "written with transposes", True),
    "stride_6": (lambda: hx.conv(x(1, 2, 20, 20), w(3, 2, 5, 5), w(3), strides=6, pad=1), "h13", "written with strides of 3 x 2 and 3 x 2", True),
    "stride_5": (lambda: hx.conv(x(1, 2, 21, 20), w(3, 2, 3, 3), strides=5), "h13", "written with strides of 1 x 5 and 1 x 5", True),
    "stride_64": (lambda: hx.conv(x(1, 1, 130, 130), w(2, 1, 3, 3), strides=64), "h13", "written with strides of 8 x 8 and 8 x 8", True),
    "stride_of_groups": (lambda: hx.conv(x(1, 4, 20, 20), w(4, 1, 5, 5), strides=(6, 1), groups=4), "h13", "written with strides of 3 x 2", True),
    "patches": (lambda: hx.conv(x(1, 3, 32, 48), w(4, 3, 16, 16), w(4), strides=16), "h13", "space to depth: 16 x 16 pixels in the channels", True),
    "patches_of_groups": (lambda: hx.conv(x(2, 4, 10, 10), w(6, 2, 5, 5), strides=5, groups=2), "h17s", "space to depth: 5 x 5", True),
    "patches_padded": (lambda: hx.conv(x(1, 2, 13, 14), w(3, 2, 14, 14), strides=7, pad=(4, 5, 3, 6)), "h13", "space to depth: 7 x 7", True),
    "dilation_5": (lambda: hx.conv(x(2, 2, 14, 15), w(3, 2, 3, 3), w(3), dilations=5, pad=4), "h13", "written with 5 images in the batch", True),
    "dilation_with_stride": (lambda: hx.conv(x(1, 2, 24, 25), w(3, 2, 3, 3), dilations=(5, 7), strides=2), "h13", "written with a stride of 1", True),
    "dilated_large_kernel": (lambda: hx.conv(x(1, 1, 4, 40), w(2, 1, 1, 9), dilations=2), "h13", "written with 2 images in the batch", True),
    "wide_kernel": (lambda: hx.conv(x(1, 2, 4, 40), w(3, 2, 3, 30), w(3), pad=(1, 1, 20, 3)), "h13", "tiled: kernel width, 3 pieces", True),
    "wide_kernel_on_m5": (lambda: hx.conv(x(1, 2, 4, 40), w(3, 2, 3, 16)), "h17s", "tiled: kernel width, 2 pieces", True),
    "high_kernel": (lambda: hx.conv(x(1, 2, 40, 4), w(3, 2, 31, 3), strides=2), "h13", "tiled: kernel height, 2 pieces", True),
    "wide_kernel_of_groups": (lambda: hx.conv(x(1, 4, 4, 20), w(4, 1, 3, 9), groups=4), "h13", "tiled: kernel width, 2 pieces", True),
    "wide_transposed_kernel": (lambda: hx.conv_transpose(x(1, 2, 4, 9), w(2, 3, 3, 9), w(3), strides=2, pad=(0, 1, 5, 2), output_padding=1), "h13", "tiled: kernel width, 2 pieces", True),
    "pool_stride_3": (lambda: hx.max_pool(x(1, 3, 10, 11), kernel_sizes=3, strides=3, pad=1), "h13", "written as pools of stride 1", True),
    "pool_dilated": (lambda: hx.max_pool(x(1, 3, 10, 11), kernel_sizes=3, dilations=(2, 3), strides=2), "h17s", "written as pools of stride 1", True),
    "pool_wide": (lambda: hx.max_pool(x(1, 1, 70, 5), kernel_sizes=(60, 2)), "h13", "written as pools of stride 1", True),
    "mean_wide": (lambda: hx.avg_pool(x(1, 2, 40, 5), kernel_sizes=(32, 2), pad=(3, 4, 1, 0)), "h13", "written as a convolution with equal weights; tiled: kernel height", False),
    "mean_wide_counting_padding": (lambda: hx.avg_pool(x(1, 2, 40, 5), kernel_sizes=(32, 2), pad=(3, 4, 1, 0), exclude_padding=False), "h13", "written as a convolution with equal", False),
    "slice_of_ones": (lambda: hx.slice_by_index(x(4, 9), begin=(1, 2), end=(3, 9)), "h13", "written as slice_by_size", True),
    "slice_of_steps": (lambda: hx.slice_by_index(x(4, 9, 7), begin=(0, 1, 0), end=(4, 9, 7), stride=(3, 2, 3)), "h13", "written as reshape and slice_by_size", True),
    "slice_of_rows": (lambda: hx.slice_by_index(x(9), begin=(1,), end=(9,), stride=(4,)), "h17s", "written as reshape and slice_by_size", True),
    "slice_of_later_steps": (lambda: hx.slice_by_index(x(6, 9, 8), begin=(1, 2, 1), end=(6, 9, 8), stride=(2, 3, 2)), "h13", "written as reshape and slice_by_size", True),
    "slice_of_pixels": (lambda: hx.slice_by_index(x(1, 4, 6, 5), begin=(0, 1, 1, 0), end=(1, 4, 6, 5), stride=(1, 2, 2, 1)), "h13", "written as reshape and slice_by_size", True),
    "slice_of_pixels_on_five_axes": (lambda: hx.slice_by_index(x(2, 1, 3, 6, 5), begin=(0, 0, 0, 1, 0), end=(2, 1, 3, 6, 5), stride=(1, 1, 1, 2, 1)), "h17s", "written as reshape and slice_by_size", True),
    "divide_by_less_than_fp16_inverts": (lambda: hx.real_div(x(4) * 1e-3, 1e-6), "h12", "written as two factors", False),
    "multiply_by_more_than_fp16_holds": (lambda: hx.mul(x(4) * 1e-3, 1e6), "h13", "written as two factors", False),
    "a_variance_beyond_fp16": (lambda: hx.batch_norm(x(2, 4), w(4) * 100, abs(w(4)) * 1e5 + 2e5), "h13", "written with its scale and shift", False),
    "a_variance_beyond_fp16_before_family_A13": (lambda: hx.batch_norm(x(2, 4), w(4) * 100, abs(w(4)) * 1e5 + 2e5), "h12", "written with its scale and shift", False),
    "a_variance_beyond_two_of_fp16": (lambda: hx.batch_norm(x(2, 4), w(4), abs(w(4)) * 1e9 + 2e9, w(4) + 1, w(4)), "h17s", "written with its scale, as two factors, and its shift", False),
    "divide_by_more_than_fp16_inverts": (lambda: hx.real_div(x(4), 5e4), "h17s", "written as two factors", False),
    "multiply_by_less_than_fp16_keeps": (lambda: hx.mul(x(4), 1.7e-5), "h13", "written as two factors", False),
    "small_scale": (lambda: hx.dequantize(x(4, dtype="int8"), np.float32(1.5e-5)), "h13", "written with a scale that fp16 holds", False),
    "gather_one": (lambda: hx.gather(x(3, 2, 8, 5), np.int64(1), axis=0), "h13", "written as slices", True),
    "gather_of_spans": (lambda: hx.gather(x(3, 6, 8, 5), np.array([[4, 5], [-3, 0]]), axis=1), "h13", "written as slices", True),
    "gather_along_rows": (lambda: hx.gather(x(3, 2, 4, 9), np.array([2, 3, 7]), axis=3), "h13", "written as slices", True),
    "pad_channels": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 1, 1, 0), end=(0, 2, 0, 1), value=2.0), "h17s", "written as concat with the margins", True),
    "pad_edge": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 0, 3, 0), end=(0, 0, 0, 2), mode="edge"), "h17s", "written as concat with the margins", True),
    "pad_reflect": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 0, 3, 1), end=(0, 0, 0, 2), mode="reflect"), "h13", "written as concat with the margins", True),
    "pad_wrap": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 0, 3, 1), end=(0, 0, 0, 2), mode="wrap"), "h17s", "written as concat with the margins", True),
    "pad_negative": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, -1, 0, 1), end=(0, 0, 0, -2)), "h13", "written as slices and pad", True),
    "broadcast_5": (lambda: hx.broadcast_to(x(3, 1), shape=(131, 3, 4)), "h13", "written as tile", True),
    "tile_5": (lambda: hx.tile(x(2, 3), reps=(5, 14)), "h13", "written as concat of tiles", True),
    "six_axes": (lambda: hx.relu(x(1, 2, 3, 2, 1, 2)), "h13", "written on 5 axes", True),
    "six_axes_broadcast": (lambda: x(2, 2, 3, 2, 1, 2) * x(3, 1, 1, 2, name="y"), "h13", "written on 5 axes", True),
    "softmax_of_six": (lambda: hx.softmax(x(1, 2, 3, 2, 1, 2), axis=2), "h13", "written on 5 axes", False),
    "sum_of_six": (lambda: hx.reduce_sum(x(1, 2, 3, 2, 1, 2), axes=(1, 4, 5), keep_dims=False), "h13", "written on 5 axes", True),
    "matmul_of_five": (lambda: x(2, 1, 3, 4, 4) @ x(2, 1, 3, 4, 4, name="y"), "h13", "written on 4 axes", True),
    "matmul_of_five_rows": (lambda: x(2, 1, 3, 4, 6) @ w(6, 5), "h17s", "written on 2 axes", True),
    "linear_of_five": (lambda: hx.linear(x(2, 1, 3, 4, 6), w(5, 6), w(5)), "h13", "written on 2 axes", True),
    "windows": (lambda: hx.transpose(hx.reshape(x(1, 4, 6, 3), shape=(1, 2, 2, 3, 2, 3)), perm=(0, 1, 3, 2, 4, 5)), "h13", "written on 4 axes", True),
    "transpose_batch": (lambda: hx.transpose(x(2, 3, 2, 3, 2), perm=(3, 1, 0, 4, 2)), "h13", "written as two transposes", True),
    "attention_of_five": (lambda: hx.scaled_dot_product_attention(x(2, 1, 2, 3, 4), x(2, 1, 2, 3, 4, name="k"), x(2, 1, 2, 3, 4, name="v")), "h13", "written as mul, matmul, softmax", False),
    "nearest_by_2": (lambda: hx.upsample_nearest_neighbor(x(2, 3, 4, 5), **RESIZED), "h13", "written as resize_nearest_neighbor", True),
    "nearest_by_others": (lambda: hx.resize(x(1, 3, 4, 5), sizes=(7, 3), mode="nearest"), "h13", "written as resize_nearest_neighbor", True),
    "linear_by_2": (lambda: hx.upsample_bilinear(x(1, 3, 4, 5), align_corners=False, half_pixel_centers=True, **RESIZED), "h13", "written as resize_bilinear; written as a transposed convolution with triangles", False),
    "linear_by_corners": (lambda: hx.upsample_bilinear(x(1, 3, 4, 5), **RESIZED), "h13", "written as resize_bilinear; written as products with constant matrices", False),
    "cubic": (lambda: hx.resize(x(1, 3, 4, 5), sizes=(7, 3), mode="cubic"), "h17s", "written as transpose, matmul", False),
    "shuffle_by_5": (lambda: hx.pixel_shuffle(x(2, 25, 2, 3), upscale_factor=5), "h13", "written as reshape, transpose", True),
    "unshuffle_by_5": (lambda: hx.pixel_unshuffle(x(1, 1, 10, 5), downscale_factor=5), "h13", "written as reshape, transpose", True),
    "quantized_matmul": (lambda: hx.quantized_matmul(x(3, 5, dtype="int8"), hx.const(np.ones((5, 4), np.int8)), np.float32(0.5), None, np.int8(1), dtype="int8", output_scale=0.25), "h13", "written as dequantize, the product and quantize", True),
    "quantized_add": (lambda: hx.quantized_add(x(3, 5, dtype="int8"), x(5, dtype="int8", name="y"), x_scale=0.5, y_scale=2.0, y_zero=3, dtype="int8", output_scale=0.25), "h13", "written as dequantize, add, quantize", True),
    "attention_of_other_values": (lambda: hx.scaled_dot_product_attention(x(2, 3, 4), x(2, 5, 4, name="k"), x(2, 5, 6, name="v")), "h13", "written as mul, matmul, softmax", False),
}  # fmt: skip


def graph_of(build: Build) -> Graph:
    return hx.graph(build())


@pytest.mark.parametrize(("build", "chip", "how", "exact"), FIRES.values(), ids=FIRES)
def test_a_form_stands_for_its_op(build: Build, chip: str, how: str, exact: bool) -> None:
    graph, target = graph_of(build), load_chip(chip)
    verdict = becomes(graph.outputs[0].value.node, target)
    assert verdict.form.startswith(how), verdict
    assert verdict.runs
    after = assert_retargeted(graph, target, exact)
    assert all(
        becomes(node, target).verdict == "native"
        for node in after.nodes
        if node.op not in ("input", "const", "reshape")
    )
    assert [
        d for d in after.decisions if d.stage == "retarget" and how.split(";")[0].removeprefix("tiled: ") in d.reason
    ]


# What a form must leave alone, as the chip runs it.
LEAVES: dict[str, tuple[Build, str]] = {
    "sin": (lambda: hx.sin(x(4, 9)), "h15"),
    "argmin": (lambda: hx.reduce_argmin(x(4, 9), axis=1), "h15"),
    "division": (lambda: hx.real_div(x(4, 9), x(4, 9, name="y")), "h13"),
    "broadcast": (lambda: hx.broadcast_to(x(1, 4, 1, 5), shape=(1, 4, 3, 5)), "h13"),
    "strides": (lambda: hx.conv(x(1, 2, 20, 20), w(3, 2, 3, 3), strides=(8, 3)), "h13"),
    "dilations": (lambda: hx.conv(x(1, 2, 20, 20), w(3, 2, 3, 3), dilations=(6, 8)), "h13"),
    "kernel_at_the_limit": (lambda: hx.conv(x(1, 2, 30, 30), w(3, 2, 29, 13)), "h13"),
    "kernel_at_the_limit_of_m5": (lambda: hx.conv(x(1, 2, 33, 33), w(3, 2, 32, 15)), "h17s"),
    "mean_of_stride_3": (lambda: hx.avg_pool(x(1, 3, 10, 11), kernel_sizes=3, strides=3), "h13"),
    "pool_of_the_whole": (lambda: hx.max_pool(x(1, 3, 40, 40), kernel_sizes=40), "h13"),
    "pad_of_images": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 0, 1, 1), end=(0, 0, 1, 1)), "h13"),
    "reflection": (lambda: hx.pad(x(1, 3, 4, 5), begin=(0, 0, 1, 1), end=(0, 0, 1, 1), mode="reflect"), "h14"),
    "tile": (lambda: hx.tile(x(2, 3), reps=(6, 16)), "h13"),
    "topk": (lambda: hx.topk(x(4, 9), k=5)[0], "h14"),
    "pool_of_three_axes": (lambda: hx.max_pool(x(1, 2, 6, 5, 4), kernel_sizes=2, strides=2), "h13"),
    "five_axes": (lambda: hx.relu(x(2, 2, 3, 2, 2)), "h13"),
    "transpose_of_five": (lambda: hx.transpose(x(2, 3, 2, 3, 2), perm=(0, 4, 1, 3, 2)), "h13"),
    "resize": (lambda: hx.resize_bilinear(x(1, 3, 4, 5), height=8, width=10, scale_h=0.5, scale_w=0.5), "h14"),
    "attention": (lambda: hx.scaled_dot_product_attention(x(2, 3, 4), x(2, 5, 4, name="k"), x(2, 5, 4, name="v")), "h13"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "chip"), LEAVES.values(), ids=LEAVES)
def test_what_the_chip_runs_stays_as_it_is(build: Build, chip: str) -> None:
    graph = graph_of(build)
    assert retarget(graph, load_chip(chip)) is graph or str(retarget(graph, load_chip(chip))) == str(graph)
    assert becomes(graph.outputs[0].value.node, load_chip(chip)).form == ""


# What has no form, on this chip, and words of why.
HOSTED: dict[str, tuple[Build, str, str]] = {
    "tan": (lambda: hx.tan(x(4)), "h17s", "no chip has a path"),
    "divide_by_values": (lambda: hx.real_div(x(4, 9), x(4, 9, name="y")), "h12", "declares it for iPhone 12"),
    "divide_by_zero": (lambda: hx.real_div(x(4), 0.0), "h12", "declares it for iPhone 12"),
    "divide_by_less_than_two_factors_invert": (lambda: hx.real_div(x(4), 1e-10), "h12", "declares it for iPhone 12"),
    "floor_div": (lambda: hx.floor_div(x(4, 9), 3.0), "h12", "declares it for iPhone 12"),
    "batch_norm_of_params": (lambda: hx.batch_norm(x(2, 4), hx.param("mean", w(4)), abs(w(4)) + 1), "h12", "declares it for iPhone 12"),
    "batch_norm_beyond_fp16": (lambda: hx.batch_norm(x(2, 4), w(4), abs(w(4)) * 0, epsilon=1e-12), "h12", "declares it for iPhone 12"),
    "mean_of_channels": (lambda: hx.reduce_mean(x(1, 4, 3, 5), axes=(1,)), "h12", "declares it for iPhone 12"),
    "reshape_that_is_no_flatten": (lambda: hx.reshape(x(2, 6, 4), shape=(2, 3, 8)), "h11", "cannot be lowered as Flatten on ANE"),
    "taps_beside_the_result": (lambda: hx.conv_transpose(x(1, 3, 3, 1), w(3, 1, 1, 18), dilations=(1, 2), pad=(0, 0, 11, 23)), "h13", "dilated conv with large kernel"),
    "argmin_of_integers": (lambda: hx.reduce_argmin(x(4, 3000), axis=1), "h13", "fp16 counts exactly"),
    "random": (lambda: hx.random_uniform(hx.stream(0), shape=(4,)), "h14", "no generator"),
    "grid_sample": (lambda: hx.grid_sample(x(1, 1, 4, 4), x(1, 3, 3, 2, name="g")), "h13", "texture engine"),
    "topk_of_3": (lambda: hx.topk(x(4, 9), k=3)[0], "h17s", "another number than 3 and 4"),
}  # fmt: skip


@pytest.mark.parametrize(("build", "chip", "why"), HOSTED.values(), ids=HOSTED)
def test_what_has_no_form_stays_for_the_host_with_a_reason(build: Build, chip: str, why: str) -> None:
    graph, target = graph_of(build), load_chip(chip)
    verdict = becomes(graph.outputs[0].value.node, target)
    assert not verdict.runs
    assert why in verdict.reason
    after = retarget(graph, target)
    assert str(after) == str(graph)
    assert any(d.verdict == "kept" and why in d.reason for d in after.decisions)


@pytest.mark.parametrize("first", [0, 1], ids=["four_first", "zero_first"])
def test_what_becomes_of_a_division_is_not_that_of_one_by_another_number(first: int) -> None:
    shared = x(4)
    quotients = [hx.real_div(shared, 4.0), hx.real_div(shared, 0.0)]
    order = quotients if first == 0 else quotients[::-1]
    runs = {y.value: becomes(y.value.node, load_chip("h12")).runs for y in order}
    assert [runs[y.value] for y in quotients] == [True, False]
    report = hx.preflight(order, "h12")
    assert [entry.verdict.runs for entry in report.entries] == [runs[y.value] for y in order]


@pytest.mark.parametrize("build", [hx.sin, hx.cos], ids=["sin", "cos"])
def test_the_polynomials_keep_to_sine_and_cosine_over_many_turns(build: Callable[[hx.Tensor], Any]) -> None:
    graph = hx.graph(build(x(40001)))
    after = retarget(graph, load_chip("h13"))
    for top in (1, 10, 1000, 1e6):
        feeds = {"x": np.linspace(-top, top, 40001, dtype=np.float32)}
        want, got = (next(iter(run_reference(g, feeds).values())) for g in (graph, after))
        assert np.abs(got.astype(np.float64) - want).max() < 5e-7


@pytest.mark.parametrize("build", [hx.sin, hx.cos], ids=["sin", "cos"])
def test_the_polynomials_are_off_in_fp16_by_what_their_hazard_says(build: Callable[[hx.Tensor], Any]) -> None:
    graph = hx.graph(build(x(8192, dtype="fp16")))
    after = retarget(graph, load_chip("h13"))
    assert any("errors of up to 0.0025" in d.reason for d in after.decisions if d.verdict == "hazard")
    for top in (1, 10, 400, 4000):
        values = np.linspace(-top, top, 8192).astype(np.float16)
        got = next(iter(run_reference(after, {"x": values}).values())).astype(np.float64)
        want = (np.sin if build is hx.sin else np.cos)(values.astype(np.float64))
        assert np.abs(got - want).max() < 0.0025


def test_the_polynomial_of_an_infinity_is_no_number() -> None:
    graph = hx.graph(hx.sin(x(3)))
    with np.errstate(invalid="ignore"):
        got = run_reference(retarget(graph, load_chip("h13")), {"x": np.array([np.inf, -np.inf, np.nan], np.float32)})
    assert np.isnan(next(iter(got.values()))).all()


@pytest.mark.parametrize("grid", [{"align_corners": False}, {"align_corners": False, "half_pixel_centers": True}])
@pytest.mark.parametrize("factor", [1, 2, 3, 4, 5])
def test_images_are_enlarged_by_whole_factors_in_one_convolution(factor: int, grid: dict[str, bool]) -> None:
    graph = hx.graph(hx.upsample_bilinear(x(1, 2, 3, 4), scale_factor_height=factor, scale_factor_width=2, **grid))
    after = assert_retargeted(graph, load_chip("h13"), exact=False)
    assert "conv_transpose" in ops(after)
    assert "matmul" not in ops(after)


@pytest.mark.parametrize("factors", [(8, 8), (16, 3), (12, 14), (17, 1), (26, 34)])
def test_nearest_pixels_by_a_large_factor_are_copied_in_steps(factors: tuple[int, int]) -> None:
    """A kernel in pieces wrote the large image once for each piece. 17 has no factors, 34 has 17."""
    scales = {"scale_factor_height": factors[0], "scale_factor_width": factors[1]}
    graph = hx.graph(hx.upsample_nearest_neighbor(x(1, 2, 3, 4), **scales))
    after = assert_retargeted(graph, load_chip("h13"), exact=True)
    if not {17, 34} & set(factors):
        assert ops(after) == ["conv_transpose", "conv_transpose"]


@pytest.mark.parametrize("start", [0.0, 0.5])
@pytest.mark.parametrize("factor", [2, 3, 4, 8, 16])
def test_an_enlarged_image_is_two_layers(factor: int, start: float) -> None:
    """One transposed convolution and the gains of its border, or two products. A kernel in pieces with a repeated edge
    was 8 to 54 layers."""
    size = {"height": 5 * factor, "width": 7 * factor}
    offset = (1 - factor) * start
    image = x(1, 3, 5, 7)
    graph = hx.graph(
        hx.resize_bilinear(
            image, **size, scale_h=1.0, scale_w=1.0, unit_h=factor, unit_w=factor, offset_h=offset, offset_w=offset
        )
    )
    after = assert_retargeted(graph, load_chip("h13"), exact=False)
    assert len(ops(after)) == 2


def test_a_wide_kernel_reads_no_weight_of_zero() -> None:
    """An infinity beside the window of a kernel's part stays outside of it."""
    graph = hx.graph(hx.conv(x(1, 1, 1, 40), w(1, 1, 1, 20) + 5))
    feeds = {"x": np.where(np.arange(40) == 39, np.inf, 1).astype(np.float32).reshape(1, 1, 1, 40)}
    got = run_reference(retarget(graph, load_chip("h13")), feeds)
    np.testing.assert_array_equal(next(iter(got.values())), next(iter(run_reference(graph, feeds).values())))


def test_every_op_has_its_forms_in_one_table() -> None:
    assert set(FORMS) == set(USER_OPS) - HOSTS


def test_whole_numbers_are_whole() -> None:
    assert all((a == a.astype(int)).all() for a in whole_numbers(graph_of(FIRES["sin"][0])).values())
