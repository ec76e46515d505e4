"""Moves: layers that only move elements, and how the layers next to them can take over their work."""

from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from hexane.graph import Node, Value
from hexane.ops import OPS, apply
from hexane.ops.records.engine.mac import SDPA_OPERANDS
from hexane.passes.engine.chain import takes

READ_TRANSPOSED = {  # per layer: the flags by which it reads an operand with rows and columns exchanged
    "anec.matmul": ("transpose_lhs", "transpose_rhs"),
    "anec.sdpa": SDPA_OPERANDS,
}
Shape = tuple[int, ...]
Step = tuple[Literal["reshape", "transpose"], Shape]  # the new shape, or the permutation
RANK = 4  # axes of an image
IN_SLOT = 0.25  # a transpose in a slot, as a fraction of a layer: an assumed cost, as no time is known.
MOVES = ("anec.transpose", "anec.reshape")


def step_of(node: Node) -> Step:
    return ("transpose", node.attrs["perm"]) if node.op == "anec.transpose" else ("reshape", tuple(node.types[0].shape))


def shape_behind(shape: Shape, steps: Sequence[Step]) -> Shape:
    for kind, values in steps:
        shape = values if kind == "reshape" else tuple(shape[p] for p in values)
    return shape


def is_layer(step: Step, shape: Shape) -> bool:
    """True if the step runs a layer on this shape; a reshape that keeps the last axis does not."""
    return step[0] == "transpose" or not keeps_rows(shape, step[1])


def keeps_rows(before: Shape, after: Shape) -> bool:
    """True if both shapes have the same last axis, so that the same rows follow each other in memory. The engine then
    reads the tensor in either shape without a copy, by other strides of channels and heights."""
    return (tuple(before) or (1,))[-1] == (tuple(after) or (1,))[-1]


def swaps_rows(step: Step) -> bool:
    """True if the step exchanges the last two axes, which a matrix product can do while it reads an operand."""
    kind, perm = step
    rank = len(perm)
    return kind == "transpose" and perm == (*range(rank - 2), rank - 1, rank - 2)


def writes(node: Node, step: Step) -> bool:
    """True if the layer itself can write its result transposed; the caller checks that nothing else reads it."""
    return step[0] == "transpose" and (takes(node, "transpose") or (node.op == "anec.sdpa" and swaps_rows(step)))


def reads(nodes: Sequence[Node], value: Value) -> bool:
    """True if every reader of the value can read it with rows and columns exchanged."""
    return bool(nodes) and all(
        node.op in READ_TRANSPOSED and value not in node.inputs[len(READ_TRANSPOSED[node.op]) :] for node in nodes
    )


def layers_of(way: Sequence[Step], shape: Shape, source: Node | None, for_product: bool) -> float:
    """Returns the number of layers in a chain that starts from this shape.

    source: the layer before the chain, if nothing else reads its result. A transpose in the slot of `source` counts as
    a fraction of a layer. for_product: all readers can exchange rows and columns themselves.
    """
    count = 0.0
    for i, step in enumerate(way):
        if step[0] == "transpose":
            first, last = i == 0 and source is not None and writes(source, step), i == len(way) - 1 and for_product
            count += 0 if last and swaps_rows(step) else IN_SLOT if first else 1
        else:
            count += is_layer(step, shape)
        shape = shape_behind(shape, [step])
    return count


def written(source: Value, way: Sequence[Step], sources: tuple[str, ...]) -> Value:
    for kind, values in way:
        attrs = {"shape": values} if kind == "reshape" else {"perm": values}
        source = apply(OPS[f"anec.{kind}"], [source], attrs, sources)[0]
    return source


def chain_nodes(value: Value, source: Value, alone: Callable[[Value], bool]) -> Iterator[Node]:
    """Yields the moves, from the value back to the source, that become unused if the value is replaced. Stops at the
    first move with another reader."""
    first = True
    while value != source and (first or alone(value)):
        yield value.node
        first = False
        assert value.node.inputs[0] is not None
        value = value.node.inputs[0]


class Image(NamedTuple):
    height: int
    width: int


def flattened(before: Sequence[int], after: Sequence[int]) -> Image | None:
    """Returns the size of the images that a reshape turns into rows of pixels, or None for another reshape."""
    if len(before) != RANK or len(after) != RANK or tuple(before[:2]) != tuple(after[:2]):
        return None
    return Image(before[2], before[3]) if after[2] == 1 and before[2] > 1 and before[3] > 1 else None


def four_axes(shape: Shape) -> Shape:
    return (1,) * (RANK - len(shape)) + tuple(shape)
