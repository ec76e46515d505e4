"""Moves spatial tensors to channels last, the layout of the CPU kernels."""

from collections.abc import Callable
from dataclasses import replace

from hexane.graph import Graph, Node, Value
from hexane.lowering.layouts import first_perm, last_perm
from hexane.ops import OPS
from hexane.passes.fuse.fuse_transpose import transposed
from hexane.passes.layout.follow import EITHER, PLANES, Moved, is_beside_last, move, resized_planes
from hexane.targets import Target


def channels_last(graph: Graph, target: Target) -> Graph:
    """conv(%x) {layout=nchw}  ->  transpose(conv(transpose(%x) {perm=(0, 2, 3, 1)}) {layout=nhwc}) {perm=(0, 3, 1, 2)}

    Ops between two convolutions adopt the layout of their operand, so that transposes meet and cancel. The remaining
    transposes are at the ports and before ops that need the model's axis order. If the model itself transposes an image
    to channels first, both forms of the image exist, and elementwise ops use either. A quantised input is transposed
    before it is quantised, which copies nothing. A nearest-neighbour resize or an instance norm with no channels-last
    neighbour keeps its layout. The resize treats each channel as an image with one channel.
    """
    if not any(_may_start(node) for node in graph.nodes):
        return graph
    moved, users = Moved(), graph.users()
    for node in graph.nodes:
        alone = node.op in EITHER and node.attrs["layout"] == "nchw" and not is_beside_last(node, moved, users)
        if alone and node.op == PLANES:
            moved.add(node, resized_planes(node, moved))
        elif alone or not move(node, moved):
            values = node.with_inputs(tuple([None if v is None else moved.plain(v) for v in node.inputs])).values
            moved.add(node, values)
            if _is_to_first(node):
                moved.add(node, (moved.plain(node.inputs[0]),), last=True)  # type: ignore[arg-type]
    return replace(
        graph,
        outputs=tuple(p._replace(value=moved.plain(p.value)) for p in graph.outputs),
        updates=tuple(moved.plain(v) for v in graph.updates),
        taps=graph.tapped(moved.plain),
    )


_STARTS = frozenset((PLANES, *(op.name for op in OPS.values() if op.layout == "spatial")))


def _may_start(node: Node) -> bool:
    """True if a channels-last form may begin at this node."""
    return node.op in _STARTS or _is_to_first(node)


def _is_to_first(node: Node) -> bool:
    """True if the node transposes an image to channels first. Transposes of rank 3 are excluded, because they may
    exchange any two axes."""
    rank = node.types[0].rank
    return node.op == "transpose" and rank > 3 and node.attrs["perm"] == first_perm(rank)


def in_layout(
    layout: str, node: Node, inputs: tuple[Value | None, ...], run: Callable[[tuple[Value | None, ...]], Value]
) -> tuple[Value]:
    """Calls `run` with the first input in this layout and returns its result in the node's own layout. Transposes are
    added if the node has another layout."""
    image = inputs[0]
    if image is None or node.attrs["layout"] == layout:
        return (run(inputs),)
    perms = [perm(image.type.rank) for perm in (first_perm, last_perm)]
    to, back = perms if layout == "nchw" else perms[::-1]
    return (transposed(run((transposed(image, to, node.sources), *inputs[1:])), back, node.sources),)
