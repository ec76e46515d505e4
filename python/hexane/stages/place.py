"""Gives every value a place: views and concatenation cost nothing where strides can say them, elementwise results
overwrite an operand that nobody reads any more, outputs are computed where the user wants them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, Value
from hexane.ops import LEAVES, OPS
from hexane.program import Buffer, Decision, PortView, Program, Step, View, dense_strides
from hexane.stages.schedule import schedule
from hexane.targets import Target

_ACCEPTS = {row["name"]: row["accepts"] for row in _core.kernels()}
_LAYOUTS = {row["name"]: row["attrs"] for row in _core.kernels()}


def place(graph: Graph, target: Target) -> Program:
    """Graph -> Program without offsets: steps in order, each operand a view into a buffer."""
    return _Placer(graph, target).run()


class _Placer:
    def __init__(self, graph: Graph, target: Target) -> None:
        self.graph, self.target = graph, target
        self.order = schedule(graph)
        self.users = graph.users()
        self.index = {id(node): i for i, node in enumerate(self.order)}
        self.roots = set(graph.roots)
        self.views: dict[Value, View] = {}
        self.home: dict[Value, View] = {}  # where a value has to be computed: inside a concatenation, or in a port
        self.buffers: list[Buffer] = []
        self.steps: list[Step] = []
        self.last_use = self._last_uses()
        self.busy_until: dict[int, int] = {}  # by buffer: position in the order of the last reader of what is in it
        self.decisions: list[Decision] = []
        self.ports: dict[str, View] = {}

    def run(self) -> Program:
        self._claim_ports()
        self._embed_concats()
        for node in self.order:
            self._place(node)
            for value in node.values:
                buffer = self.views[value].buffer
                self.busy_until[buffer] = max(self.busy_until.get(buffer, -1), self.last_use[value])
            for port in self.graph.outputs:
                if port.value.node is node and port.name not in self.ports:
                    self._copy_to_port(port.name, port.value)
        return Program(
            self.graph,
            self.target,
            tuple(self.steps),
            tuple(self.buffers),
            tuple(PortView(str(v.node.attrs["name"]), self.views[v]) for v in self.graph.inputs),
            tuple(PortView(p.name, self.ports[p.name], p.length, p.axis) for p in self.graph.outputs),
            tuple(self.decisions),
        )

    def _last_uses(self) -> dict[Value, int]:
        """Position of the last node that may read each value's memory, through views and concatenations as well."""
        last = {v: len(self.order) if v in self.roots else -1 for node in self.order for v in node.values}
        for node in reversed(self.order):
            shares = node.op in ("concat", "write_state") or (node.op in OPS and OPS[node.op].view)
            until = max(self.index[id(node)], last[node.values[0]] if shares else -1)
            for value in node.inputs:
                if value is not None:
                    last[value] = max(last[value], until)
        return last

    # ---- where values have to be ----

    def _claim_ports(self) -> None:
        """An output is computed in its port, through reshapes if need be; one port for each value."""
        for port in self.graph.outputs:
            value = port.value
            while value.node.op == "reshape":
                value = value.node.inputs[0]  # type: ignore[assignment]
            if value.node.op in (*LEAVES, "write_state") or OPS[value.node.op].view or value in self.home:
                continue
            buffer = self._buffer("port", port.value.type.bytes, port.name)
            self.home[value] = View(buffer, 0, value.type, dense_strides(value.type))
            self.ports[port.name] = View(buffer, 0, port.value.type, dense_strides(port.value.type))

    def _embed_concats(self) -> None:
        """Operands of a concatenation are computed inside its result where producer and readers can live with the gaps."""
        for node in reversed(self.order):
            if node.op != "concat":
                continue
            result = node.values[0]
            if result not in self.home:
                buffer = self._buffer("arena", result.type.bytes)
                self.home[result] = View(buffer, 0, result.type, dense_strides(result.type))
            times = Counter(node.inputs)
            for value, piece in self._pieces(node):
                if times[value] == 1 and self._embeds(node, value, piece):
                    self.home[value] = piece

    def _pieces(self, node: Node) -> list[tuple[Value, View]]:
        """Each operand of a concatenation and the part of the result it becomes."""
        whole, axis, at = self.home[node.values[0]], int(node.attrs["axis"]), 0
        pieces = []
        for value in node.inputs:
            assert value is not None
            strides = _canonical(whole.strides, value.type)
            # Strides of an empty whole may point outside of it.
            offset = whole.offset + (at * whole.strides[axis] if value.type.size else 0)
            pieces.append((value, View(whole.buffer, offset, value.type, strides)))
            at += value.shape[axis]
        return pieces

    def _embeds(self, node: Node, value: Value, piece: View) -> bool:
        maker = value.node
        if maker.op in (*LEAVES, "write_state") or OPS[maker.op].view or value in self.home or value in self.roots:
            return False
        if not _accepts(_kernel(maker), piece):
            return False
        return all(user is node or self._reads(user, piece) for user in self.users[value])

    def _reads(self, user: Node, view: View) -> bool:
        """Whether the kernel of the user reads these strides."""
        return user.op == "concat" or OPS[user.op].view or _accepts(_kernel(user), view)

    # ---- nodes, in order ----

    def _place(self, node: Node) -> None:
        if node.op in LEAVES:
            self._place_leaf(node)
        elif OPS[node.op].view:
            self._place_view(node)
        elif node.op == "concat":
            self._place_concat(node)
        elif node.op == "write_state":
            self._step(node, node.inputs, [self.views[node.inputs[0]]])  # type: ignore[index]
            self.views[node.values[0]] = self.views[node.inputs[0]]  # type: ignore[index]
        else:
            views = [self.home.get(v) or self._in_place(node) or self._new(v.type) for v in node.values]
            self._step(node, node.inputs, views)
            self.views.update(zip(node.values, views, strict=True))

    def _place_leaf(self, node: Node) -> None:
        kind = node.types[0]
        if kind.dtype.bits % 8:
            raise Error(
                f"[{node.where}] got the dtype {kind.dtype}, need one of whole bytes on the target {self.target.name}"
            )
        space: Any = {"input": "port", "state": "state"}.get(node.op, "weights")
        buffer = self._buffer(space, kind.bytes, str(node.attrs.get("name", "")), node)
        self.views[node.values[0]] = View(buffer, 0, kind, dense_strides(kind))

    def _place_view(self, node: Node) -> None:
        value = node.values[0]
        assert node.inputs[0] is not None
        source = self.views[node.inputs[0]]
        window = _window(node, source)
        if window is None:  # a reshape that strides cannot say
            source = self._copied(node.inputs[0], source, "reshape needs elements without gaps", node)
            window = _window(node, source)
            assert window is not None
        readers = self.users.get(value, ())
        bad = next((user for user in readers if not self._reads(user, window)), None)
        if bad is not None:
            window = self._copied(value, window, f"{bad.op} reads {_ACCEPTS[_kernel(bad)]} operands", node)
        self.views[value] = window

    def _place_concat(self, node: Node) -> None:
        for value, piece in self._pieces(node):
            if self.views[value] != piece:
                self._copy(node, self.views[value], piece)
        self.views[node.values[0]] = self.home[node.values[0]]

    def _in_place(self, node: Node) -> View | None:
        """The operand that an elementwise result overwrites: one of its size, alone in its buffer, read by nobody later."""
        if OPS[node.op].layout != "elementwise":
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

    # ---- steps and buffers ----

    def _buffer(self, kind: Any, size: int, name: str = "", node: Node | None = None) -> int:
        kind_of, data = (None, None) if node is None else (node.types[0], node.data)
        space = "" if kind == "port" else self.target.space(kind).name
        self.buffers.append(Buffer(kind, size, name, kind_of, data, space))
        return len(self.buffers) - 1

    def _new(self, kind: TensorType) -> View:
        return View(self._buffer("arena", kind.bytes), 0, kind, dense_strides(kind))

    def _step(self, node: Node, inputs: Sequence[Value | None], outputs: Sequence[View]) -> None:
        views = tuple(None if v is None else self.views[v] for v in inputs)
        self.steps.append(Step(_kernel(node), node, views, tuple(outputs), kernel_attrs(node), self.target.arithmetic))

    def _copy(self, node: Node, source: View, target: View) -> None:
        self.steps.append(Step("copy", node, (source,), (target,), {}, self.target.arithmetic))

    def _copied(self, value: Value, window: View, reason: str, node: Node) -> View:
        target = self._new(value.type)
        self._copy(node, window, target)
        self.decisions.append(Decision("place", node.op, "copy", reason, node.source))
        return target

    def _copy_to_port(self, name: str, value: Value) -> None:
        buffer = self._buffer("port", value.type.bytes, name)
        self.ports[name] = View(buffer, 0, value.type, dense_strides(value.type))
        self._copy(value.node, self.views[value], self.ports[name])


