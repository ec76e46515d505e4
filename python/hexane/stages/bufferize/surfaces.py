"""Chooses which values lie in surfaces: memory that a device's programs and the host's steps both read and write.

conv -> y          y gets the row stride of the program, if conv can write and all readers can read such rows.
 y -> program      Otherwise a copy is inserted between conv and the program.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from hexane.graph import Graph, Node, Value
from hexane.ops.records.program import PROGRAM, Layout, layouts
from hexane.program import Buffer, View
from hexane.stages.bufferize.aliases import Aliases, accepts, canonical, is_computed, reads
from hexane.targets import Kernels, Target


def claim_surfaces(
    graph: Graph, order: Sequence[Node], aliases: Aliases, target: Target, users: Mapping[Value, Sequence[Node]]
) -> None:
    """Assigns surfaces to results of programs, and to those operands of programs whose producer and readers support the
    row stride."""
    ports = {port.value: port.name for port in reversed(graph.outputs)}
    for node in order:
        if node.op != PROGRAM:
            continue
        takes, gives = layouts(node)
        for value, layout in zip(node.values, gives, strict=True):
            name = ports.get(value, "")
            aliases.home[value] = _surface(aliases, value, layout, name)
            if name:
                aliases.ports[name] = aliases.home[value]
        for operand, layout in zip(node.inputs, takes, strict=True):
            assert operand is not None
            if operand in aliases.home or not is_computed(operand):
                continue
            view = in_layout(len(aliases.buffers), operand, layout)
            writes = operand.node.op == "concat" or accepts(target.kernels, operand.node, view)
            if writes and all(reads(target.kernels, user, view) for user in users[operand]):
                aliases.home[operand] = _surface(aliases, operand, layout)


def leaf_layout(leaf: Value, users: Mapping[Value, Sequence[Node]], kernels: Kernels) -> Layout | None:
    """Returns the layout of an input, param or state that a program reads or writes, if all its readers support that
    layout, else None."""
    same = list(_same_memory(leaf, users))
    readers = [node for value in same for node in users.get(value, ())]
    wanted = next((layout for node in readers for value, layout in _operands(node) if value in same), None)
    written = next((_made_by_program(node) for node in readers if node.inputs[0] == leaf), None)
    if wanted and written:  # the surface must hold both the read and the written layout
        wanted = wanted._replace(bytes=max(wanted.bytes, written.bytes))
    wanted = wanted or written
    if wanted is None:
        return None
    view = in_layout(0, leaf, wanted)
    return wanted if all(reads(kernels, node, view) for node in readers) else None


def in_layout(buffer: int, value: Value, layout: Layout) -> View:
    """Returns the view of the value at the start of the buffer, in this layout."""
    return View(buffer, 0, value.type, canonical(layout.strides, value.type))


def _surface(aliases: Aliases, value: Value, layout: Layout, port: str = "") -> View:
    view = in_layout(len(aliases.buffers), value, layout)
    aliases.buffers.append(surface_buffer("port" if port else "arena", layout, len(aliases.buffers), port))
    return view


def surface_buffer(kind: str, layout: Layout, number: int, name: str = "", leaf: Node | None = None) -> Buffer:
    """Returns a buffer that is a memory of its own and is visible to a device."""
    leaf_type, data = (None, None) if leaf is None else (leaf.types[0], leaf.data)
    space = "" if kind == "port" else f"surface {number}"
    strides = () if leaf is None else canonical(layout.strides, leaf.types[0])
    return Buffer(kind, layout.bytes, name, leaf_type, data, space, True, strides)  # type: ignore[arg-type]


def equal_sizes(
    buffers: list[Buffer], programs: Iterable[tuple[Sequence[View], Sequence[View]]], swaps: Iterable[tuple[int, int]]
) -> list[Buffer]:
    """Returns the buffers with equal sizes for all input surfaces of a program, and for all its output surfaces: the
    largest of each (constraints 2 and 18 of docs/mil.md).

    A surface shared by several programs makes all their surfaces equally large. A state and the update swapped with it
    are equally large, too.
    """
    group = list(range(len(buffers)))

    def root(buffer: int) -> int:
        while group[buffer] != buffer:
            group[buffer] = group[group[buffer]]
            buffer = group[buffer]
        return buffer

    together = [[view.buffer for view in side] for program in programs for side in program]
    for first, *others in filter(None, [*together, *map(list, swaps)]):
        for other in others:
            group[root(other)] = root(first)
    most: dict[int, int] = {}
    for i, buffer in enumerate(buffers):
        most[root(i)] = max(most.get(root(i), 0), buffer.bytes)
    return [replace(b, bytes=most[root(i)]) if b.surface else b for i, b in enumerate(buffers)]


def _operands(node: Node) -> Iterator[tuple[Value | None, Layout]]:
    if node.op == PROGRAM:
        yield from zip(node.inputs, layouts(node)[0], strict=True)


def _made_by_program(node: Node) -> Layout | None:
    """Returns the layout of a state's update if a program computes all of it, else None."""
    update = node.inputs[1] if node.op == "write_state" else None
    if update is None or update.node.op != PROGRAM or node.types[0] != update.type:
        return None
    return layouts(update.node)[1][update.output]


def _same_memory(value: Value, users: Mapping[Value, Sequence[Node]]) -> Iterator[Value]:
    """Yields the value, and its version after each write to it."""
    yield value
    for node in users.get(value, ()):
        if node.op == "write_state" and node.inputs[0] == value:
            yield from _same_memory(node.values[0], users)
