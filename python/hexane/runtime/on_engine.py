"""Networks on a Neural Engine: its segments become programs that the device has loaded, and the host computes all other
layers."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from hexane import _core
from hexane.dtypes import dtype
from hexane.emit.mil import Mil, emit_mil
from hexane.emit.mil.ports import reshaped, with_port_axes
from hexane.emit.mil.write import WEIGHTS, MilPort
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, TensorType, Value, unique
from hexane.graph.alike import what_it_says
from hexane.mil.forms.form import PORT_AXES
from hexane.ops import OPS, apply
from hexane.ops.records.program import PROGRAM, Layout, layout_text, type_text
from hexane.program import Program
from hexane.program.work import multiply_adds
from hexane.runtime.kept_programs import compiled_program
from hexane.targets import Chip
from hexane.targets.dispatch import dispatch

MOST_SHARED = 1 << 20  # bytes; larger weights are not compared for sharing


@dataclass
class OnEngine:
    """Compiles segments for a device while a network is compiled. made: the programs, by index. Segments with equal
    text and weights share a program, unless their weights are large. In training, equal layers always share one,
    because their weights are inputs of the program."""

    device: _core.Device
    chip: Chip
    qos: int
    warm: bool = True  # True: programs in the system's cache are not compiled again
    made: list["_core.MadeProgram"] = field(default_factory=list)
    # Programs by text and weights (`shared`), and by the contents of a graph (`written`).
    shared: dict[tuple[str, bytes], _core.DeviceProgram] = field(default_factory=dict)
    written: dict[Hashable, tuple[Mil, _core.DeviceProgram]] = field(default_factory=dict)

    def __call__(self, piece: Graph) -> Graph:
        """graph (%x) .. return y=relu(%1)  ->  graph (%x) .. return y=ane.program(%x, param w)

        Params and states that the segment reads become inputs of its program, because a program's constants cannot
        change. A state that the segment writes becomes an output, which is stored after the program; `place` decides
        its memory.
        """
        open_graph, leaves = _with_open_leaves(_without_writes(piece))
        mil, program = self._written(open_graph)
        values = {str(v.node.attrs["name"]): v for v in piece.inputs} | leaves
        inputs = [(port, values[port.user_name]) for port in mil.inputs]
        by_user = {port.user_name: port for port in mil.outputs}
        outputs = [by_user[port.name] for port in piece.outputs]
        rows = {row["name"]: row for row in (*program.inputs, *program.outputs)}
        given = [_layout(port, rows[port.name]) for port, _ in inputs]
        written = [_layout(port, rows[port.name]) for port in outputs]
        most = max(layout.bytes for layout in written)  # outputs have equal, padded sizes: constraint 2 of docs/mil.md
        layouts = [*given, *(layout._replace(bytes=most) for layout in written)]
        narrow = {v: _input(port, v) for port, v in inputs if v.node.op == "input"}
        operands = [reshaped(narrow.get(v, v), port.shape) for port, v in inputs]
        attrs = {
            "index": len(self.made),
            "types": [type_text(TensorType(port.dtype, port.shape)) for port in outputs],
            "layouts": [layout_text(layout) for layout in layouts],
            "multiply_adds": sum(multiply_adds(node) for node in mil.graph.nodes),
            "moved": sum(TensorType(port.dtype, port.shape).bytes for port in (*mil.inputs, *outputs))
            + sum(node.types[0].bytes for node in mil.graph.nodes if node.op == "const"),
        }
        results = apply(OPS[PROGRAM], operands, attrs, _sources(piece))
        self.made.append((program, [port.name for port, _ in inputs], [port.name for port in outputs], self.qos))
        taken = tuple(narrow.get(v, v) for v in piece.inputs)
        ports = tuple(
            Port(port.name, _written(reshaped(value, port.value.shape), port.value.node))
            for port, value in zip(piece.outputs, results, strict=True)
        )
        return Graph(taken, ports, name=piece.name).decided(*mil.graph.decisions)

    def _written(self, graph: Graph) -> tuple[Mil, _core.DeviceProgram]:
        """Returns the graph in MIL, and its program. A graph reuses the program of an equal earlier graph, unless the
        earlier graph made decisions, which name its nodes."""
        said = what_it_says(graph)
        if not graph.decisions and (known := self.written.get(said)) is not None:
            return known
        mil = emit_mil(with_port_axes(graph, PORT_AXES), self.chip, labels=False)
        data = mil.weights
        program = self._program(mil.text, data)
        if len(data) <= MOST_SHARED and not mil.graph.decisions:
            self.written[said] = mil, program
        return mil, program

    def _program(self, text: str, data: bytes) -> _core.DeviceProgram:
        """Returns the loaded program of the text and its weights."""
        is_small = len(data) <= MOST_SHARED
        if is_small and (known := self.shared.get((text, data))) is not None:
            return known
        weights = {WEIGHTS: data} if data else {}
        result = compiled_program(self.device, self.chip.name, text, weights, self.qos, warm=self.warm)
        if is_small:
            self.shared[text, data] = result
        return result


def in_order(programs: Sequence["_core.MadeProgram"], program: Program) -> list["_core.MadeProgram"]:
    """Returns the programs of the steps on a device, in the order of the steps."""
    return [programs[int(step.node.attrs["index"])] for step in program.steps if step.kernel == "program"]


def _without_writes(piece: Graph) -> Graph:
    """write_state(%s, %u, 0)  ->  %u"""

    def update(node: Node, inputs: tuple[Value | None, ...]) -> list[Value] | None:
        return [v for v in inputs[1:2] if v is not None] if node.op == "write_state" else None

    return piece.rewrite(update)


def _written(value: Value, node: Node) -> Value:
    """Returns a program's result, stored in a state if the segment's node writes one."""
    if node.op != "write_state":
        return value
    return apply(OPS["write_state"], [node.inputs[0], value, node.inputs[2]], node.attrs, node.sources)[0]


def _with_open_leaves(piece: Graph) -> tuple[Graph, dict[str, Value]]:
    """Returns the graph with inputs in place of params and states, and the leaf that each input replaces."""
    leaves = {f"{n.op} {n.attrs['name']}": n.values[0] for n in piece.nodes if n.op in ("param", "state")}
    inputs = {leaf: unique("input", name, leaf.type, sources=leaf.node.sources) for name, leaf in leaves.items()}
    graph = piece.rewrite(lambda *_: None, became=dict(inputs))
    return Graph((*graph.inputs, *inputs.values()), graph.outputs, name=graph.name), leaves


def _input(port: MilPort, value: Value) -> Value:
    """Returns the segment's input in the dtype that the program reads."""
    kind = TensorType(port.dtype, value.shape)
    return (
        value
        if value.type == kind
        else unique("input", str(value.node.attrs["name"]), kind, sources=value.node.sources)
    )


def _layout(port: MilPort, row: "_core.DevicePort") -> Layout:
    """Returns the device's layout of a tensor. The device's port has four axes; the tensor has the last ones of
    them."""
    if dtype(row["dtype"]) is not port.dtype or row["shape"] != (1,) * (4 - len(port.shape)) + port.shape:
        got = f"{row['dtype']}{list(row['shape'])}"
        raise Error(f"[device] {port.name}: got {got} from the device, need {port.dtype}{list(port.shape)}")
    return Layout(row["strides"][4 - len(port.shape) :], max(row["bytes"], dispatch().least_surface_bytes))


def _sources(piece: Graph) -> tuple[str, ...]:
    """Returns the sources of a segment's first node."""
    return next((node.sources for node in piece.nodes if node.sources and node.inputs), ())