def _kernel(node: Node) -> str:
    kernel = OPS[node.op].kernel
    if kernel not in _ACCEPTS:
        raise Error(f"[{node.where}] got an op that has no kernel on this machine, need one named {kernel!r}")
    return kernel


def _accepts(kernel: str, view: View) -> bool:
    """Whether the kernel takes operands with the view's strides."""
    accepts = _ACCEPTS[kernel]
    if accepts == "strided" or view.dense:
        return True
    return accepts == "rows" and view.type.rank > 0 and view.strides[-1] * 8 == view.type.dtype.bits


def _canonical(strides: Sequence[int], kind: TensorType) -> tuple[int, ...]:
    """Strides of axes of extent 1 say nothing: give them what they would be without gaps after the axis behind them."""
    result = list(strides)
    for i in reversed(range(kind.rank)):
        if kind.shape[i] == 1:
            result[i] = result[i + 1] * kind.shape[i + 1] if i + 1 < kind.rank else kind.dtype.bits // 8
    return tuple(result)


def _window(node: Node, source: View) -> View | None:
    """The node's result as a view of its input's memory, or None where strides cannot say it.

    NumPy is asked: the record's ref is applied to an array that only pretends to have memory.
    """
    kind = node.types[0]
    if kind.size == 0:
        return View(source.buffer, source.offset, kind, dense_strides(kind))
    element = np.zeros(1, f"V{source.type.dtype.bits // 8}")
    array = np.lib.stride_tricks.as_strided(element, source.type.shape, source.strides)
    try:
        if node.op == "reshape":
            result = np.reshape(array, kind.shape, copy=False)
        else:
            result = OPS[node.op].ref(array, **node.attrs)
    except ValueError:
        return None
    offset = result.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return View(source.buffer, source.offset + offset, kind, _canonical(result.strides, kind))


def kernel_attrs(node: Node) -> Mapping[str, Any]:
    """What goes into the kernel's attribute struct."""
    record = OPS[node.op]
    if record.kernel_attrs is not None:
        return record.kernel_attrs(node.inputs, node.attrs)
    names = [item.partition(":")[0] for item in _LAYOUTS[record.kernel].split()]
    return {name: node.attrs[name] for name in names}
