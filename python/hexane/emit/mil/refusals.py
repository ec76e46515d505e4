"""What programs in MIL cannot have though the chip runs it, found node by node before a network is cut into pieces."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hexane.dtypes import BOOL
from hexane.emit.mil.constraints import check_nodes
from hexane.emit.mil.form import mil_form
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, TensorType, Value, make_node, unique
from hexane.ops import LEAVES
from hexane.stages.devices import no_port
from hexane.targets import Chip
from hexane.targets.mil import mil_limits
from hexane.validate import is_constant

WRITES_STATE = "a program of the engine computes all of a state anew, and this writes a part of it in place"
COMPUTED_BEFORE = "what it writes is not computed, so there is nothing for the engine to do"
PORT_AXES = 4
SMALL = 1024  # elements of a constant whose values may decide how a node is written


class InFiles:
    """Programs in files, of whose form nothing else is known: params are constants of theirs."""

    def refused(self, graph: Graph, nodes: Sequence[Node]) -> Mapping[int, str]:
        return {}

    def is_port(self, value: Value) -> bool:
        return value.node.op == "param" or _is_port(value.type)


def _is_port(kind: TensorType) -> bool:
    """Floats pass as fp16 and truths as the numbers 0 and 1, of any rank. Integers pass as they are: the engine cannot reshape them
    to the four axes that a port has."""
    if kind.dtype.kind in ("float", "bool"):
        return True
    return kind.dtype.name in mil_limits().ports.fact.value and 1 <= kind.rank <= PORT_AXES


def _write_refusal(node: Node) -> str:
    """A program writes its outputs whole. The next call reads them where they are, if nothing else has written the state."""
    state, update, position = node.inputs
    assert state is not None
    assert update is not None
    assert position is not None
    whole = update.shape == state.shape and is_constant(position.node) and state.dtype.kind == "float"
    if not whole or state.node.op != "state":
        return WRITES_STATE
    return COMPUTED_BEFORE if update.node.op in LEAVES or is_constant(update.node) else ""


@dataclass(frozen=True, slots=True)
class MilPrograms:
    """Programs in MIL. baked: params are constants of theirs, as they are in files; else inputs."""

    chip: Chip
    baked: bool = False
    _known: dict[Any, str] = field(default_factory=dict, init=False, repr=False)  # by what a refusal depends on

    def refused(self, graph: Graph, nodes: Sequence[Node]) -> Mapping[int, str]:
        """Each node is written as a program of its own: the passes that join it with others make forms of fewer ops, not of other
        dtypes."""
        users = graph.users()
        roots = set(graph.roots)
        found = {}
        for node in nodes:
            read = tuple(i for i, v in enumerate(node.values) if v in roots or users.get(v))
            leaves = [v for v in node.inputs if v is not None and v.node.op in ("input", "param", "state")]
            outside = next((no_port(v, "from outside") for v in leaves if not self.is_port(v)), "")
            if reason := outside or self._reason(node, read):
                found[id(node)] = reason
        return found

    def is_port(self, value: Value) -> bool:
        if value.node.op == "param" and self.baked:
            return True
        lasts = value.node.op in ("param", "state", "write_state")
        return _is_port(value.type) and not (lasts and value.dtype is BOOL)  # memory is read as it is kept

    def _reason(self, node: Node, read: tuple[int, ...]) -> str:
        if node.op == "write_state":
            return _write_refusal(node)
        operands = tuple(None if v is None else self._looks(v) for v in node.inputs)
        key = node.op, operands, node.types, tuple(node.attrs.values()), read
        if key not in self._known:
            self._known[key] = self._refusal(node, read)
        return self._known[key]

    def _looks(self, value: Value) -> Any:
        """What of an operand a refusal depends on."""
        data = value.node.data if value.node.op == "const" else None
        return value if data is not None and data.size <= SMALL else (value.type, is_constant(value.node))

    def _refusal(self, node: Node, read: tuple[int, ...]) -> str:
        inputs: dict[Value, Value] = {}
        operands: list[Value | None] = []
        for value in node.inputs:
            if value is None or is_constant(value.node) or (self.baked and value.node.op == "param"):
                operands.append(value)
                continue
            if value not in inputs:
                inputs[value] = unique("input", f"x{len(inputs)}", value.type)
            operands.append(inputs[value])
        alone = make_node(node.op, operands, node.attrs, node.types, node.sources)
        ports = tuple(Port(f"y{i}", alone.values[i]) for i in read)
        try:
            check_nodes(mil_form(Graph(tuple(inputs.values()), ports, name="node"), self.chip), self.chip)
        except Error as error:
            return f"MIL cannot say it: {str(error).removeprefix('[emit] ').removeprefix(f'{node.where}: ')}"
        return ""
