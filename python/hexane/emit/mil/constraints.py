"""What the engine's compiler refuses without saying why: checked before anything is written, each by its number in docs/mil.md."""

from math import prod

from hexane.errors import Error
from hexane.graph import Graph, Node
from hexane.ops import LEAVES
from hexane.targets import Chip
from hexane.targets.mil import mil_limits
from hexane.validate.node import is_constant, judge


def check_constraints(graph: Graph, chip: Chip) -> None:
    """Raises Error naming the first node or port of a graph in MIL's form that the compiler would not take."""
    if not graph.inputs:
        raise Error("[emit] got a program without inputs, need outputs that are computed from some (constraint 14)")
    ports = mil_limits().ports
    for name, value in (
        *zip(graph.input_names(), graph.inputs, strict=True),
        *((p.name, p.value) for p in graph.outputs),
    ):
        if value.dtype.name not in ports.fact.value:
            need = ", ".join(ports.fact.value)
            _refuse(f"port {name!r}", f"got {value.type}, need one of {need}", ports.constraint)
        if not 1 <= len(value.shape) <= chip.extents.rank:
            _refuse(f"port {name!r}", f"got {value.type}, need 1 to {chip.extents.rank} axes", 23)
        if 0 in value.shape:
            _refuse(f"port {name!r}", f"got {value.type}, need elements", 22)
    size = sum(node.types[0].bytes for node in graph.nodes if node.op == "const")
    if size >= mil_limits().program_bytes.fact.value:
        limit = mil_limits().program_bytes
        _refuse(graph.name, f"got {size} bytes of weights, need less than {limit.fact.value}", limit.constraint)
    check_nodes(graph, chip)


def check_nodes(graph: Graph, chip: Chip) -> None:
    """What `check_constraints` says of the nodes alone."""
    for node in graph.nodes:
        if node.op not in LEAVES:
            _check_node(node, chip)


_COMPUTED = ("fp16", "bool", "int8", "uint8", "int16", "uint16", "int32")


def _check_node(node: Node, chip: Chip) -> None:
    for kind in node.types:
        if kind.dtype.name not in _COMPUTED:
            _refuse(node.where, f"got {kind}, need one of {', '.join(_COMPUTED)} in a program of the engine", 24)
        if 0 in kind.shape:
            _refuse(node.where, f"got {kind}, need elements", 22)
    verdict = judge(node, chip)
    if verdict.verdict not in ("native", "decomposed"):
        _refuse(node.where, f"{chip.name} does not run it: {verdict.reason} ({verdict.source})", _number(verdict.rule))
    if (check := _CHECKS.get(node.op)) is not None:
        check(node)


def _number(rule: str) -> int:
    """The constraint that a rule of the validators belongs to."""
    if rule.startswith("dtypes"):
        return 24
    if rule == "extents.rank" or "kernel" in rule:
        return 23
    return 22 if rule.startswith("extents.") else 31


def _conv(node: Node) -> None:
    x, weight = node.inputs[:2]
    assert x is not None
    assert weight is not None
    limit = mil_limits().conv_inputs
    if x.shape[1] >= limit.fact.value:
        need = f"less than {limit.fact.value}: write it as a matmul"
        _refuse(node.where, f"got {x.shape[1]} input channels, need {need}", limit.constraint)
    if not is_constant(weight.node) and x.shape[0] != 1:
        _refuse(node.where, f"got a weight that is computed and a batch of {x.shape[0]}, need a batch of 1", 32)


def _mul(node: Node) -> None:
    """What fails is the code generation of a reduction times 0."""
    for value, other in zip(node.inputs, reversed(node.inputs), strict=True):
        assert value is not None
        assert other is not None
        zero = value.node.data is not None and value.type.size and not value.node.data.any()
        if zero and other.node.op.startswith("reduce_"):
            _refuse(node.where, "got a reduction times 0, need x - x, or another constant", 27)


def _layer_norm(node: Node) -> None:
    """Wider ones are written in parts, see `form`."""
    x = node.inputs[0]
    assert x is not None
    assert prod(x.shape[a] for a in node.attrs["axes"]) < mil_limits().norm_elements.fact.value


_CHECKS = {"conv": _conv, "mul": _mul, "layer_norm": _layer_norm}


def _refuse(where: str, message: str, constraint: int) -> None:
    raise Error(f"[emit] {where}: {message} (constraint {constraint})")
