"""Rewrites a network so that a chip runs it, and records what happens to each op."""

from collections.abc import Callable, Container, Iterator
from dataclasses import replace
from typing import Any

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.lowering.row_updates import SCATTERS
from hexane.ops import LEAVES, OPS
from hexane.ops.checkpoints import CHECKPOINTED
from hexane.passes.retarget.borders import BORDER, is_border
from hexane.passes.retarget.caches import choose_rows, read_caches
from hexane.passes.retarget.clamp_masks import clamp_masks
from hexane.passes.retarget.forms import FORMS
from hexane.passes.retarget.marked import marked_programs
from hexane.passes.retarget.traffic import said_of_traffic
from hexane.passes.retarget.views import join_views
from hexane.passes.retarget.writer import Note, Writer
from hexane.targets import Chip, Target, Verdict
from hexane.targets.legality import Kind, floors, mil_ops, mil_status, route_of
from hexane.validate.constants import FOLDED, is_constant
from hexane.validate.extents import fits
from hexane.validate.host_numbers import kept_whole
from hexane.validate.in_mil import in_mil
from hexane.validate.node import BY_NUMBERS, judge
from hexane.validate.small_constants import SMALL_CONSTANT
from hexane.validate.verdict_cache import kind_of

ATTENTION = "scaled_dot_product_attention"
CUT = "fused, the engine runs an attention as a segment of its own"


def retarget(graph: Graph, target: Target) -> Graph:
    """relu(%x : fp32[1, 3, 8, 20000])  ->  concat(relu(%x[.., :10000]), relu(%x[.., 10000:])) for a chip whose rows end at 16384

    Replaces every op that the chip does not run, if a form writes it in ops that the chip runs (retarget/forms.py).
    No result changes. A node without a form is kept for the host. Slices and concatenations of tensors that are
    too large for the chip are kept too: the host runs them. Each replacement and each kept node is a Decision, and so
    is each place where the chip may give other numbers. A fused attention among other ops becomes products and a
    softmax, because it would split the network into three programs. Before ops are replaced, masks far below fp16's
    range are clamped, and reads of caches are moved before the writes (`read_caches`). Graphs for targets other than
    chips stay unchanged."""  # noqa: E501
    if not isinstance(target, Chip):
        return graph
    if not graph.ops.isdisjoint(("write_state", "gather", *SCATTERS)):
        graph = choose_rows(read_caches(graph, target, runs_on(target)), runs_on(target))
    result = _written(join_views(clamp_masks(graph), target), target)
    while (joined := join_views(result, target)) is not result:  # forms add views that may join, too
        result = _written(joined, target)
    return result


def _written(graph: Graph, chip: Chip) -> Graph:
    decisions = list[Decision]()
    wide = kept_whole(graph.nodes, graph.use_counts())
    fused = _cutting(graph)
    has_programs = bool(marked_programs(graph).names)

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if id(node) in wide:  # an intermediate value of the node's form might overflow fp16
            decisions.extend(_of_wide(node, chip, wide[id(node)]))
            return None
        if node.op == CHECKPOINTED and inputs[0] is not None and is_constant(inputs[0].node):
            return (inputs[0],)  # if the checkpoint were kept, a program might compute only a constant
        cuts = id(node) in fused
        node = node.with_inputs(inputs)
        verdict = None if node.op in LEAVES else judge(node, chip)
        if verdict is not None and verdict.verdict == "native" and cuts:
            values, writer = _written_out(node, chip)
            if values is not None:
                decisions.extend(_of_notes(node, writer))
            return values
        if verdict is None or verdict.verdict == "native":
            return None
        values, writer = _attempt(node, chip, not has_programs)
        if not rewritten(node, chip, verdict).runs:
            values = None  # the form depends on the operands, but `becomes` sees the node alone
        decisions.extend(_of_node(node, chip, writer) if values is None else _of_notes(node, writer))
        return values

    result = graph.rewrite(change)
    outside = {node.where for node in result.nodes if node.op not in LEAVES and is_border(node, chip)}
    before = tuple([d for d in result.decisions if d.verdict != "outside" or d.node in outside])
    return result.annotated(decisions=before).decided(*decisions)


def _cutting(graph: Graph) -> set[int]:
    """Returns the ids of attentions that split the network, because there are other ops. Excludes attentions in marked
    programs."""
    alone = sum(node.op not in LEAVES and not is_constant(node) for node in graph.nodes) == 1
    marked = marked_programs(graph).number
    return set() if alone else {id(n) for n in graph.nodes if n.op == ATTENTION and id(n) not in marked}


