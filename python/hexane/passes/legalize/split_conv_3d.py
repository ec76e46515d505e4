"""Rewrites 3-D convolutions as sums of 2-D convolutions, which have a kernel."""

from collections.abc import Sequence
from typing import Any

from hexane.dtypes import FP32, FP64
from hexane.graph import Graph, Node, Value
from hexane.ops.compose import Builder, cast
from hexane.ops.taps import pairs
from hexane.ops.window_rules import convolved_shape
from hexane.passes.layout.channels_last import in_layout
from hexane.passes.legalize.expand import kernel_ops
from hexane.targets import Target


def split_conv_3d(graph: Graph, target: Target) -> Graph:
    """conv(%x : (N, C, D, H, W), %w : (O, C, KD, KH, KW))  ->  the sum over kd of conv(%x[:, :, kd::stride], %w[:, :, kd])

    In each 2-D convolution the depth is folded into the batch. fp16 and bf16 are computed in fp32 and rounded once at
    the end. A channels-last convolution is transposed before and after.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.types[0].rank != 5:
            return None
        kind, b = node.types[0].dtype, kernel_ops(*node.sources)

        def split(operands: tuple[Value | None, ...]) -> Value:
            wide = [None if v is None else cast(b, v, FP64 if kind is FP64 else FP32) for v in operands]
            return cast(b, sum_of_taps(b, wide, node.attrs), kind)

        return in_layout("nchw", node, inputs, split)

    return graph.rewrite(change, ("conv",))


def sum_of_taps(b: Builder, operands: Sequence[Value | None], attrs: Any) -> Value:
    """Returns the convolution, channels first, as a sum over the taps of its depth. All float operands have one dtype,
    in which the partial sums are rounded."""
    x, weight, bias = operands
    assert x is not None
    assert weight is not None
    out = convolved_shape(x.shape, weight.shape, None, **{**attrs, "layout": "nchw"})
    depth, *plane = pairs(attrs["pad"])
    x = b.pad(x, begin=(0, 0, depth[0], 0, 0), end=(0, 0, depth[1], 0, 0))
    n, c, _, h, w = x.shape
    stride, dilation = attrs["strides"][0], attrs["dilations"][0]
    flat = {
        "strides": attrs["strides"][1:],
        "dilations": attrs["dilations"][1:],
        "pad": tuple(p for pair in plane for p in pair),
        "groups": attrs["groups"],
    }
    total = None
    for tap in range(weight.shape[2]):
        start = tap * dilation
        slab = b.slice_by_index(
            x,
            begin=(0, 0, start, 0, 0),
            end=(n, c, start + (out[2] - 1) * stride + 1, h, w),
            stride=(1, 1, stride, 1, 1),
        )
        images = b.reshape(b.transpose(slab, perm=(0, 2, 1, 3, 4)), shape=(n * out[2], c, h, w))
        kernel = b.slice_by_index(
            weight,
            begin=(0, 0, tap, 0, 0),
            end=(*weight.shape[:2], tap + 1, *weight.shape[3:]),
        )
        product = b.conv(
            images, b.reshape(kernel, shape=(*weight.shape[:2], *weight.shape[3:])), None if tap else bias, **flat
        )
        total = product if total is None else b.add(total, product)
    assert total is not None
    stacked = b.reshape(total, shape=(n, out[2], out[1], *out[3:]))
    return b.transpose(stacked, perm=(0, 2, 1, 3, 4))
