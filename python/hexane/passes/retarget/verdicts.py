"""What retarget writes for one node, and the verdict on the node after it."""

from collections.abc import Callable, Container
from dataclasses import replace
from typing import Any

from hexane.graph import Node, Value
from hexane.ops import LEAVES, OPS
from hexane.passes.retarget.borders import is_border
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.traffic import said_of_traffic
from hexane.passes.retarget.writer import Note, Writer
from hexane.targets import Chip, Verdict
from hexane.targets.floors import floors, mil_ops, route_of
from hexane.targets.legality import mil_status
from hexane.targets.verdict import Kind
from hexane.validate.extents import fits
from hexane.validate.in_mil import in_mil
from hexane.validate.node import BY_NUMBERS, judge
from hexane.validate.small_constants import SMALL_CONSTANT
from hexane.validate.verdict_cache import kind_of

_known: dict[Any, Verdict] = {}
_bordered: dict[Any, str] = {}
MOST_KNOWN = 1 << 16


def becomes(node: Node, chip: Chip) -> Verdict:
    """Returns what becomes of a node on a chip: the verdict of `judge` if the chip runs it, else the verdict on what
    `retarget` writes for it.

    `verdict.runs` says whether the engine computes it. `verdict.form` is the rewrite, such as "tiled: width, 3 pieces".
    The form is "" if the node runs unchanged or if the engine's own compiler rewrites it.
    """
    verdict = judge(node, chip)
    return verdict if verdict.verdict == "native" else rewritten(node, chip, verdict)


def runs_on(chip: Chip) -> Callable[[Node], bool]:
    """Returns a function that is true for nodes that the engine computes, unchanged or rewritten."""
    return lambda node: becomes(node, chip).runs


def rewritten(node: Node, chip: Chip, verdict: Verdict) -> Verdict:
    """Returns the verdict on a node after `retarget`, from its own verdict, which is not native."""
    if node.op in BY_NUMBERS:
        return _outcome(node, chip, verdict)
    kind = kind_of(node, chip)
    if kind not in _known:
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[kind] = _outcome(node, chip, verdict)
    return _known[kind]


def _outcome(node: Node, chip: Chip, verdict: Verdict) -> Verdict:
    if is_border(node, chip):
        return verdict
    values, writer = attempt(node, chip)
    if values is None:
        return unwritten(node, verdict, writer)
    how = "; ".join(dict.fromkeys(note.how for note in told(writer)))
    kind: Kind = "oversize" if verdict.verdict == "oversize" else "decomposed"
    reason, dear = because(how, verdict), said_of_traffic(node, writer.made)
    return replace(verdict, verdict=kind, form=how, reason=f"{reason}; {dear}" if dear else reason, change="")


def unwritten(node: Node, verdict: Verdict, writer: Writer) -> Verdict:
    """Returns the verdict on a node without a form: decomposed only if the engine's own compiler decomposes it."""
    if verdict.verdict != "decomposed" or _left_to_the_compiler(node, verdict, writer.chip):
        return verdict
    why = "no form writes it in ops that the chip runs"
    if writer.blocked is not None:
        stuck = writer.blocked
        why = f"it needs {stuck.node.op} of {stuck.node.types[0]}, which does not run: {stuck.verdict.reason}"
    return replace(verdict, verdict="host", reason=why)


def takes(node: Node, chip: Chip) -> bool:
    """True if the engine gets the node unchanged after `retarget`, so that a pass may create it."""
    if node.op in LEAVES:
        return True
    verdict = judge(node, chip)
    if verdict.verdict == "decomposed":
        return _left_to_the_compiler(node, verdict, chip)
    return verdict.verdict == "native"


def _left_to_the_compiler(node: Node, verdict: Verdict, chip: Chip) -> bool:
    """True if a decomposed node is an op of MIL that the engine's own compiler decomposes. False if a validator reports
    a layer beyond the chip's limits, or if a tensor is too large."""
    types = tuple([None if v is None else v.type for v in node.inputs])
    computed = (v.type for v in node.inputs if v is not None and v.node.op != "const")
    large = not all(fits(t, chip) for t in (*computed, *node.types))
    by_itself = not large and not verdict.rule.startswith("validator ") and verdict.rule != SMALL_CONSTANT
    return by_itself and in_mil(node.op, types, node.attrs) == (node.op,) and not _in_netplists_only(node, chip)


def _in_netplists_only(node: Node, chip: Chip) -> bool:
    """True if the chip has the MIL op as a layer of netlists only: it refuses a MIL program with that op."""
    if route_of(chip) != "mil":
        return False
    known = [(name, floors().get(name)) for name in mil_ops(node.op) or ()]
    return any(f is not None and f.bridge and mil_status(name, chip).verdict != "native" for name, f in known)


def border_of(node: Node, chip: Chip) -> str:
    """Returns the limit of the chip that forces the host to run the node, or to cut, join or view tensors of its form.
    Returns "" if the host has nothing to do."""
    if is_border(node, chip):
        return judge(node, chip).reason
    kind = None if node.op in BY_NUMBERS else kind_of(node, chip)
    if kind is None or kind not in _bordered:
        values, writer = attempt(node, chip)
        result = judge(writer.outside[0], chip).reason if values is not None and writer.outside else ""
        if kind is None:
            return result
        if len(_bordered) >= MOST_KNOWN:
            _bordered.clear()
        _bordered[kind] = result
    return _bordered[kind]


def attempt(node: Node, chip: Chip, looks_through: bool = True) -> tuple[tuple[Value, ...] | None, Writer]:
    writer = Writer(chip, node.sources, FORMS, looks_through)
    values = None if is_border(node, chip) or OPS[node.op].host else writer.write(node)
    # A form of which the chip would run no op is not used: the host runs the original node.
    return (values if writer.made else None), writer


def operands_of_form(node: Node, chip: Chip, of_model: Container[Node]) -> set[Node]:
    """Returns the model's nodes that a node's replacement reads, or that the node reads if it has no replacement."""
    values, _ = attempt(node, chip)
    seen, ahead = set[Node](), [v.node for v in (node.inputs if values is None else values) if v is not None]
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead.extend(v.node for v in one.inputs if v is not None and one not in of_model)
    return {one for one in seen if one in of_model}


WRITTEN = "written as "


def because(how: str, verdict: Verdict) -> str:
    """Returns the replacement and the reason as one text, without repeated words."""
    known = verdict.reason.removeprefix(how).removeprefix("; ")  # a verdict may begin with the words of `how`
    if known.startswith(WRITTEN) and _lists_ops(how):  # two lists of ops: the chip's program has those of `how`
        known = known.partition("; ")[2]
    elif known == verdict.reason:
        return f"{how}: {known}"
    return f"{how}; {known}" if known else how


def _lists_ops(how: str) -> bool:
    """True if the words are "written as" and a list of ops, with or without a remark after a colon."""
    names = how.partition(": ")[0].removeprefix(WRITTEN)
    return how.startswith(WRITTEN) and all(name in OPS for name in names.split(", "))


def told(writer: Writer) -> list[Note]:
    """Returns the notes to report: the outermost one, and inner ones that tile or may give other numbers."""
    outermost, *inner = reversed(writer.notes)
    return [outermost, *[note for note in inner if note.hazard or note.how.startswith("tiled")]]
