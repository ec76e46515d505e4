"""Cases of passes that recognise norms or fold them away."""

import numpy as np

import hexane as hx
from hexane.passes.fuse.fuse_layer_norm import fuse_layer_norm
from hexane.passes.fuse.fuse_rms_norm import fuse_rms_norm
from hexane.passes.simplify.fold_batch_norm import fold_batch_norm, fold_batch_norm_halves
from pass_cases.graphs import Case, block, conv, image, normal, normed, shared


def layer_norm(x: hx.Tensor, axes: tuple[int, ...] = (-1,), keep_dims: bool = True) -> hx.Tensor:
    centred = x - hx.reduce_mean(x, axes=axes)
    variance = hx.reduce_mean(hx.pow(centred, 2.0), axes=axes, keep_dims=keep_dims)
    return centred / hx.sqrt(variance + 1e-5)


def mean_square(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(hx.pow(x, 2.0), axes=(-1,)) + 1e-6


FIRES: dict[str, Case] = {
    "fuse_layer_norm": (fuse_layer_norm, lambda: layer_norm(block()) * normal(4) + normal(1, 4)),
    "fuse_layer_norm_of_two_axes": (fuse_layer_norm, lambda: normal(3, 4) * layer_norm(block(), (1, 2))),
    "fuse_layer_norm_shared": (fuse_layer_norm, lambda: (lambda y: [y * normal(4), hx.exp(y)])(layer_norm(block()))),
    "fuse_layer_norm_by_products": (
        fuse_layer_norm,
        lambda: (lambda d: hx.rsqrt(1e-5 + hx.reduce_mean(d * d, axes=(2,))) * d + normal(4))(
            (lambda x: x - hx.reduce_mean(x, axes=(2,)))(block())
        ),
    ),
    "fuse_rms_norm": (fuse_rms_norm, lambda: (lambda x: x / hx.sqrt(mean_square(x)) * normal(4))(block())),
    "fuse_rms_norm_by_an_inverse": (
        fuse_rms_norm,
        lambda: (lambda x: normal(4) * (x * (1.0 / hx.sqrt(mean_square(x)))))(block()),
    ),
    "fuse_rms_norm_by_a_power": (
        fuse_rms_norm,
        lambda: (lambda x: hx.pow(hx.reduce_mean(x * x, axes=(-1,)), -0.5) * x)(block()),
    ),
    "fuse_rms_norm_shared": (
        fuse_rms_norm,
        lambda: (lambda y: [y * normal(4), hx.exp(y)])((lambda x: x * hx.inverse(hx.sqrt(mean_square(x))))(block())),
    ),
    "fold_batch_norm": (fold_batch_norm, lambda: normed(hx.conv(image(), normal(4, 3, 3, 3), normal(4)))),
    "fold_batch_norm_halves": (fold_batch_norm_halves, lambda: normed(hx.conv(image(), normal(4, 3, 3, 3), normal(4)))),
    "fold_batch_norm_nhwc": (
        fold_batch_norm,
        lambda: normed(hx.conv(hx.input("x", (1, 6, 5, 4)), normal(6, 2, 3, 1), groups=2, layout="nhwc"), axis=3),
    ),
    "fold_batch_norm_conv_transpose": (
        fold_batch_norm,
        lambda: normed(hx.conv_transpose(image(4), normal(4, 3, 3, 3), strides=2, groups=2)),
    ),
    "fold_batch_norm_matmul": (
        fold_batch_norm,
        lambda: normed(hx.matmul(hx.input("x", (5, 3)), normal(4, 3), transpose_y=True)),
    ),
    "fold_batch_norm_chain": (
        fold_batch_norm,
        lambda: (normed(conv(image(), 4)) * normal(4, 1, 1) - normal(1, 4, 1, 1)) / normal(4, 1, 1),
    ),
    "fold_batch_norm_from_a_constant": (fold_batch_norm, lambda: normal(4) - hx.input("x", (2, 5, 3)) @ normal(3, 4)),
}


LEAVES: dict[str, Case] = {
    "a_layer_norm_of_the_first_axis": (fuse_layer_norm, lambda: layer_norm(block(), (0,))),
    "a_layer_norm_whose_variance_loses_its_axis": (
        fuse_layer_norm,
        lambda: layer_norm(hx.input("x", (3, 3)), keep_dims=False),
    ),
    "a_layer_norm_of_another_mean": (
        fuse_layer_norm,
        lambda: (lambda d: d / hx.sqrt(hx.reduce_mean(hx.square(d), axes=(1, 2)) + 1e-5))(
            (lambda x: x - hx.reduce_mean(x, axes=(2,)))(block())
        ),
    ),
    "a_scale_of_rows_after_layer_norm": (fuse_layer_norm, lambda: hx.layer_norm(block()) * normal(3, 1)),
    "an_rms_norm_of_another_tensor": (fuse_rms_norm, lambda: hx.input("y", (2, 3, 4)) / hx.sqrt(mean_square(block()))),
    "an_rms_norm_of_cubes": (
        fuse_rms_norm,
        lambda: (lambda x: x / hx.sqrt(hx.reduce_mean(hx.pow(x, 3.0), axes=(2,))))(block()),
    ),
    "a_batch_norm_whose_operand_is_shared": (fold_batch_norm, lambda: shared(normed)),
    "a_batch_norm_after_weights_that_are_computed": (
        fold_batch_norm,
        lambda: normed(hx.conv(image(), hx.input("w", (4, 3, 3, 3)))),
    ),
    "a_batch_norm_after_a_bias_that_is_computed": (
        fold_batch_norm,
        lambda: normed(hx.conv(image(), normal(4, 3, 3, 3), hx.input("b", (4,)))),
    ),
    "a_batch_norm_of_rows": (fold_batch_norm, lambda: normed(hx.input("x", (2, 5, 3)) @ normal(3, 4))),
    "a_batch_norm_of_parameters_that_are_computed": (
        fold_batch_norm,
        lambda: hx.batch_norm(conv(image(), 4), hx.input("m", (4,)), normal(4) ** 2),
    ),
    "a_batch_norm_of_negative_variance": (
        fold_batch_norm,
        lambda: hx.batch_norm(conv(image(), 4), normal(4), np.full(4, -1, "f")),
    ),
    "a_scale_under_which_weights_vanish": (fold_batch_norm, lambda: conv(image(), 4) * np.full((4, 1, 1), 1e-40, "f")),
    "a_scale_of_which_fp16_would_keep_few_digits": (
        fold_batch_norm_halves,
        lambda: conv(image(), 4) / np.full((4, 1, 1), 1e6, "f"),
    ),
    "a_scale_that_takes_weights_beyond_fp16": (
        fold_batch_norm_halves,
        lambda: conv(image(), 4) * np.full((4, 1, 1), 1e6, "f"),
    ),
    "a_shift_beyond_fp16": (fold_batch_norm_halves, lambda: conv(image(), 4) + np.full((4, 1, 1), 1e6, "f")),
    "a_scale_of_one_number": (fold_batch_norm, lambda: (hx.input("x", (2, 3)) @ normal(3, 4)) * 0.3),
    "a_scale_of_one_number_for_one_channel": (fold_batch_norm, lambda: conv(image(), 1) / 0.3),
    "a_scale_that_fp16_weights_cannot_hold": (
        fold_batch_norm,
        lambda: (hx.input("x", (2, 3), "fp16") @ normal(3, 4).astype("e")) * np.full(4, 0.3, "e"),
    ),
    "a_quotient_of_a_constant": (fold_batch_norm, lambda: normal(4) / (hx.input("x", (2, 3)) @ normal(3, 4))),
}
