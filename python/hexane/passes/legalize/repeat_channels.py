"""Rewrites depthwise convolutions with several outputs per channel as depthwise convolutions with one each."""

from hexane.graph import Graph, Node, Value
from hexane.passes.legalize.expand import kernel_ops
from hexane.targets import Target


def repeat_channels(graph: Graph, target: Target) -> Graph:
    """conv(%x : (N, C, ..), %w : (2 C, 1, ..)) {groups=C}  ->  conv(%x with each channel twice, %w) {groups=2 C}

    The depthwise kernel computes one output per channel. The kernel for grouped convolutions, which would run instead,
    is five to ten times slower on small groups. Products and their order do not change.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, weight, bias = inputs
        assert x is not None
        assert weight is not None
        groups, outputs = node.attrs["groups"], weight.shape[0]
        if weight.shape[1] != 1 or not 1 < groups < outputs or x.type.rank > 4:
            return None
        b, times, last = kernel_ops(*node.sources), outputs // groups, node.attrs["layout"] == "nhwc"
        position = x.type.rank if last else 2
        shape = [*x.shape[:position], times, *x.shape[position:]]
        repeated = b.broadcast_to(b.expand_dims(x, axes=(position,)), shape=shape)
        whole = [*x.shape]
        whole[-1 if last else 1] = outputs
        repeated = b.reshape(repeated, shape=whole)
        return (b.conv(repeated, weight, bias, **{**node.attrs, "groups": outputs}),)

    return graph.rewrite(change, ("conv",))
