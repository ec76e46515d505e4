"""Rewrites a network so that a chip runs it, and records what happens to each op."""

from collections.abc import Callable
from dataclasses import replace

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.lowering.row_updates import SCATTERS
from hexane.ops import LEAVES
from hexane.ops.checkpoints import CHECKPOINTED
from hexane.passes.retarget.borders import is_border
from hexane.passes.retarget.caches import choose_rows, read_caches
from hexane.passes.retarget.clamp_masks import clamp_masks
from hexane.passes.retarget.decisions import of_node, of_notes, of_wide
from hexane.passes.retarget.marked import marked_programs
from hexane.passes.retarget.verdicts import attempt, because, rewritten, runs_on
from hexane.passes.retarget.views import join_views
from hexane.passes.retarget.writer import Writer
from hexane.targets import Chip, Target, Verdict
from hexane.validate.constants import is_constant
from hexane.validate.host_numbers import kept_whole
from hexane.validate.node import judge

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
            decisions.extend(of_wide(node, chip, wide[id(node)]))
            return None
        if node.op == CHECKPOINTED and inputs[0] is not None and is_constant(inputs[0].node):
            return (inputs[0],)  # if the checkpoint were kept, a program might compute only a constant
        cuts = id(node) in fused
        node = node.with_inputs(inputs)
        verdict = None if node.op in LEAVES else judge(node, chip)
        if verdict is not None and verdict.verdict == "native" and cuts:
            values, writer = _written_out(node, chip)
            if values is not None:
                decisions.extend(of_notes(node, writer))
            return values
        if verdict is None or verdict.verdict == "native":
            return None
        values, writer = attempt(node, chip, not has_programs)
        if not rewritten(node, chip, verdict).runs:
            values = None  # the form depends on the operands, but `becomes` sees the node alone
        decisions.extend(of_node(node, chip, writer) if values is None else of_notes(node, writer))
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
    values, writer = attempt(node, chip)
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
        return replace(note.verdict, verdict="decomposed", form=note.how, reason=because(note.how, note.verdict))

    return judged
