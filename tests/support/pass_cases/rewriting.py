"""Cases of passes that write a graph otherwise: expansions, constants, what cancels, pads, dtypes."""

import math

import ml_dtypes
import numpy as np

import hexane as hx
from hexane.passes.fuse.split_products import split_products
from hexane.passes.legalize.expand import expand
from hexane.passes.legalize.keep_halves import keep_halves
from hexane.passes.legalize.legalize_dtypes import legalize_dtypes
from hexane.passes.legalize.repeat_channels import repeat_channels
from hexane.passes.legalize.save_states import save_states
from hexane.passes.legalize.split_conv_3d import split_conv_3d
from hexane.passes.legalize.spread_conv_transpose_3d import spread_conv_transpose_3d
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.legalize.to_fp16_where_held import to_fp16_where_held
from hexane.passes.legalize.use_bf16 import use_bf16
from hexane.passes.quantize.narrow_weights import narrow_weights
from hexane.passes.simplify.fold import fold, fold_but_narrow_weights
from hexane.passes.simplify.fold_pad import fold_pad
from hexane.passes.simplify.simplify import simplify
from hexane.passes.simplify.write_rows import write_rows
from pass_cases.graphs import Case, block, image, normal
from pass_cases.layout import selected


def padded(x: hx.Tensor, value: float = 0.0, end: int = 2, **attrs: str) -> hx.Tensor:
    return hx.pad(x, begin=(0, 0, 1, 0), end=(0, 0, end, 1), value=value, **attrs)


def casts(source: str, *dtypes: str) -> hx.Tensor:
    x = hx.input(source, (2, 3, 4), source)
    for d in dtypes:
        x = hx.cast(x, dtype=d)
    return x


def shifted() -> hx.Tensor:
    """A state whose end moves to its begin: what is read lies where it is written."""
    s = hx.state("s", init=np.arange(5, dtype=np.float32))
    return hx.write_state(s, s[1:4], hx.const(0))


def scattered(state: str = "cache", written: str = "cache") -> list[hx.Tensor]:
    """One row of a cache (batch, heads, positions, channels), as PyTorch's index_put is exported; and a sum of all."""
    held, row, at = hx.state(state, shape=(1, 2, 5, 3)), hx.input("row", (1, 2, 1, 3)), hx.input("at", (1,), "int64")
    lines = hx.scatter_nd(
        hx.transpose(held, perm=(2, 0, 1, 3)), hx.expand_dims(at, axes=(1,)), hx.transpose(row, perm=(2, 0, 1, 3))
    )
    whole = hx.transpose(lines, perm=(1, 2, 0, 3))
    target = held if written == state else hx.state(written, shape=(1, 2, 5, 3))
    return [hx.reduce_sum(whole, axes=(2,)), hx.write_state(target, whole, 0)]


def tap(name: str, channels: int, first: int = 0) -> hx.Tensor:
    """Rows (7, channels) of what a program of the engine gives, in fp32."""
    whole = hx.cast(hx.input(name, (1, first + channels, 1, 7), "fp16"), dtype="fp32")
    columns = hx.reshape(whole[:, first:] if first else whole, shape=(1, channels, 7))
    return hx.reshape(hx.transpose(columns, perm=(0, 2, 1)), shape=(7, channels))


def read_twice() -> list[hx.Tensor]:
    x = casts("fp16", "fp32")
    return [x[:, 1:] * 2.0, hx.exp(x)]


def joined_again() -> list[hx.Tensor]:
    """Parts of a result, and others, that the next program reads."""
    x, y = hx.cast(hx.input("x", (1, 6, 1, 7), "fp16"), dtype="fp32"), hx.exp(hx.input("y", (1, 7, 2)))
    turned = hx.reshape(hx.transpose(y, perm=(0, 2, 1)), shape=(1, 2, 1, 7))
    return [hx.cast(hx.concat([x[:, 3:], turned, x[:, :1]], axis=1), dtype="fp16"), x[:, 1:3] * 2.0]


def in_16_bits(dtype: str, *shape: int) -> hx.Tensor:
    """A weight in this dtype, cast to fp32."""
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.float16
    return hx.cast(hx.const(normal(*shape).astype(kind)), dtype="fp32")


def embedded() -> list[hx.Tensor]:
    """A table that is the matrix of the logits too."""
    table = in_16_bits("bfloat16", 300, 256)
    x = hx.gather(table, hx.input("i", (2,), "int32"))
    return selected(hx.matmul(x, table, transpose_y=True))


