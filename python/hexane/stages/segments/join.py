"""Divides a network into one graph per segment, and joins the lowered graphs again."""

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from hexane.dtypes import FP16, DType
from hexane.graph import Graph, Node, Port, TensorType, Value, unique
from hexane.lowering.halves import half
from hexane.ops import LEAVES, OPS, apply
from hexane.program import Segment
from hexane.stages.segments.crossings import is_leaf


class SegmentParts:
    """The graphs of the segments, in order. If another segment writes a state, the state after this write is an input,
    too.

    Params and states that the engine reads or writes are kept in fp16, and cast for readers in another dtype. halved:
    the other params and states are kept in fp16, too. One exception is a param that an optimiser updates: it keeps its
    dtype, because fp16 would lose small updates. The host casts it and passes it to the engine like any result.
    """

    def __init__(self, graph: Graph, segments: Sequence[Segment], halved: bool = False) -> None:
        self.graph, self.segments = graph, segments
        self._home = {id(node): segment.index for segment in segments for node in segment.nodes}
        self._trained = {state.node for node in graph.nodes for state in _updated(node)}
        narrow = [segment for segment in segments if halved or segment.device == "ane"]
        self._narrow = dict(_narrowed(narrow, but=self._trained))
        self._read_elsewhere = {
            v
            for node in graph.nodes
            for v in node.inputs
            if v is not None and self._home.get(id(node)) != self._home.get(id(v.node))
        } | set(graph.roots)

    def constants(self) -> Graph | None:
        """Returns a graph of the outputs that depend on constants only, and so belong to no segment, or None."""
        values = dict.fromkeys(v for v in self.graph.roots if v.node.op not in LEAVES and is_leaf(v.node))
        ports = tuple(Port(f"%{i}", v) for i, v in enumerate(values))
        return Graph((), ports, name=f"{self.graph.name}, constants") if ports else None

    def graphs(self) -> Iterator[Graph]:
        """Yields the graph of each segment."""
        for segment in self.segments:
            yield self._graph(segment)

    def trained(self) -> list[Value]:
        """Returns the states that an optimiser updates."""
        return [node.values[0] for node in self._trained]

    def kept(self, leaf: Value) -> Value:
        """Returns a param or state in the dtype in which the program keeps it."""
        return self._narrow.get(leaf.node, leaf)

    def results(self, segment: Segment) -> list[Value]:
        """Returns the outputs of a segment's graph, in order, as values of the whole graph."""
        return [v for node in segment.nodes for v in node.values if v in self._read_elsewhere]

    def operands(self, segment: Segment) -> list[Value]:
        """Returns the inputs of a segment's graph, in order, as values of the whole graph."""
        values = dict.fromkeys(v for node in segment.nodes for v in node.inputs if v is not None)
        runs_on_engine = segment.device == "ane"
        return [
            v
            for v in values
            if v.node.op == "input"
            or self._home.get(id(v.node), segment.index) != segment.index
            or (runs_on_engine and v.node in self._trained)
        ]

    def _graph(self, segment: Segment) -> Graph:
        memory: dict[Value, Value] = {}  # Params and states in the dtype in which they are kept.
        table: dict[Value, Value] = {}  # All values in the model's dtypes.
        inputs = []
        for i, value in enumerate(self.operands(segment)):
            owner = None if value.node in self._trained else _state_of(value)
            kind = value.type if owner is None else TensorType(self.kept(owner.values[0]).dtype, value.shape)
            port = unique("input", f"%{i}", kind, sources=value.node.sources)
            inputs.append(port)
            (table if owner is None else memory)[value] = port

        def kept(value: Value) -> Value:
            return memory[value] if value in memory else self.kept(value)

        def operand(value: Value | None) -> Value | None:
            if value is None or value in table or _state_of(value) is None:
                return value if value is None else table.get(value, value)
            return cast(kept(value), value.dtype)

        for node in segment.nodes:
            operands = [operand(v) for v in node.inputs]
            if node.op == "write_state":
                state, update = kept(node.inputs[0]), operands[1]  # type: ignore[arg-type]
                assert update is not None
                operands[:2] = [state, cast(update, state.dtype)]
                memory[node.values[0]] = apply(OPS["write_state"], operands, node.attrs, node.sources)[0]
                continue
            table.update(zip(node.values, node.with_inputs(tuple(operands)).values, strict=True))
        results = [memory[v] if v in memory else table[v] for v in self.results(segment)]
        outputs = tuple(Port(f"%{i}", v) for i, v in enumerate(results))
        here = {id(node) for node in segment.nodes}
        taps = tuple(
            p._replace(value=table[p.value]) for p in self.graph.taps if id(p.value.node) in here and p.value in table
        )
        return Graph(tuple(inputs), outputs, name=f"{self.graph.name}, segment {segment.index}", taps=taps)


