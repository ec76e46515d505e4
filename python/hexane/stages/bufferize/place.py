"""Assigns every value a place. Views are free if strides can express them. An elementwise result overwrites an operand
after its last read. All other values lie in the memory of an alias, or in a buffer of their own."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import LEAVES, OPS
from hexane.ops.records.program import PROGRAM, Layout, layouts
from hexane.passes.overwrites import overwrites
from hexane.program import Buffer, PortView, Program, View, dense_strides
from hexane.stages.bufferize.aliases import claim_concatenations, find_aliases, pieces, reads, window
from hexane.stages.bufferize.order import schedule
from hexane.stages.bufferize.steps import Copy, Operands, emit_steps
from hexane.stages.bufferize.surfaces import claim_surfaces, equal_sizes, in_layout, leaf_layout, surface_buffer
from hexane.targets import Space, Target


def place(
    graph: Graph,
    target: Target,
    order: str = "",
    first: Sequence[Value] = (),
    separate: bool = False,
    runtime: str = "host",
) -> Program:
    """Returns the graph as a program without offsets: steps in order, and each operand as a view into a buffer. order,
    first: as in `schedule`. separate: operands of concatenations have memory of their own and are copied, so that
    the result need not be live before it is read. runtime: the runtime of the steps (hx.Memory)."""
    placer = _Placer(graph, target, order, first, separate)
    placer.run()
    buffers = equal_sizes(placer.buffers, placer.operands.values(), placer.swaps)
    return Program(
        graph,
        target,
        tuple(emit_steps(placer.order, placer.views, placer.copies, target, placer.operands, placer.done)),
        tuple(buffers),
        tuple(PortView(str(v.node.attrs["name"]), placer.views[v]) for v in graph.inputs),
        tuple(PortView(p.name, placer.ports[p.name], p.length, p.axis) for p in graph.outputs),
        (*graph.decisions, *placer.decisions),
        swaps=tuple(placer.swaps),
        spaces=(*target.spaces, *placer.surfaces()),
        runtime=runtime,
    )


class _Placer:
    """Fills `views`, `buffers` and `copies` in the order of the nodes. `copies` maps the id of a node to the copies
    that run after the node's step."""

    def __init__(self, graph: Graph, target: Target, order: str, first: Sequence[Value], separate: bool) -> None:
        self.graph, self.target = graph, target
        self.order = schedule(graph, order, first)
        self.users = graph.users()
        self.index = {id(node): i for i, node in enumerate(self.order)}
        aliases = find_aliases(graph, self.order)
        claim_surfaces(graph, self.order, aliases, target, self.users)
        self.whole = {  # surface buffer -> the view of the whole buffer
            view.buffer: view for view in aliases.home.values() if aliases.buffers[view.buffer].surface
        }
        claim_concatenations(graph, self.order, aliases, target, self.users, separate)
        self.home, self.last_use, self.ports, self.buffers = (
            aliases.home, aliases.last_use, aliases.ports, aliases.buffers,
        )  # fmt: skip
        self.views: dict[Value, View] = {}
        self.copies: dict[int, list[Copy]] = defaultdict(list)
        self.busy_until: dict[int, int] = {}  # Buffer -> the position of the last step that reads it.
        self.operands: dict[int, Operands] = {}  # The id of a program's node -> its operands.
        self.in_surface: dict[tuple[Value, tuple[int, ...]], View] = {}
        self.overwritten = overwrites(graph).readers
        self.swaps: list[tuple[int, int]] = []  # The buffers of a state and of its value after the call.
        self.done: set[int] = set()  # The `id()` of writes that need no step.
        self.decisions: list[Decision] = []

    def surfaces(self) -> list[Space]:
        """Returns the memories of buffers that are surfaces."""
        alignment = self.target.alignment
        return [Space(b.space, b.kind, alignment) for b in self.buffers if b.surface and b.kind != "port"]

    def run(self) -> None:
        ports = defaultdict(list)
        for port in self.graph.outputs:
            ports[id(port.value.node)].append(port)
        for node in self.order:
            self._place(node)
            for value in node.values:
                buffer = self.views[value].buffer
                self.busy_until[buffer] = max(self.busy_until.get(buffer, -1), self.last_use[value])
            for port in ports[id(node)]:
                if port.name not in self.ports:
                    kind = port.value.type
                    self.ports[port.name] = View(
                        self._buffer("port", kind.bytes, port.name), 0, kind, dense_strides(kind)
                    )
                    self.copies[id(node)].append(Copy(self.views[port.value], self.ports[port.name]))

    def _place(self, node: Node) -> None:
        if node.op in LEAVES:
            self._place_leaf(node)
        elif OPS[node.op].view:
            self._place_view(node)
        elif node.op == "concat":
            self.views[node.values[0]] = self.home[node.values[0]]
            for value, piece in pieces(node, self.home[node.values[0]]):
                if self.views[value] != piece:
                    self.copies[id(node)].append(Copy(self.views[value], piece))
        elif node.op == PROGRAM:
            self._place_program(node)
        elif node.op == "write_state":
            self._place_write(node)
        elif OPS[node.op].kernel not in self.target.kernels:
            kernel = OPS[node.op].kernel
            raise Error(f"[{node.where}] got an op that has no kernel on this machine, need one named {kernel!r}")
        else:
            for i, value in enumerate(node.values):
                self.views[value] = (
                    self.home.get(value) or self._in_state(node, i) or self._in_place(node) or self._new(value)
                )

    def _place_leaf(self, node: Node) -> None:
        kind = node.types[0]
        if kind.dtype.bits % 8:
            raise Error(
                f"[{node.where}] got the dtype {kind.dtype}, need one of whole bytes on the target {self.target.name}"
            )
        layout = leaf_layout(node.values[0], self.users, self.target.kernels)
        if layout is not None:
            self._place_leaf_in_surface(node, layout)
            return
        space: Any = {"input": "port", "state": "state"}.get(node.op, "weights")
        buffer = self._buffer(space, kind.bytes, str(node.attrs.get("name", "")), node)
        self.views[node.values[0]] = View(buffer, 0, kind, dense_strides(kind))

    def _place_leaf_in_surface(self, node: Node, layout: Layout) -> None:
        kind = "port" if node.op == "input" else node.op
        self.buffers.append(surface_buffer(kind, layout, len(self.buffers), str(node.attrs["name"]), node))
        view = in_layout(len(self.buffers) - 1, node.values[0], layout)
        self.views[node.values[0]] = self.whole[view.buffer] = view

    def _place_write(self, node: Node) -> None:
        """Writes the update into the state, unless it was computed in the state. If a program computes the whole update
        in a surface like the state's, the update stays in its surface and the two surfaces are swapped after the
        call."""
        state, update, _ = node.inputs
        assert state is not None
        assert update is not None
        old, new = self.views[state], self.home.get(update)
        if self.views[update] == old:  # the state's buffer already has the update
            self.views[node.values[0]] = old
            self.done.add(id(node))
            return
        same = new is not None and (old.strides, old.offset, old.type) == (new.strides, new.offset, new.type)
        if new is None or not same or not self._is_next_of(new, old):
            self.views[node.values[0]] = old
            return
        self.views[node.values[0]] = new
        self.busy_until[new.buffer] = len(self.order)
        self.swaps.append((old.buffer, new.buffer))
        self.done.add(id(node))

    def _is_next_of(self, new: View, old: View) -> bool:
        """True if a program writes the new buffer and the old buffer is a state with no other write."""
        after, state = self.buffers[new.buffer], self.buffers[old.buffer]
        free = old.buffer not in [first for first, _ in self.swaps] and new.buffer not in [b for _, b in self.swaps]
        kinds = (after.kind, state.kind) == ("arena", "state") and after.surface and state.surface
        return free and kinds and after.bytes == state.bytes and self.whole.get(new.buffer) == new

    def _place_program(self, node: Node) -> None:
        """Places operands in their surfaces, or copies them to their surfaces right before the program runs. Places
        results in surfaces too, and copies them if a reader does not support the surface's rows."""
        takes, _ = layouts(node)
        pairs = zip(node.inputs, takes, strict=True)
        given = [self._in_surface(v, layout, node) for v, layout in pairs if v is not None]
        self.operands[id(node)] = Operands(given, [self.home[value] for value in node.values])
        for value in node.values:
            view = self.views[value] = self.in_surface[value, self.home[value].strides] = self.home[value]
            bad = next((user for user in self.users.get(value, ()) if not reads(self.target.kernels, user, view)), None)
            if bad is not None:
                reason = f"{bad.op.rpartition('.')[2]} needs elements without gaps"
                self.views[value] = self._copied(value, view, reason, node)

    def _in_surface(self, value: Value, layout: Layout, node: Node) -> View:
        view = self.views[value]
        wanted = in_layout(view.buffer, value, layout)
        if view == wanted == self.whole.get(view.buffer) and self.buffers[view.buffer].bytes >= layout.bytes:
            return view
        key = value, wanted.strides
        if key not in self.in_surface:
            self.buffers.append(surface_buffer("arena", layout, len(self.buffers)))
            self.in_surface[key] = in_layout(len(self.buffers) - 1, value, layout)
            before = self.order[self.index[id(node)] - 1]
            self.copies[id(before)].append(Copy(view, self.in_surface[key]))
        return self.in_surface[key]

    def _place_view(self, node: Node) -> None:
        value = node.values[0]
        assert node.inputs[0] is not None
        source = self.views[node.inputs[0]]
        seen = window(node, source)
        if seen is None:  # strides cannot express this reshape
            source = self._copied(node.inputs[0], source, "reshape needs elements without gaps", node)
            seen = window(node, source)
            assert seen is not None
        kernels = self.target.kernels
        bad = next((user for user in self.users.get(value, ()) if not reads(kernels, user, seen)), None)
        if bad is not None:
            rows = " in rows" if kernels.accepts(OPS[bad.op].kernel) == "rows" else ""
            seen = self._copied(value, seen, f"{bad.op.rpartition('.')[2]} needs elements without gaps{rows}", node)
        self.views[value] = seen

    def _in_state(self, node: Node, index: int) -> View | None:
        """Returns the view of the state that a result replaces as a whole, if all other readers of the old contents
        have run. The node may read each old element right before it overwrites that element. Returns None otherwise."""
        value = node.values[index]
        writes = [u for u in self.users.get(value, ()) if u.op == "write_state" and u.inputs[1] == value]
        if len(writes) != 1:
            return None
        (write,) = writes
        state, _, position = write.inputs
        assert state is not None
        assert position is not None
        view = self.views.get(state)
        if view is None or state.type != value.type or position.node.data is None or position.node.data.any():
            return None
        buffer, again = self.buffers[view.buffer], self.users.get(write.values[0], ())
        if buffer.kind != "state" or buffer.surface or not view.dense:
            return None
        if len(self.users[value]) > 1 and any(u.op == "write_state" for u in again):
            return None  # another reader may run after the next update
        readers = [n for n in self.overwritten.get(id(write), ()) if n is not node]
        if any(self.index[id(n)] > self.index[id(node)] for n in readers):
            return None
        op = OPS[node.op]
        reads = [i for i, v in enumerate(node.inputs) if v is not None and self.views[v].buffer == view.buffer]
        named = [i for i in reads if op.updates and i == op.inputs.index(op.updates[index])]
        if op.elementwise:
            named = [i for i in reads if self.views[node.inputs[i]] == view]  # type: ignore[index]
        return view if reads == named else None

    def _in_place(self, node: Node) -> View | None:
        """Returns the operand that an elementwise result overwrites, or None. The operand must have the size of the
        result, a buffer of its own, and no later reader."""
        if not OPS[node.op].elementwise:
            return None
        kind = node.types[0]
        operands = [self.views[v] for v in node.inputs if v is not None]
        for view in operands:
            buffer = self.buffers[view.buffer]
            if buffer.kind != "arena" or buffer.bytes != kind.bytes or view.type.shape != kind.shape or not view.dense:
                continue
            if view.type.dtype.bits != kind.dtype.bits or self.busy_until[view.buffer] > self.index[id(node)]:
                continue
            if all(other == view for other in operands if other.buffer == view.buffer):
                return View(view.buffer, 0, kind, view.strides)
        return None

    def _buffer(self, kind: Any, size: int, name: str = "", leaf: Node | None = None) -> int:
        space = "" if kind == "port" else self.target.space(kind).name
        leaf_type, data = (None, None) if leaf is None else (leaf.types[0], leaf.data)
        self.buffers.append(Buffer(kind, size, name, leaf_type, data, space))
        return len(self.buffers) - 1

    def _new(self, value: Value) -> View:
        return View(self._buffer("arena", value.type.bytes), 0, value.type, dense_strides(value.type))

    def _copied(self, value: Value, source: View, reason: str, node: Node) -> View:
        target = self._new(value)
        self.copies[id(node)].append(Copy(source, target))
        self.decisions.append(Decision("place", node.where, "copy", reason))
        return target
