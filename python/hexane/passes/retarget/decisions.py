"""The decisions that retarget records: rewrites of a node, hazards, and nodes that it keeps for the host."""

from collections.abc import Iterator

from hexane.graph import Node
from hexane.graph.decisions import Decision
from hexane.passes.retarget.borders import BORDER, is_border
from hexane.passes.retarget.verdicts import because, told, unwritten
from hexane.passes.retarget.writer import Writer
from hexane.targets import Chip, Verdict
from hexane.validate.constants import FOLDED, is_constant
from hexane.validate.node import judge


def of_notes(node: Node, writer: Writer) -> Iterator[Decision]:
    """Yields one decision for each reported rewrite of a node, and one for each of its hazards."""
    for note in told(writer):
        v = note.verdict
        inner = "" if note.node is node else f"{note.node.op} in it: "
        tiled = note.how.startswith("tiled")
        how = note.how.removeprefix("tiled: ")
        yield _decision(node, "tiled" if tiled else "decomposed", f"{inner}{because(how, v)}", v)
        if note.hazard:
            yield _decision(node, "hazard", note.hazard, v)
    for border in writer.outside:
        yield _outside(border, writer.chip)


def of_node(node: Node, chip: Chip, writer: Writer) -> Iterator[Decision]:
    """Yields why a node is kept although the chip does not run it."""
    verdict = judge(node, chip)
    if is_border(node, chip):
        yield _outside(node, chip)
        return
    verdict = unwritten(node, verdict, writer)
    if verdict.verdict == "decomposed":
        yield _decision(node, "left", f"to the engine's compiler: {verdict.reason}", verdict)
        return
    yield _decision(node, "kept", f"no form of it runs on the chip: {verdict.reason}", verdict)


def of_wide(node: Node, chip: Chip, reason: str) -> Iterator[Decision]:
    """Yields why a node is kept for the host, in whose dtype the numbers do not overflow, instead of being
    rewritten."""
    verdict = FOLDED if is_constant(node) else judge(node, chip)
    if is_border(node, chip):
        yield _outside(node, chip)
    elif verdict.verdict != "native":
        yield _decision(node, "kept", f"{reason}; {verdict.reason}", verdict)


def _outside(border: Node, chip: Chip) -> Decision:
    verdict = judge(border, chip)
    return _decision(border, "outside", f"{BORDER}: {verdict.reason}", verdict)


def _decision(node: Node, verdict: str, reason: str, of: Verdict) -> Decision:
    return Decision("retarget", node.where, verdict, reason, f"{of.source}, {of.status}")
