"""Cases of passes that choose the order of axes, and of epilogues."""

import numpy as np

import hexane as hx
from hexane.passes.fuse.fuse_bias import fuse_bias
from hexane.passes.fuse.fuse_epilogue import fuse_epilogue
from hexane.passes.fuse.fuse_transpose import fuse_transpose
from hexane.passes.layout.channels_last import channels_last
from hexane.passes.legalize.select_kernels import select_kernels
from hexane.passes.simplify.simplify import simplify
from pass_cases.graphs import (
    HOST,
    Case,
    conv,
    fold_qdq_of,
    grid,
    image,
    normal,
    photo,
    qdq_conv,
    real,
    shared,
    steps,
    widened,
)


def residual() -> hx.Tensor:
    x = image(4)
    return hx.relu(conv(conv(x, 4), 4) + x)


def attention() -> hx.Tensor:
    q, k = hx.input("q", (1, 5, 2, 4)), hx.input("k", (1, 5, 2, 4))
    return hx.transpose(q, perm=(0, 2, 1, 3)) @ hx.transpose(k, perm=(0, 2, 3, 1))


def twice(x: hx.Tensor, **attrs: str) -> hx.Tensor:
    return hx.resize_nearest_neighbor(x, height=12, width=10, scale_h=0.5, scale_w=0.5, mode="floor", **attrs)


def between_convolutions() -> hx.Tensor:
    """A transposed convolution and another, joined, before a third."""
    table = np.arange(256, dtype=np.uint8)[::-1].astype(np.int8)
    first = hx.lookup(steps(hx.relu(widened(photo())), 64.0), table)
    joined = hx.concat(first, steps(qdq_conv(real("r", (1, 2, 12, 10)), 2), 64.0), axis=1)
    return steps(qdq_conv(hx.dequantize(joined, *grid(64.0))), 4096.0)


def selected(*outputs: hx.Tensor) -> list[hx.Tensor]:
    """The outputs as kernels compute them."""
    graph = select_kernels(channels_last(hx.graph(outputs), HOST), HOST)
    return [hx.Tensor(port.value) for port in graph.outputs]


def cancelled(outputs: list[hx.Tensor]) -> list[hx.Tensor]:
    return [hx.Tensor(port.value) for port in simplify(hx.graph(outputs), HOST).outputs]


FIRES: dict[str, Case] = {
    "channels_last_instance_norm": (channels_last, lambda: hx.instance_norm(conv(image(), 4), normal(4), normal(4))),
    "channels_last_group_norm": (
        channels_last,
        lambda: (lambda y: hx.reshape(hx.instance_norm(hx.reshape(y, shape=(1, 2, -1))), shape=y.shape))(
            conv(image(), 4)
        ),
    ),
    "fuse_bias_matmul": (fuse_bias, lambda: normal(1, 1, 4) + (hx.input("x", (1, 2, 3)) @ normal(3, 4))),
    "fuse_bias_conv": (fuse_bias, lambda: conv(image(), 4) + normal(4, 1, 1)),
    "fuse_transpose": (fuse_transpose, attention),
    "channels_last": (channels_last, residual),
    "channels_last_flatten": (channels_last, lambda: hx.flatten(hx.relu(conv(image(), 4)))),
    "channels_last_reduce": (
        channels_last,
        lambda: hx.reduce_mean(conv(image(), 4), axes=(2, 3), keep_dims=False) * 2.0,
    ),
    "channels_last_concat": (channels_last, lambda: (lambda y: hx.concat(y, hx.relu(y), axis=1))(conv(image(), 4))),
    "channels_last_resize": (
        channels_last,
        lambda: (lambda x: [twice(x), conv(twice(hx.exp(x)), 4), twice(conv(x, 4))])(image()),
    ),
    "channels_last_transpose": (channels_last, lambda: hx.transpose(conv(image(), 4), perm=(0, 2, 3, 1))),
    "select_kernels": (select_kernels, lambda: hx.relu(conv(image(), 4))),
    "select_kernels_channels_last": (
        select_kernels,
        lambda: hx.conv(hx.input("x", (1, 6, 5, 3)), normal(4, 3, 1, 1), layout="nhwc") * 2.0,
    ),
    "select_kernels_without_slots": (select_kernels, lambda: twice(image())),
    "select_kernels_of_a_quantised_product": (
        select_kernels,
        lambda: fold_qdq_of(steps(hx.relu(qdq_conv(photo(), 4)), 64.0)),
    ),
    "fuse_epilogue_residual": (fuse_epilogue, lambda: selected(residual())),
    "fuse_epilogue_elementwise": (fuse_epilogue, lambda: selected(hx.relu(hx.input("a", (3,)) + hx.input("b", (3,))))),
    "channels_last_of_a_transposed_product": (channels_last, lambda: cancelled(fold_qdq_of(between_convolutions()))),
    "channels_last_after_a_transpose": (
        channels_last,
        lambda: conv(
            hx.pad(
                hx.transpose(hx.input("x", (1, 6, 5, 3)), perm=(0, 3, 1, 2)) * 2.0, begin=(0, 0, 1, 0), end=(0,) * 4
            ),
            4,
        ),
    ),
}


LEAVES: dict[str, Case] = {
    "an_instance_norm_alone": (channels_last, lambda: hx.instance_norm(image(8), normal(8), normal(8))),
    "a_bias_that_has_another_user_of_the_product": (fuse_bias, lambda: shared(lambda y: y + normal(4, 1, 1))),
    "a_bias_along_rows": (fuse_bias, lambda: (hx.input("x", (4, 3)) @ normal(3, 4)) + normal(4, 1)),
    "a_bias_that_widens": (fuse_bias, lambda: (hx.input("x", (1, 3)) @ normal(3, 4)) + normal(2, 4)),
    "a_transpose_that_moves_the_innermost_axis_elsewhere": (
        fuse_transpose,
        lambda: hx.transpose(hx.input("q", (4, 5, 6)), perm=(2, 0, 1)) @ normal(5, 2),
    ),
    "channels_last_of_a_graph_without_spatial_ops": (channels_last, attention),
    "channels_last_of_an_image_that_is": (channels_last, lambda: twice(hx.input("x", (1, 6, 5, 3)), layout="nhwc")),
    "an_activation_whose_operand_is_shared": (fuse_epilogue, lambda: selected(*shared(hx.relu))),
    "a_residual_that_broadcasts": (fuse_epilogue, lambda: selected(conv(image(), 4) + hx.input("y", (4, 1, 1)))),
    "an_activation_of_integers": (
        fuse_epilogue,
        lambda: selected(hx.relu(hx.input("a", (3,), "int32") + hx.input("b", (3,), "int32"))),
    ),
    "ops_whose_kernels_are_told_what_users_say": (
        select_kernels,
        lambda: hx.relu(twice(hx.input("x", (1, 6, 5, 3)), layout="nhwc")),
    ),
}
