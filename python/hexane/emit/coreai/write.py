"""Writes a graph as a Core AI asset."""

import os
import re
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

import hexane
from hexane.emit.coreai.asset import ELEMENT_OF, AssetWriter, save_asset
from hexane.emit.coreai.bytecode import OperationRecord, WrittenValue, number
from hexane.emit.coreai.forms import FORMS, can_be_written
from hexane.emit.coreai.rules import RULES
from hexane.emit.coreai.scope import Scope, Typed
from hexane.emit.coreai.weights import form_of, sparse_weights, write_sparse, write_stored
from hexane.errors import Error
from hexane.graph import Graph, Node, Value, constant
from hexane.graph.names import check_name
from hexane.importers.coreai import import_asset, read_asset
from hexane.ops import LEAVES
from hexane.ops.encoded_moves import moved
from hexane.ops.rewriter import Rewriter

VERSION = 20260317  # the date of the newest op that is written
_LINE = re.compile(r"^(.*):([0-9]+)$")


def emit_asset(graphs: Graph | Mapping[str, Graph]) -> bytes:
    """Returns the program of an asset, with the graph as function `main`, or each graph as the function of its name.

    Params become constants, and states remain states. Functions share equal constants. Raises Error if there is no
    graph, for an invalid function name, and for ops that Core AI lacks: one message lists all those of a function.
    """
    writer = AssetWriter(VERSION)
    functions = {"main": graphs} if isinstance(graphs, Graph) else dict(graphs)
    if not functions:
        raise Error("[emit] got an asset without functions, need at least one")
    for name, graph in functions.items():
        check_name("function", name)
        _Function(writer, _written_in_its_ops(graph)).write(name)
    return writer.bytes()


def save_graph(
    graphs: Graph | Mapping[str, Graph], folder: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
) -> int:
    """Writes the asset of `emit_asset` into a folder `NAME.aimodel`, after reading it back as a check. Returns the
    bytes of the program."""
    program = emit_asset(graphs)
    asset = read_asset(program, os.fspath(folder))
    for name in asset.functions:
        import_asset(asset, function=name)
    written = {"assetVersion": "2.0", "producer": f"hexane {hexane.__version__}",
               "creationDate": time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())}  # fmt: skip
    save_asset(folder, program, {**written, **(metadata or {})})
    return len(program)


class _InItsOps(Rewriter):
    """A rewriter that keeps constants encoded, and moves their elements, if Core AI has the encoding."""

    __slots__ = ()

    def settled(self, node: Node) -> tuple[Value, ...]:
        stored = moved(node)
        if stored is not None and form_of(stored.node) is not None:
            return (stored,)
        return node.values if form_of(node) is not None else super().settled(node)


def _is_written(node: Node) -> bool:
    return node.op in LEAVES or node.op == "write_state" or can_be_written(node) or form_of(node) is not None


def _written_in_its_ops(graph: Graph) -> Graph:
    b = _InItsOps(legal=_is_written, patterns=RULES, folds=True)
    result = graph.rewrite(b.change)
    problems: dict[str, list[str]] = {}
    for node in result.nodes:
        if not _is_written(node):
            problems.setdefault(f"{node.op} of {node.types[0]}", []).append(node.where)
    if problems:
        listed = "\n  ".join(f"{what}: {', '.join(where[:3])}" for what, where in problems.items())
        kinds = "1 kind of ops has" if len(problems) == 1 else f"{len(problems)} kinds of ops have"
        raise Error(f"[emit] {kinds} no form in Core AI:\n  {listed}")
    return result


