"""Rewrites transposed 3-D convolutions as convolutions of an input with zeros inserted between its elements."""

from collections.abc import Mapping
from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.ops.compose import Builder
from hexane.ops.taps import pairs
from hexane.passes.layout.channels_last import in_layout
from hexane.passes.legalize.expand import kernel_ops
from hexane.targets import Target


def spread_conv_transpose_3d(graph: Graph, target: Target) -> Graph:
    """conv_transpose(%x : (N, C, D, H, W), %w) {strides=s}  ->  conv(%x with s - 1 zeros between elements, %w turned around)

    Input and output channels of %w are exchanged. Each pad of the convolution is the reach of the kernel minus the
    node's pad. A channels-last convolution is transposed before and after.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.types[0].rank != 5:
            return None
        return in_layout(
            "nchw", node, inputs, lambda operands: _convolution(kernel_ops(*node.sources), operands, node.attrs)
        )

    return graph.rewrite(change, ("conv_transpose",))


def _convolution(b: Builder, inputs: tuple[Value | None, ...], attrs: Mapping[str, Any]) -> Value:
    x, weight, bias = inputs
    assert x is not None
    assert weight is not None
    strides, dilations, groups = attrs["strides"], attrs["dilations"], attrs["groups"]
    inner, outer, *kernel = weight.shape
    thin = [d for extent in x.shape[2:] for d in (extent, 1)]
    gaps = (0, 0, *(v for s in strides for v in (0, s - 1)))
    spread = b.pad(b.reshape(x, shape=(*x.shape[:2], *thin)), begin=(0,) * 8, end=gaps)
    spread = b.reshape(spread, shape=(*x.shape[:2], *(e * s for e, s in zip(x.shape[2:], strides, strict=True))))
    begin, end = [0, 0], [0, 0]
    for k, s, r, pad, extra in zip(
        kernel, strides, dilations, pairs(attrs["pad"]), attrs["output_padding"], strict=True
    ):
        begin.append(r * (k - 1) - pad[0])
        end.append(r * (k - 1) - pad[1] + extra - (s - 1))
    spread = b.pad(spread, begin=begin, end=end)
    flipped = b.reshape(b.reverse(weight, axes=(2, 3, 4)), shape=(groups, inner // groups, outer, *kernel))
    flipped = b.transpose(flipped, perm=(0, 2, 1, 3, 4, 5))
    flipped = b.reshape(flipped, shape=(groups * outer, inner // groups, *kernel))
    return b.conv(spread, flipped, bias, dilations=dilations, groups=groups)
