"""Finds the tensors of a program: the contents of each buffer between steps that overwrite the whole buffer."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from hexane.program import Program, View


@dataclass(slots=True)
class Contents:
    """The contents of a buffer between two steps that overwrite all of it. writers, readers: (step, position among its
    outputs or inputs), in order. views: of the writers and readers. A concatenation has several writers."""

    buffer: int
    version: int
    bytes: int
    in_arena: bool
    writers: list[tuple[int, int]] = field(default_factory=list)
    readers: list[tuple[int, int]] = field(default_factory=list)
    views: list[View] = field(default_factory=list)

    @property
    def first(self) -> int:
        return min(step for step, _ in (*self.writers, *self.readers))

    @property
    def last(self) -> int:
        return max(step for step, _ in (*self.writers, *self.readers))


@dataclass(frozen=True, slots=True)
class Tensors:
    """all: the tensors in the order in which steps first touch them. inputs, outputs: for each step's operands the
    index in `all`, or None for absent operands and for operands that no step writes."""

    all: list[Contents]
    inputs: list[tuple[int | None, ...]]
    outputs: list[tuple[int, ...]]


def find_tensors(program: Program) -> Tensors:
    """Returns the tensors in arenas and output ports that steps write."""
    written = {view.buffer for step in program.steps for view in step.outputs}
    tensors = Tensors([], [], [])
    current: dict[int, int] = {}

    def start(buffer: int) -> int:
        kept = program.buffers[buffer]
        version = tensors.all[current[buffer]].version + 1 if buffer in current else 0
        in_arena = kept.kind == "arena" and not kept.surface
        tensors.all.append(Contents(buffer, version, kept.bytes, in_arena))
        current[buffer] = len(tensors.all) - 1
        return current[buffer]

    def holder(view: View | None) -> int | None:
        if view is None or view.buffer not in written:
            return None
        return current[view.buffer] if view.buffer in current else start(view.buffer)

    for step_id, step in enumerate(program.steps):
        read = tuple(holder(view) for view in step.inputs)
        for i, (tensor, view) in enumerate(zip(read, step.inputs, strict=True)):
            if tensor is not None and view is not None:
                tensors.all[tensor].readers.append((step_id, i))
                tensors.all[tensor].views.append(view)
        ids = []
        for i, view in enumerate(step.outputs):
            tensor = start(view.buffer) if overwrites(step.inputs, view) else holder(view)
            assert tensor is not None
            tensors.all[tensor].writers.append((step_id, i))
            tensors.all[tensor].views.append(view)
            ids.append(tensor)
        tensors.inputs.append(read)
        tensors.outputs.append(tuple(ids))
    return tensors


def overwrites(inputs: Iterable[View | None], out: View) -> bool:
    """True if a step computes its result in the place of an operand."""
    return any(
        view is not None and (view.buffer, view.offset, view.strides) == (out.buffer, out.offset, out.strides)
        for view in inputs
    )
