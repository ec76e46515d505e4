"""Decides whether a MIL program can hold a node, by its ops, its operands and results, and the refusals of the
compiler."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from hexane.errors import Error
from hexane.graph import Node, TensorType, Value, unique
from hexane.lowering.mil_ops import mil_nodes
from hexane.mil.forms.form import PORT_AXES, finds_indices
from hexane.ops import LEAVES
from hexane.ops.fold import fold_node
from hexane.ops.recording import IgnoredError
from hexane.targets.mil import mil_limits
from hexane.validate.verdict_cache import BY_OPERAND

COMPUTED = ("fp16", "fp32", "fp64", "bf16", "bool", "int8", "uint8", "int16", "uint16", "int32")
MOST_KNOWN = 1 << 16
WRITES_A_PART = "a program of the engine computes a whole state anew, but this op writes a part of the state in place"
NOT_COMPUTED = "the value that it writes is not computed, so there is nothing for the engine to do"

_known: dict[Any, str | list[Node]] = {}


def mil_program(node: Node, constant: Sequence[bool], kind: Any) -> str | list[Node]:
    """The MIL ops of a node, or the reason why no program can hold it. constant: which operands are computed when the
    program is compiled. kind: the key under which the answer is cached."""
    result = _known.get(kind)
    if result is None:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        result = _known[kind] = _mil_program(node, constant)
    return result


def _mil_program(node: Node, constant: Sequence[bool]) -> str | list[Node]:
    if node.op == "write_state":
        return _writes_state(node, constant) or []
    if reason := next(_no_ports(node, constant), ""):
        return reason
    try:
        nodes = mil_nodes(_with_numbers(node))
        for inner in nodes:
            check_node(inner)
    except IgnoredError:
        raise
    except Error as error:
        return f"MIL cannot express it: {str(error).removeprefix('[emit] ').removeprefix(f'{node.where}: ')}"
    return nodes


def _no_ports(node: Node, constant: Sequence[bool]) -> Iterator[str]:
    """The reasons why no port can hold an integer operand or result of the node."""
    for i, value in enumerate(node.inputs):
        if value is not None and not constant[i] and not is_port(value.type):
            yield no_port(value.type, "comes from outside")
    for value in node.values:
        if not (is_port(value.type) or (value == node.values[-1] and finds_indices(node))):
            yield no_port(value.type, "goes outside")


def no_port(kind: TensorType, way: str) -> str:
    """The reason why a node with an operand or result of this type cannot be in a program of the engine."""
    does = "receive" if way == "comes from outside" else "give"
    return f"the engine cannot {does} {kind.dtype}: {kind} {way} the engine"


def is_port(kind: TensorType) -> bool:
    """True if a port can hold a tensor of this type. Floats pass as fp16 and bools as the numbers 0 and 1, with any
    rank. Integers pass as they are, but need the rank of a port, since the engine cannot reshape them to four axes."""
    if kind.dtype.kind in ("float", "bool"):
        return True
    return kind.dtype.name in mil_limits().ports.fact.value and 1 <= kind.rank <= PORT_AXES


def _writes_state(node: Node, constant: Sequence[bool]) -> str:
    """The reason why a program cannot write the state, or "". A program writes its outputs as a whole, and the next
    call reads them in place; this works only if no other node writes the state."""
    state, update, _ = node.inputs
    assert state is not None
    assert update is not None
    whole = update.shape == state.shape and constant[2] and state.dtype.kind == "float"
    if not whole or state.node.op != "state":
        return WRITES_A_PART
    return NOT_COMPUTED if update.node.op in LEAVES or constant[1] else ""


def _with_numbers(node: Node) -> Node:
    """The node with constants for operands whose numbers decide the MIL form, and with params replaced by program
    inputs."""
    inputs = [_as_input(v) for v in node.inputs]
    for i in BY_OPERAND.get(node.op, ()):
        inputs[i] = _folded(inputs[i])
    return node if inputs == list(node.inputs) else node.with_inputs(tuple(inputs))


def _as_input(value: Value | None) -> Value | None:
    if value is None or value.node.op != "param":
        return value
    return unique("input", str(value.node.attrs["name"]), value.type, sources=value.node.sources)


def _folded(value: Value | None) -> Value | None:
    if value is None or value.node.op in LEAVES:
        return value
    node = value.node.with_inputs(tuple([_folded(v) for v in value.node.inputs]))
    constants = fold_node(node)
    return value if constants is None else constants[value.output]


def check_node(node: Node) -> None:
    """Raises Error for a MIL op that the compiler refuses without a reason. The error has the number of the constraint
    in docs/mil.md."""
    for kind in node.types:
        if kind.dtype.name not in COMPUTED:
            refuse(node.where, f"got {kind}, need one of {', '.join(COMPUTED)} in a program of the engine", 24)
        if 0 in kind.shape:
            refuse(node.where, f"got {kind}, need elements", 22)
    if (check := _CHECKS.get(node.op)) is not None:
        check(node)


def _conv(node: Node) -> None:
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    limit = mil_limits().conv_inputs
    if x.shape[1] >= limit.fact.value:
        need = f"less than {limit.fact.value}: write it as a matmul"
        refuse(node.where, f"got {x.shape[1]} input channels, need {need}", limit.constraint)
    if not _stored(weight) and x.shape[0] != 1:
        refuse(node.where, f"got a weight that is computed and a batch of {x.shape[0]}, need a batch of 1", 32)


def _stored(weight: Value) -> bool:
    inputs = [v for v in weight.node.inputs if v is not None]
    return weight.node.op == "const" or (bool(inputs) and all(map(_stored, inputs)))


def _mul(node: Node) -> None:
    """Raises Error for a reduction times 0, for which the compiler's code generation fails."""
    for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
        assert value is not None
        assert other is not None
        zero = value.node.data is not None and value.type.size and not value.node.data.any()
        if zero and other.node.op.startswith("reduce_"):
            refuse(node.where, "got a reduction times 0, need x - x, or another constant", 27)


def _layer_norm(node: Node) -> None:
    """Wider layer norms are split into other ops before, see `mil_form`."""
    x = node.inputs[0]
    assert x is not None
    assert prod(x.shape[a] for a in node.attrs["axes"]) < mil_limits().norm_elements.fact.value


_CHECKS: dict[str, Callable[[Node], None]] = {"conv": _conv, "mul": _mul, "layer_norm": _layer_norm}


def refuse(where: str, message: str, constraint: int) -> None:
    raise Error(f"[emit] {where}: {message} (constraint {constraint})")