FIRES: dict[str, Case] = {
    "keep_halves": (keep_halves, lambda: selected(hx.matmul(tap("x", 3, 2), tap("y", 4), transpose_x=True))),
    "keep_halves_of_one_operand": (
        keep_halves,
        lambda: selected(hx.matmul(hx.input("x", (7, 3)), tap("y", 4), transpose_x=True)),
    ),
    "keep_halves_in_a_concatenation": (keep_halves, joined_again),
    "keep_halves_of_what_is_turned": (
        keep_halves,
        lambda: hx.cast(hx.transpose(hx.exp(block()), perm=(2, 0, 1)), dtype="fp16"),
    ),
    "narrow_weights": (
        narrow_weights,
        lambda: selected(
            hx.matmul(hx.input("x", (3, 256)), in_16_bits("bfloat16", 256, 256)),
            hx.matmul(hx.input("y", (3, 256)), in_16_bits("float16", 257, 256), transpose_y=True),
        ),
    ),
    "fold_but_narrow_weights": (
        fold_but_narrow_weights,
        lambda: hx.matmul(hx.input("x", (3, 256)), in_16_bits("float16", 256, 256)) + hx.const([1.0]) * 2.0,
    ),
    "narrow_weights_of_a_cast_that_others_read": (
        narrow_weights,
        lambda: selected(hx.matmul(hx.input("x", (3, 256)), w := in_16_bits("float16", 256, 256)), hx.exp(w)),
    ),
    "narrow_weights_of_an_embedding": (narrow_weights, embedded),
    "narrow_weights_of_a_model_in_bf16": (
        narrow_weights,
        lambda: selected(
            hx.matmul(hx.input("x", (3, 256), "bf16"), hx.const(normal(256, 256).astype(ml_dtypes.bfloat16)))
        ),
    ),
    "use_bf16": (
        use_bf16,
        lambda: selected(
            hx.relu(hx.conv(image(), normal(5, 3, 1, 1), normal(5))), hx.matmul(block(name="z"), normal(4, 3))
        ),
    ),
    "use_bf16_of_a_model_in_bf16": (
        use_bf16,
        lambda: selected(hx.matmul(hx.input("x", (5, 4), "bf16"), hx.input("y", (4, 3), "bf16"))),
    ),
    "use_bf16_of_a_chain": (use_bf16, lambda: selected(hx.matmul(hx.matmul(block(), normal(4, 3)), normal(3, 2)))),
    "use_bf16_of_attention": (
        use_bf16,
        lambda: selected(
            hx.scaled_dot_product_attention(*(hx.input(n, (1, s, 2)) for n, s in (("q", 64), ("k", 192), ("v", 192))))
        ),
    ),
    "use_bf16_of_two_that_are_computed": (
        use_bf16,
        lambda: selected(hx.matmul(hx.input("x", (2, 5, 3)), hx.input("y", (2, 4, 3)), transpose_y=True)),
    ),
    "save_states": (save_states, shifted),
    "write_rows": (write_rows, scattered),
    "expand_linear": (expand, lambda: hx.linear(hx.input("x", (2, 3)), normal(4, 3), normal(4))),
    "repeat_channels": (
        repeat_channels,
        lambda: hx.conv(hx.input("x", (2, 3, 5, 4)), normal(6, 1, 3, 3), normal(6), pad=1, strides=2, groups=3),
    ),
    "repeat_channels_last": (
        repeat_channels,
        lambda: hx.conv(hx.input("x", (1, 5, 4, 2)), normal(8, 1, 3, 1), groups=2, layout="nhwc"),
    ),
    "repeat_channels_of_lines": (repeat_channels, lambda: hx.conv(hx.input("x", (1, 3, 9)), normal(6, 1, 3), groups=3)),
    "split_conv_3d": (split_conv_3d, lambda: hx.conv(hx.input("x", (1, 2, 4, 3, 3)), normal(3, 2, 2, 1, 1), strides=2)),
    "spread_conv_transpose_3d": (
        spread_conv_transpose_3d,
        lambda: hx.conv_transpose(
            hx.input("x", (1, 2, 3, 2, 2)), normal(2, 1, 2, 2, 1), groups=2, strides=(2, 1, 1), pad=(1, 0, 0)
        ),
    ),
    "split_conv_3d_channels_last": (
        split_conv_3d,
        lambda: hx.conv(
            hx.input("x", (1, 4, 3, 5, 2)), normal(3, 2, 2, 1, 3), normal(3), pad=(1, 0, 0, 0, 1, 2), layout="nhwc"
        ),
    ),
    "spread_conv_transpose_3d_channels_last": (
        spread_conv_transpose_3d,
        lambda: hx.conv_transpose(
            hx.input("x", (1, 3, 2, 4, 2)), normal(2, 3, 2, 2, 1), normal(3), strides=(2, 1, 1), layout="nhwc"
        ),
    ),
    "fold_constants": (fold, lambda: hx.input("x", (2,)) + hx.exp(hx.const([0.0, 1.0])) * 2.0),
    "simplify_transposes": (
        simplify,
        lambda: hx.exp(hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(1, 2, 0))),
    ),
    "simplify_transposes_to_one": (
        simplify,
        lambda: hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(2, 1, 0)),
    ),
    "simplify_celu_to_elu": (simplify, lambda: hx.celu(hx.input("x", (2, 3)), alpha=1.0)),
    "simplify_transpose_to_reshape": (simplify, lambda: hx.transpose(hx.input("x", (2, 1, 4)), perm=(1, 0, 2))),
    "simplify_transposes_shared": (
        simplify,
        lambda: (lambda y: [hx.transpose(y, perm=(1, 2, 0)), hx.exp(y)])(hx.transpose(block(), perm=(2, 0, 1))),
    ),
    "simplify_reshapes": (simplify, lambda: hx.exp(hx.reshape(hx.reshape(block(), shape=(6, 4)), shape=(2, 3, 4)))),
    "simplify_reshapes_to_one": (simplify, lambda: hx.reshape(hx.reshape(block(), shape=(6, 4)), shape=(3, 8))),
    "simplify_casts": (simplify, lambda: [casts("fp16", "fp32", "fp16"), casts("int8", "fp16", "int8")]),
    "simplify_casts_to_one": (
        simplify,
        lambda: [casts("fp16", "fp32", "int8"), casts("uint8", "int32", "fp32"), casts("int32", "int64", "int8")],
    ),
    "simplify_reversals": (
        simplify,
        lambda: [
            hx.reverse(hx.reverse(block(), axes=(0, 2)), axes=(2, 0)),
            hx.reverse(hx.reverse(hx.input("y", (2, 3)), axes=(0,)), axes=(1, 0)),
        ],
    ),
    "simplify_slice_concat_broadcast": (
        simplify,
        lambda: hx.broadcast_to(
            hx.concat(hx.slice_by_index(block(), begin=(0, 0, 0), end=(2, 3, 4)), np.zeros((2, 0, 4), "f"), axis=1),
            shape=(2, 3, 4),
        ),
    ),
    "simplify_negations": (
        simplify,
        lambda: [
            hx.neg(hx.neg(block())),
            hx.logical_not(hx.logical_not(hx.input("b", (3,), "bool"))),
            hx.abs(hx.abs(hx.input("y", (3,)))),
        ],
    ),
    "simplify_neutral_numbers": (simplify, lambda: np.ones((3, 1), "f") * block() / 1.0 - 0.0),
    "simplify_choices": (
        simplify,
        lambda: [hx.select(np.ones((3, 1), bool), block(), 0.0), hx.select(np.zeros((), bool), 0.0, block(name="y"))],
    ),
    "simplify_limits": (
        simplify,
        lambda: (
            lambda x: [
                hx.clip(hx.relu(hx.relu(x[0])), beta=6.0),
                hx.relu(hx.clip(x[1], alpha=-1.0, beta=0.5)),
                hx.clip(hx.clip(x[1] * 2.0, alpha=-1.0, beta=0.5), alpha=0.75, beta=2.0),
            ]
        )(block()),
    ),
    "simplify_a_limit_that_is_shared": (simplify, lambda: (lambda y: [hx.relu(y), hx.exp(y)])(hx.relu6(block()))),
    "split_products": (
        split_products,
        lambda: hx.split(hx.matmul(hx.input("x", (2, 3, 5)), normal(5, 6)) + normal(6), num_splits=3, axis=-1),
    ),
    "split_products_of_slices": (
        split_products,
        lambda: (lambda y: [y[:, :4], y[:, 4:]])(
            hx.reshape(hx.linear(hx.input("x", (1, 3, 5)), normal(6, 5)), shape=(3, 6))
        ),
    ),
    "fold_pad_conv": (fold_pad, lambda: hx.conv(padded(image()), normal(4, 3, 3, 3), pad=(1, 0), strides=2)),
    "fold_pad_nhwc": (
        fold_pad,
        lambda: hx.conv(
            hx.pad(hx.input("x", (1, 6, 5, 4)), begin=(0, 1, 0, 0), end=(0, 0, 2, 0)), normal(6, 4, 3, 3), layout="nhwc"
        ),
    ),
    "fold_pad_max_pool": (fold_pad, lambda: hx.max_pool(padded(image(), -math.inf), kernel_sizes=3, strides=2)),
    "fold_pad_max_pool_of_positive_numbers": (
        fold_pad,
        lambda: hx.max_pool(padded(hx.relu(image())), kernel_sizes=3, strides=2),
    ),
    "fold_pad_avg_pool": (fold_pad, lambda: hx.avg_pool(padded(image()), kernel_sizes=3, strides=2)),
    "fold_pad_shared": (
        fold_pad,
        lambda: (lambda y: [hx.conv(y, normal(4, 3, 3, 3)), hx.conv(y, normal(4, 3, 1, 1)), hx.exp(y)])(
            padded(image())
        ),
    ),
    "to_fp16": (to_fp16, lambda: hx.relu(hx.input("x", (2, 3)) @ normal(3, 4))),
    "to_fp16_where_held": (to_fp16_where_held, lambda: hx.relu(hx.input("x", (2, 3)) * 1e6 * 1e-6)),
    "to_fp16_of_limits": (
        to_fp16,
        lambda: hx.clip(hx.pad(hx.input("x", (3,)), begin=(1,), end=(0,), value=0.1), beta=1e9),
    ),
    "legalize_dtypes": (
        legalize_dtypes,
        lambda: hx.input("x", (2, 3), "bf16") @ hx.cast(hx.const(normal(3, 4)), dtype="bf16"),
    ),
    "legalize_dtypes_a_scatter_that_adds": (
        legalize_dtypes,
        lambda: hx.scatter_along_axis(
            hx.input("x", (2, 3), "fp16"), np.array([[1, 1, 1]]), np.ones((1, 3), "e"), axis=1, mode="add"
        ),
    ),
    "legalize_dtypes_integers": (legalize_dtypes, lambda: hx.reduce_sum(block("uint32"), axes=(1,))),
}


