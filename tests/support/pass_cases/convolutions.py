"""Cases of passes that merge convolutions."""

import numpy as np

import hexane as hx
from hexane.passes.simplify.merge_convolutions import (
    merge_convolutions,
    merge_convolutions_bf16,
    merge_convolutions_halves,
)
from pass_cases.graphs import Case, conv, image, normal, normed


def depthwise(x: hx.Tensor, kernel: int = 3, **attrs: object) -> hx.Tensor:
    attrs = {"pad": kernel // 2, "groups": x.shape[1], **attrs}
    return hx.conv(x, normal(x.shape[1], 1, kernel, kernel), **attrs)  # type: ignore[arg-type]


def small(x: hx.Tensor, out: int, **attrs: object) -> hx.Tensor:
    """A convolution of one tap, with a bias."""
    return hx.conv(x, normal(out, x.shape[1], 1, 1), normal(out), **attrs)  # type: ignore[arg-type]


def branches(x: hx.Tensor) -> hx.Tensor:
    """MobileOne's sum, as torch exports it."""
    return normed(x) + (((small(x, 3) + 0.0) + conv(x, 3)) + conv(x, 3))


FIRES: dict[str, Case] = {
    "merge_convolutions": (merge_convolutions, lambda: (lambda x: conv(x, 4) + small(x, 4))(image())),
    "merge_convolutions_of_a_block": (merge_convolutions, lambda: hx.relu(branches(image()))),
    "merge_convolutions_halves": (
        merge_convolutions_halves,
        lambda: (lambda x: depthwise(x) + depthwise(x, 1))(image()),
    ),
    "merge_convolutions_bf16": (
        merge_convolutions_bf16,
        lambda: (lambda x: (conv(x, 3) + small(x, 3)) + normed(x))(image()),
    ),
    "merge_convolutions_by_channel": (
        merge_convolutions,
        lambda: (lambda x: (depthwise(x) + depthwise(x, 1)) + x)(image()),
    ),
    "merge_convolutions_channels_last": (
        merge_convolutions,
        lambda: (
            lambda x: (
                hx.conv(x, normal(6, 2, 3, 1), layout="nhwc", groups=2, pad=(1, 0), strides=2)
                + hx.conv(x, normal(6, 2, 1, 1), layout="nhwc", groups=2, strides=2)
            )
        )(hx.input("x", (1, 6, 5, 4))),
    ),
    "merge_convolutions_with_gaps": (
        merge_convolutions,
        lambda: (
            lambda x: (
                hx.conv(x, normal(4, 3, 3, 3), dilations=2, pad=2)
                + (hx.conv(x, normal(4, 3, 3, 1), dilations=(2, 1), pad=(2, 0)) + normal(4, 1, 1))
            )
        )(image()),
    ),
    "merge_convolutions_to_the_side": (
        merge_convolutions,
        lambda: (lambda x: hx.conv(x, normal(4, 3, 3), pad=(2, 0)) + hx.conv(x, normal(4, 3, 2), pad=(1, 0)))(
            hx.input("x", (2, 3, 9))
        ),
    ),
}

LEAVES: dict[str, Case] = {
    "a_convolution_that_is_read_elsewhere": (
        merge_convolutions,
        lambda: (lambda x: (lambda y: [y + small(x, 4), hx.exp(y)])(conv(x, 4)))(image()),
    ),
    "convolutions_of_two_tensors": (
        merge_convolutions,
        lambda: conv(image(), 4) + conv(hx.input("y", (1, 3, 6, 5)), 4),
    ),
    "convolutions_in_other_groups": (merge_convolutions, lambda: (lambda x: conv(x, 3) + depthwise(x))(image())),
    "kernels_of_which_none_holds_the_other": (
        merge_convolutions,
        lambda: (lambda x: hx.conv(x, normal(4, 3, 3, 1), pad=(1, 0)) + hx.conv(x, normal(4, 3, 1, 3), pad=(0, 1)))(
            image()
        ),
    ),
    "a_tap_between_the_taps_of_a_kernel_with_gaps": (
        merge_convolutions,
        lambda: (lambda x: hx.conv(x, normal(4, 3, 2, 2), dilations=2, pad=1) + small(x, 4))(image()),
    ),
    "a_sum_with_the_image_itself": (merge_convolutions, lambda: (lambda x: conv(x, 3) + x)(image())),
    "a_norm_beside_a_convolution_with_strides": (
        merge_convolutions,
        lambda: (lambda x: conv(x, 3, strides=2) + normed(hx.max_pool(x, kernel_sizes=2, strides=2)))(
            hx.input("x", (1, 3, 6, 6))
        ),
    ),
    "a_norm_beside_a_product_in_bf16": (merge_convolutions_bf16, lambda: (lambda x: conv(x, 3) + normed(x))(image())),
    "a_norm_of_another_axis": (
        merge_convolutions,
        lambda: (lambda x: conv(x, 3) + normed(x, axis=3))(image()),
    ),
    "a_sum_that_widens": (merge_convolutions, lambda: conv(image(), 4) + normal(2, 4, 6, 5)),
    "weights_that_are_not_known": (
        merge_convolutions,
        lambda: (lambda x: conv(x, 4) + hx.conv(x, hx.input("w", (4, 3, 3, 3)), pad=1))(image()),
    ),
    "weights_that_overflow_fp16": (
        merge_convolutions_halves,
        lambda: (lambda x, w: hx.conv(x, w) + hx.conv(x, w * np.float32(0.999)))(
            image(), np.full((4, 3, 3, 3), 40000, np.float32)
        ),
    ),
    "weights_in_fp16": (
        merge_convolutions,
        lambda: (lambda x: hx.conv(x, normal(4, 3, 3, 3).astype("e")) + hx.conv(x, normal(4, 3, 3, 3).astype("e")))(
            hx.input("x", (1, 3, 6, 5), "fp16")
        ),
    ),
}