def _written_out(node: Node, chip: Chip) -> tuple[tuple[Value, ...] | None, Writer]:
    """Rewrites a native attention as products and a softmax. Returns None as values if the chip does not run products
    and softmax."""
    values, writer = _attempt(node, chip)
    if values is None or writer.outside:
        return None, writer
    note = writer.notes[-1]
    writer.notes[-1] = note._replace(verdict=replace(note.verdict, reason=CUT, source="guide ch22", status="decoded"))
    return values, writer


def among_others(graph: Graph, chip: Chip) -> Callable[[Node, Verdict], Verdict]:
    """Returns a function from a node and its verdict alone to its verdict in the network: a native attention among
    other ops is decomposed."""
    fused = _cutting(graph)

    def judged(node: Node, verdict: Verdict) -> Verdict:
        if id(node) not in fused or verdict.verdict != "native":
            return verdict
        values, writer = _written_out(node, chip)
        if values is None:
            return verdict
        note = writer.notes[-1]
        return replace(note.verdict, verdict="decomposed", form=note.how, reason=_because(note.how, note.verdict))

    return judged


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
    values, writer = _attempt(node, chip)
    if values is None:
        return _unwritten(node, verdict, writer)
    how = "; ".join(dict.fromkeys(note.how for note in _told(writer)))
    kind: Kind = "oversize" if verdict.verdict == "oversize" else "decomposed"
    reason, dear = _because(how, verdict), said_of_traffic(node, writer.made)
    return replace(verdict, verdict=kind, form=how, reason=f"{reason}; {dear}" if dear else reason, change="")


def _unwritten(node: Node, verdict: Verdict, writer: Writer) -> Verdict:
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
        values, writer = _attempt(node, chip)
        result = judge(writer.outside[0], chip).reason if values is not None and writer.outside else ""
        if kind is None:
            return result
        if len(_bordered) >= MOST_KNOWN:
            _bordered.clear()
        _bordered[kind] = result
    return _bordered[kind]


def _attempt(node: Node, chip: Chip, looks_through: bool = True) -> tuple[tuple[Value, ...] | None, Writer]:
    writer = Writer(chip, node.sources, FORMS, looks_through)
    values = None if is_border(node, chip) or OPS[node.op].host else writer.write(node)
    # A form of which the chip would run no op is not used: the host runs the original node.
    return (values if writer.made else None), writer


def operands_of_form(node: Node, chip: Chip, of_model: Container[Node]) -> set[Node]:
    """Returns the model's nodes that a node's replacement reads, or that the node reads if it has no replacement."""
    values, _ = _attempt(node, chip)
    seen, ahead = set[Node](), [v.node for v in (node.inputs if values is None else values) if v is not None]
    while ahead:
        one = ahead.pop()
        if one not in seen:
            seen.add(one)
            ahead.extend(v.node for v in one.inputs if v is not None and one not in of_model)
    return {one for one in seen if one in of_model}


# ---- records ----


WRITTEN = "written as "


def _because(how: str, verdict: Verdict) -> str:
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


def _told(writer: Writer) -> list[Note]:
    """Returns the notes to report: the outermost one, and inner ones that tile or may give other numbers."""
    outermost, *inner = reversed(writer.notes)
    return [outermost, *[note for note in inner if note.hazard or note.how.startswith("tiled")]]


def _of_notes(node: Node, writer: Writer) -> Iterator[Decision]:
    """Yields one decision for each reported rewrite of a node, and one for each of its hazards."""
    for note in _told(writer):
        v = note.verdict
        inner = "" if note.node is node else f"{note.node.op} in it: "
        tiled = note.how.startswith("tiled")
        how = note.how.removeprefix("tiled: ")
        yield _decision(node, "tiled" if tiled else "decomposed", f"{inner}{_because(how, v)}", v)
        if note.hazard:
            yield _decision(node, "hazard", note.hazard, v)
    for border in writer.outside:
        yield _outside(border, writer.chip)


def _of_node(node: Node, chip: Chip, writer: Writer) -> Iterator[Decision]:
    """Yields why a node is kept although the chip does not run it."""
    verdict = judge(node, chip)
    if is_border(node, chip):
        yield _outside(node, chip)
        return
    verdict = _unwritten(node, verdict, writer)
    if verdict.verdict == "decomposed":
        yield _decision(node, "left", f"to the engine's compiler: {verdict.reason}", verdict)
        return
    yield _decision(node, "kept", f"no form of it runs on the chip: {verdict.reason}", verdict)


def _of_wide(node: Node, chip: Chip, reason: str) -> Iterator[Decision]:
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
