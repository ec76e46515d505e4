"""Checks, before anything is written, the constraints of docs/mil.md, which the engine's compiler enforces without
explanation."""

from hexane.errors import Error
from hexane.graph import Graph
from hexane.ops import LEAVES
from hexane.targets import Chip
from hexane.targets.mil import mil_limits
from hexane.validate.mil_program import check_node, refuse
from hexane.validate.node import judge_inside


def check_constraints(graph: Graph, chip: Chip) -> None:
    """Raises Error for the first node or port that the compiler would refuse in a graph in MIL's form."""
    if not graph.inputs:
        raise Error("[emit] got a program without inputs, need outputs that are computed from some (constraint 14)")
    ports = mil_limits().ports
    for name, value in (
        *zip(graph.input_names(), graph.inputs, strict=True),
        *((p.name, p.value) for p in graph.outputs),
    ):
        if value.dtype.name not in ports.fact.value:
            need = ", ".join(ports.fact.value)
            refuse(f"port {name!r}", f"got {value.type}, need one of {need}", ports.constraint)
        if not 1 <= len(value.shape) <= chip.extents.rank:
            refuse(f"port {name!r}", f"got {value.type}, need 1 to {chip.extents.rank} axes", 23)
        if 0 in value.shape:
            refuse(f"port {name!r}", f"got {value.type}, need elements", 22)
    size = sum(node.types[0].bytes for node in graph.nodes if node.op == "const")
    if size >= mil_limits().program_bytes.fact.value:
        limit = mil_limits().program_bytes
        refuse(graph.name, f"got {size} bytes of weights, need less than {limit.fact.value}", limit.constraint)
    check_nodes(graph, chip)


def check_nodes(graph: Graph, chip: Chip) -> None:
    """Raises the errors of `check_constraints` that are about nodes."""
    for node in graph.nodes:
        if node.op in LEAVES:
            continue
        check_node(node)
        verdict = judge_inside(node, chip)
        if verdict.verdict not in ("native", "decomposed"):
            said = f"{chip.label} does not run it: {verdict.reason} ({verdict.source})"
            refuse(node.where, said, _number(verdict.rule))


def _number(rule: str) -> int:
    """Returns the number of the constraint in docs/mil.md for a validator's rule."""
    if rule.startswith("dtypes"):
        return 24
    if rule == "extents.rank" or "kernel" in rule:
        return 23
    return 22 if rule.startswith("extents.") else 31