LEAVES: dict[str, Case] = {
    "groups_of_two_channels": (repeat_channels, lambda: hx.conv(hx.input("x", (1, 4, 9)), normal(6, 2, 3), groups=2)),
    "rows_of_one_state_for_another": (write_rows, lambda: scattered(written="other")),
    "a_product_in_fp16": (
        use_bf16,
        lambda: selected(hx.matmul(hx.input("x", (2, 3), "fp16"), normal(3, 4).astype(np.float16))),
    ),
    "a_few_rows_with_a_matrix_that_is_computed": (
        use_bf16,
        lambda: selected(hx.matmul(hx.input("x", (2, 3, 3)), hx.input("y", (2, 3, 4)))),
    ),
    "attention_of_few_keys": (
        use_bf16,
        lambda: selected(
            hx.scaled_dot_product_attention(*(hx.input(n, (1, s, 2)) for n, s in (("q", 64), ("k", 191), ("v", 191))))
        ),
    ),
    "a_depthwise_convolution": (
        use_bf16,
        lambda: selected(hx.conv(hx.input("x", (1, 4, 5, 5)), normal(4, 1, 3, 3), groups=4)),
    ),
    "a_convolution_of_odd_groups": (
        use_bf16,
        lambda: selected(hx.conv(hx.input("x", (1, 6, 5, 5)), normal(32, 3, 1, 1), groups=2)),
    ),
    "a_weight_that_needs_fp32": (
        narrow_weights,
        lambda: selected(hx.matmul(hx.input("x", (3, 256)), hx.const(normal(256, 256)))),
    ),
    "a_small_weight": (
        narrow_weights,
        lambda: selected(hx.matmul(hx.input("x", (3, 16)), in_16_bits("float16", 16, 16))),
    ),
    "a_product_of_fp32": (keep_halves, lambda: selected(hx.matmul(hx.input("x", (2, 3)), hx.input("y", (3, 4))))),
    "a_product_of_integers_as_floats": (
        keep_halves,
        lambda: selected(hx.matmul(casts("int8", "fp32"), hx.input("y", (4, 3)))),
    ),
    "slices_of_a_cast_that_others_read": (keep_halves, read_twice),
    "fold_a_large_broadcast": (fold, lambda: hx.input("x", (1,)) + hx.broadcast_to(hx.const(1.0), shape=(1 << 25, 1))),
    "a_choice_that_widens": (simplify, lambda: hx.select(np.ones((2, 3), bool), hx.input("x", (3,)), 0.0)),
    "a_choice_of_both": (simplify, lambda: hx.select(np.array([True, False, True]), hx.input("x", (3,)), 0.0)),
    "two_transposes_of_one_tensor": (
        simplify,
        lambda: (lambda x: [hx.transpose(x, perm=(0, 2, 1)), hx.transpose(x, perm=(1, 2, 0))])(block()),
    ),
    "casts_that_round": (simplify, lambda: casts("fp32", "fp16", "fp32")),
    "casts_that_round_large_integers": (simplify, lambda: casts("int32", "fp32", "int32")),
    "casts_that_wrap": (simplify, lambda: casts("int32", "uint8", "int32")),
    "casts_that_saturate": (simplify, lambda: casts("int32", "fp64", "int8")),
    "casts_to_bool": (simplify, lambda: casts("fp32", "bool", "fp32")),
    "a_sum_with_zero": (simplify, lambda: block() + 0.0),
    "a_difference_with_minus_zero": (simplify, lambda: block() - np.float32(-0.0)),
    "one_over_x": (simplify, lambda: 1.0 / block()),
    "a_one_that_widens": (simplify, lambda: hx.input("x", (3,)) * np.ones((2, 3), "f")),
    "a_limit_whose_operand_is_shared": (
        simplify,
        lambda: (lambda y: [hx.clip(y, beta=3.0), hx.exp(y)])(hx.relu(block())),
    ),
    "limits_at_minus_zero": (simplify, lambda: hx.relu(hx.clip(block(), alpha=-0.0))),
    "limits_of_integers": (simplify, lambda: hx.clip(hx.clip(block("int32"), alpha=0.5), alpha=0.25)),
    "a_pad_with_another_value": (fold_pad, lambda: hx.conv(padded(image(), 1.0), normal(4, 3, 3, 3))),
    "a_pad_with_minus_zero": (fold_pad, lambda: hx.conv(padded(image(), -0.0), normal(4, 3, 3, 3))),
    "a_pad_in_another_mode": (fold_pad, lambda: hx.conv(padded(image(), mode="edge"), normal(4, 3, 3, 3))),
    "a_pad_that_cuts_off": (fold_pad, lambda: hx.conv(padded(image(), end=-1), normal(4, 3, 3, 3))),
    "a_pad_of_channels": (
        fold_pad,
        lambda: hx.conv(hx.pad(image(), begin=(0, 1, 1, 1), end=(0, 0, 1, 1)), normal(2, 4, 3, 3)),
    ),
    "a_pad_before_a_transposed_convolution": (fold_pad, lambda: hx.conv_transpose(padded(image()), normal(3, 4, 3, 3))),
    "zeros_before_a_max_pool": (fold_pad, lambda: hx.max_pool(padded(image()), kernel_sizes=3)),
    "zeros_before_a_max_pool_with_gaps": (
        fold_pad,
        lambda: hx.max_pool(padded(hx.relu(image())), kernel_sizes=2, dilations=3),
    ),
    "a_pad_as_wide_as_the_window": (fold_pad, lambda: hx.avg_pool(padded(image()), kernel_sizes=2)),
    "a_pad_before_an_avg_pool_that_leaves_out_its_own": (
        fold_pad,
        lambda: hx.avg_pool(padded(image()), kernel_sizes=3, pad=(1, 0)),
    ),
    "a_pad_in_which_a_rounded_up_window_begins": (
        fold_pad,
        lambda: hx.avg_pool(
            hx.pad(hx.input("x", (1, 1, 3)), begin=(0, 0, 0), end=(0, 0, 1)), kernel_sizes=2, strides=3, ceil_mode=True
        ),
    ),
    "a_dtype_that_has_a_kernel": (legalize_dtypes, lambda: hx.relu(block("fp16")) * 2.0),
    "a_dtype_without_a_wider_one": (legalize_dtypes, lambda: hx.relu(block("fp64"))),
}