def join(
    parts: SegmentParts, lowered: Sequence[Graph], constants: Graph | None, narrow: bool
) -> tuple[Graph, list[list[Value]]]:
    """Returns the graph joined from the lowered segments, and the roots of each segment: the values computed by its
    end.

    Casts are added where a segment reads a value in another dtype, and at the ports of the model. narrow: these ports
    are fp16.
    """
    graph = parts.graph
    inputs = {v: _port(v) if narrow else v for v in graph.inputs}
    joined: dict[Value, Value] = {**inputs, **{v: v for v in parts.trained()}}
    if constants is not None:
        folded = parts.constants()
        assert folded is not None
        joined |= zip((p.value for p in folded.outputs), (p.value for p in constants.outputs), strict=True)
    roots: list[list[Value]] = []
    outputs: dict[str, Value] = {}
    taps: list[Port] = []
    for segment, piece in zip(parts.segments, lowered, strict=True):
        given = [cast(joined[v], port.dtype) for v, port in zip(parts.operands(segment), piece.inputs, strict=True)]
        table = dict(zip(piece.inputs, given, strict=True))
        for node in piece.nodes:
            if node.op not in LEAVES:
                copy = node.with_inputs(tuple([None if v is None else table.get(v, v) for v in node.inputs]))
                if copy is not node:
                    table.update(zip(node.values, copy.values, strict=True))
        results = [table.get(port.value, port.value) for port in piece.outputs]
        taps += _tapped(piece, table)
        joined.update(zip(parts.results(segment), results, strict=True))
        ended = {
            p.name: _cast_port(p, joined[p.value], narrow)
            for p in graph.outputs
            if p.value in joined and p.name not in outputs
        }
        outputs |= ended
        roots.append([*results, *ended.values()])
    ports = tuple(
        p._replace(value=outputs.get(p.name) or _cast_port(p, joined.get(p.value, parts.kept(p.value)), narrow))
        for p in graph.outputs
    )
    updates = tuple(joined[v] for v in graph.updates)
    graph = graph.decided(*(decision for piece in lowered for decision in piece.decisions))
    return replace(graph, inputs=tuple(inputs.values()), outputs=ports, updates=updates, taps=tuple(taps)), roots


def _tapped(piece: Graph, table: Mapping[Value, Value]) -> tuple[Port, ...]:
    """Returns the taps of a lowered segment in the joined graph."""
    return piece.tapped(lambda value: table.get(value, value))


def cast(value: Value, kind: DType) -> Value:
    return value if value.dtype is kind else apply(OPS["cast"], [value], {"dtype": kind}, value.node.sources)[0]


def _port(value: Value) -> Value:
    """Returns an input of the model in fp16, or the input itself if it is not a wider float."""
    if value.dtype.kind != "float" or value.dtype is FP16:
        return value
    return unique("input", str(value.node.attrs["name"]), TensorType(FP16, value.shape), sources=value.node.sources)


def _cast_port(port: Port, value: Value, narrow: bool) -> Value:
    kind = port.value.dtype
    return cast(value, FP16 if narrow and kind.kind == "float" else kind)


def _state_of(value: Value) -> Node | None:
    """Returns the param or state in whose memory a value lies, or None."""
    while value.node.op == "write_state":
        assert value.node.inputs[0] is not None
        value = value.node.inputs[0]
    return value.node if value.node.op in ("param", "state") else None


def _updated(node: Node) -> list[Value]:
    """Returns the states that an optimiser's node updates, which need more digits than fp16 has."""
    op = OPS.get(node.op)
    if op is None or not op.updates or not op.host:
        return []
    values = [node.inputs[op.inputs.index(name)] for name in op.updates]
    return [v for v in values if v is not None and v.node.op == "state"]


def _narrowed(segments: Sequence[Segment], but: Set[Node]) -> Iterator[tuple[Node, Value]]:
    """Yields each param and state that the segments read or write and that is wider than fp16, with its fp16 form. but:
    leaves to skip."""
    read = [v for s in segments for node in s.nodes for v in node.inputs if v is not None]
    for leaf in dict.fromkeys(_state_of(v) for v in read):
        if leaf is None or leaf in but:
            continue
        if leaf.types[0].dtype.kind == "float" and leaf.types[0].dtype is not FP16:
            data = None if leaf.data is None else half(leaf.data)
            kind = TensorType(FP16, leaf.types[0].shape)
            yield leaf, unique(leaf.op, str(leaf.attrs["name"]), kind, data, leaf.sources)