class _Function:
    def __init__(self, writer: AssetWriter, graph: Graph) -> None:
        self.writer, self.graph = writer, graph
        self.scope = Scope(writer)
        self.values: dict[Value, Typed] = {}
        self.handles: dict[str, WrittenValue] = {}
        self.token: WrittenValue | None = None
        self.locations: dict[tuple[str, ...], int] = {}
        self.stored = {node: form for node in graph.nodes if (form := form_of(node)) is not None}
        self.sparse = sparse_weights(graph)
        read = {v for node in graph.nodes if node not in self.stored for v in node.inputs}
        # Constants that only encoded weights use are written with the weights.
        self.parts = {v for node in self.stored for v in node.inputs} - read - {p.value for p in graph.outputs}

    def write(self, name: str) -> None:
        arguments: dict[str, WrittenValue] = {}
        for value in self.graph.inputs:
            typed = self.scope.value(value.type)
            self.values[value] = typed
            arguments[str(value.node.attrs["name"])] = typed.value
        for node in self.graph.nodes:
            if node.op == "state":
                state, element = str(node.attrs["name"]), ELEMENT_OF[node.types[0].dtype.name]
                self.handles[state] = WrittenValue(self.writer.handle(self.writer.tensor(node.types[0].shape, element)))
                arguments[state] = self.handles[state]
        for node in self.graph.nodes:
            if node.op != "input":
                self._node(node)
        results = {port.name: self._result(port.value) for port in self.graph.outputs}
        self.writer.function(name, arguments, results, self.scope.operations)

    def _result(self, value: Value) -> WrittenValue:
        """Returns a copy of an output that is an input or a constant, and any other output itself."""
        typed = self.values[value]
        kind = typed.type
        return self.scope.add("primitive.reshape_v2", (typed, self.scope.axes(*kind.shape)), kind).value \
            if value.node.op in LEAVES else typed.value  # fmt: skip

    def _node(self, node: Node) -> None:
        self.scope.location = self._location(node.sources)
        if node in self.stored:
            self.values[node.values[0]] = write_stored(self.scope, self.stored[node])
        elif node.op in ("const", "param"):
            assert node.data is not None
            value = node.values[0]
            if value in self.sparse:
                self.values[value] = write_sparse(self.scope, node.data)
            elif value not in self.parts:
                self.values[value] = self.scope.const(node.data, value.dtype)
        elif node.op == "state":
            self.values[node.values[0]] = self._read(node)
        elif node.op == "write_state":
            self._write(node)
        else:
            operands = [self.values[v] for v in node.inputs if v is not None]
            self.values[node.values[0]] = FORMS[node.op](self.scope, node, operands)

    def _location(self, sources: tuple[str, ...]) -> int | None:
        """Returns the location of the first source of a node that is a line of a file."""
        if sources not in self.locations:
            match = next((m for source in sources if (m := _LINE.match(source))), None)
            if match is None:
                return None
            t = self.writer.tables
            file = t.attribute(30, *[number(t.string(text)) for text in (match[1], "", "")])
            source = t.attribute(31, number(file), number(int(match[2])), number(0), number(int(match[2])), number(0))
            self.locations[sources] = t.attribute(40, number(source), number(self.writer.unit), number(0), number(0))
        return self.locations[sources]

    # ---- states: tokens order their reads and writes ----

    def _token(self) -> WrittenValue:
        if self.token is None:
            self.token = WrittenValue(self.writer.token())
            self.scope.operations.append(OperationRecord("dataflow.create_token_v1", (), (self.token,)))
        return self.token

    def _read(self, node: Node) -> Typed:
        before = self._token()
        typed, after = self.scope.value(node.types[0]), WrittenValue(self.writer.token())
        handle = self.handles[str(node.attrs["name"])]
        self.scope.operations.append(OperationRecord("dataflow.read_handle_v1", (handle, before), (typed.value, after)))
        self.token = after
        return typed

    def _write(self, node: Node) -> None:
        state, update, position = node.inputs
        assert state is not None
        assert update is not None
        assert position is not None
        root = state
        while root.node.op == "write_state":
            assert root.node.inputs[0] is not None
            root = root.node.inputs[0]
        whole = self.values[update]
        if update.shape != state.shape:
            whole = self._updated(node, state, update, position)
        before, after = self._token(), WrittenValue(self.writer.token())
        handle = self.handles[str(root.node.attrs["name"])]
        self.scope.operations.append(
            OperationRecord("dataflow.write_handle_v1", (handle, whole.value, before), (after,))
        )
        self.token = after
        self.values[node.values[0]] = whole

    def _updated(self, node: Node, state: Value, update: Value, position: Value) -> Typed:
        s, axis, rank = self.scope, int(node.attrs["axis"]) % state.type.rank, state.type.rank
        place = s.add(
            "primitive.cast_v1", (s.reshape(self.values[position], (1,)),), constant(np.zeros(1, np.int32)).type
        )
        zero, size = s.axes(0), s.axes(update.shape[axis])
        start = [place if i == axis else zero for i in range(rank)]
        kind, one = constant(np.zeros(rank, np.int32)).type, place.type
        end_place = s.add("primitive.add_v1", (place, size), one)
        ends = [end_place if i == axis else s.axes(n) for i, n in enumerate(state.shape)]
        join = [s.add("primitive.concat_v1", (s.scalar(0), *parts), kind) for parts in (start, ends)]
        return s.add(
            "primitive.slice_update_v1",
            (self.values[state], *join, s.axes(*[1] * rank), self.values[update]), state.type,
        )  # fmt: skip
