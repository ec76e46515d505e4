"""The axis of a layer's channels, followed through views and transposes."""

from math import prod

from hexane.graph import Node, Value
from hexane.passes.engine.chain import ALIKE, slots_of


class Channels:
    """Finds the channel axis of a value by following moves and elementwise layers back to the layer that sets it. The
    axis of each value is cached."""

    def __init__(self) -> None:
        self._known: dict[Value, int | None] = {}

    def axis(self, value: Value) -> int | None:
        """The channel axis, or None if a reshape has merged it with another axis."""
        path: list[Value] = []
        at: Value | None = value
        while at is not None and at not in self._known:
            path.append(at)
            follows = at.node.op in ("anec.transpose", "anec.reshape", *ALIKE) and not slots_of(at.node)
            at = at.node.inputs[0] if follows else None
        for step in reversed(path):
            before = None if at is None else self._known[at]
            self._known[step] = (
                own_channel_axis(step.node) if at is None else None if before is None else forward(step.node, before)
            )
            at = step
        return self._known[value]


def own_channel_axis(node: Node) -> int:
    """Returns the channel axis of the layer's result, after the transpose in its slots: the rows of a matrix product,
    the last axis of a linear layer, else axis 1 (axis 0 below rank 4)."""
    rank = node.types[0].rank
    if node.op == "anec.linear":
        axis = rank - 1
    elif node.op == "anec.matmul":
        axis = rank - 2
    else:
        axis = 1 if rank >= 4 else 0
    for s in slots_of(node):
        if s.op == "transpose":
            axis = dict(s.attributes)["perm"].index(axis)
    return axis


def forward(step: Node, axis: int) -> int | None:
    """Returns the axis of the step's output that corresponds to an axis of its input, or None if a reshape merges or
    splits that axis."""
    if step.op == "anec.transpose":
        return int(step.attrs["perm"].index(axis))
    if step.op == "anec.reshape":
        source = step.inputs[0]
        assert source is not None
        return _kept(source.shape, step.types[0].shape, axis)
    return axis


def backward(step: Node, axis: int) -> int | None:
    """Returns the axis of the step's input that corresponds to an axis of its output, or None if a reshape merges or
    splits that axis."""
    if step.op == "anec.transpose":
        return int(step.attrs["perm"][axis])
    if step.op == "anec.reshape":
        source = step.inputs[0]
        assert source is not None
        return _kept(step.types[0].shape, source.shape, axis)
    return axis


def _kept(before: tuple[int, ...], after: tuple[int, ...], axis: int) -> int | None:
    outer = prod(before[:axis])
    for i, extent in enumerate(after):
        if extent == before[axis] and prod(after[:i]) == outer:
            return i
    return None
