"""The verdict on a node of a graph for a chip, given by its op, types, attributes and small constants."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from hexane.dtypes import FP64
from hexane.graph import Node, TensorType, tensor_type
from hexane.ops import LEAVES, OPS
from hexane.ops.checkpoints import CHECKPOINTED
from hexane.targets import Chip, Verdict
from hexane.targets.floors import floors
from hexane.targets.verdict import KINDS
from hexane.validate.constants import FOLDED, constant_inputs, is_constant
from hexane.validate.dtypes import WIDE_NUMBER, integers
from hexane.validate.extents import OWN_EXTENTS, extents, live_types, plain
from hexane.validate.hazards import hazard_of, joined_slices
from hexane.validate.in_mil import in_mil
from hexane.validate.layer import validate
from hexane.validate.layer_calls import layer_calls
from hexane.validate.mil_program import mil_program
from hexane.validate.rule import judged
from hexane.validate.small_constants import lost_digits
from hexane.validate.verdict_cache import MOST_KNOWN, VerdictCache, beyond_types, cache_of, key_of
from hexane.validate.width_slices import joins_width_slices

BY_NUMBERS = frozenset(("real_div", "batch_norm"))  # ops whose forms read the numbers of their constants
_TRANSPOSES = "the engine has channels before height and width: transposes bring them there and back"
CHANNELS_LAST = judged("decomposed", _TRANSPOSES, "layout nchw", "guide ch4", "measured")


def judge(node: Node, chip: Chip) -> Verdict:
    """The verdict on a node as it is: the worst verdict on its op, its extents, its dtypes and its layers.

    The verdict is for the route by which programs get to the chip: MIL, or a netplist before family A13. For a node
    that the chip refuses, `passes.retarget.becomes` gives the verdict on its rewrite.
    """
    if is_constant(node):
        return FOLDED
    constant = constant_inputs(node)
    return _remembered(key_of(node, constant), node, constant, cache_of(chip))


def judge_inside(node: Node, chip: Chip) -> Verdict:
    """The verdict of `judge` on a MIL node inside a program, without the limits on ports."""
    constant = constant_inputs(node)
    return _by_rules(key_of(node, constant), node, constant, cache_of(chip))


def judge_all(
    nodes: Sequence[Node], chips: Sequence[Chip], refine: Callable[[Node, Chip, Verdict], Verdict] | None = None
) -> list[list[Verdict]]:
    """For each chip, the verdicts on the nodes that are no leaves. nodes: all nodes of a graph, operands first.

    refine: gives a more exact verdict on a node that does not run as it is. Chips with equal facts for the rules share
    one list.
    """
    constants: set[Node] = set()
    kinds: dict[Any, tuple[int, Node, tuple[bool, ...]]] = {}
    places: list[int] = []  # for each node, its index in `kinds`
    for node in nodes:
        if node.op in LEAVES:
            if node.op == "const":
                constants.add(node)
            continue
        inputs = node.inputs
        constant = tuple([v is None or v.node in constants for v in inputs])
        if (False not in constant and any(inputs)) or (node.op == CHECKPOINTED and constant[0]):
            constants.add(node)
            places.append(-1)
            continue
        # The graph keeps types and attributes alive, so their ids identify them.
        types = [None if v is None else id(v.node.types[v.output]) for v in inputs]
        kind = (node.op, id(node.attrs), id(node.types), constant, *types, *beyond_types(node, constant))
        places.append(kinds.setdefault(kind, (len(kinds), node, constant))[0])
    keys = [(key_of(node, constant), node, constant) for _, node, constant in kinds.values()]
    lists: dict[int, list[Verdict]] = {}
    result = []
    for cache in map(cache_of, chips):
        if id(cache) not in lists:
            verdicts = [*(_remembered(*key, cache) for key in keys), FOLDED]
            each = False
            if refine is not None:
                for i, (_, node, _) in enumerate(keys):
                    if verdicts[i].verdict == "native":
                        continue
                    if node.op in BY_NUMBERS:
                        each = True
                    else:
                        verdicts[i] = refine(node, cache.chip, verdicts[i])
            own = lists[id(cache)] = [verdicts[place] for place in places]
            if refine is not None and each:
                for i, node in enumerate([node for node in nodes if node.op not in LEAVES]):
                    if node.op in BY_NUMBERS and own[i].verdict != "native":
                        own[i] = refine(node, cache.chip, own[i])
        result.append(lists[id(cache)])
    return result


def _remembered(key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], cache: VerdictCache) -> Verdict:
    known = cache.kinds.get(key)
    if known is None:
        if len(cache.kinds) >= MOST_KNOWN:
            cache.kinds.clear()
        by_rules = _by_rules(key, node, constant, cache)
        known = cache.kinds[key] = _in_a_program(by_rules, key, node, constant, cache)
    return known


def _by_rules(key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], cache: VerdictCache) -> Verdict:
    known = cache.by_rules.get(key)
    if known is None:
        if len(cache.by_rules) >= MOST_KNOWN:
            cache.by_rules.clear()
        known = cache.by_rules[key] = _judge(node, key, constant, cache)
    return known


def _in_a_program(
    verdict: Verdict, key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], cache: VerdictCache
) -> Verdict:
    """Changes the verdict on a node that the chip runs, if no MIL program can hold the node or one of its MIL ops."""
    kept = (lost_digits(node) if verdict.verdict == "native" else None) or verdict
    if cache.route != "mil" or not _kept_as_is(verdict, key, node):
        return kept
    if joins_width_slices(node) and cache.chip.hazards.width_slice_concat:
        kept = replace(kept, reason=f"{kept.reason}; {joined_slices(cache.chip).reason}")
    program = mil_program(node, constant, key)
    if isinstance(program, str):
        return judged("host", program, "programs in MIL")
    for part in program:
        inner = judge_inside(part, cache.chip)
        if inner.verdict not in ("native", "decomposed"):
            return judged("host", f"MIL writes it with {part.op}: {inner.reason}", "programs in MIL")
    return kept


def _kept_as_is(verdict: Verdict, key: tuple[Any, ...], node: Node) -> bool:
    """True if the engine gets the node unchanged, without retargeting."""
    return verdict.verdict == "native" or (
        verdict.verdict == "decomposed" and in_mil(node.op, key[1], node.attrs) == (node.op,)
    )


def _judge(node: Node, key: Any, constant: tuple[bool, ...], cache: VerdictCache) -> Verdict:
    op, types, attrs, outputs = node.op, key[1], node.attrs, node.types
    if op in OPS and OPS[op].host:
        return judged("host", OPS[op].host, "updates of params", status="inferred")
    chip, last = cache.chip, attrs.get("layout") == "nhwc"
    if last:
        types, outputs = (_channels_first(types[0]), *types[1:]), tuple([_channels_first(t) for t in outputs])
    first = cache.status(op, in_mil(op, types, attrs) or ())
    live = live_types(op, types, constant)
    if any(t.dtype is FP64 and t.size <= 1 for t in (*live, *outputs)):
        return WIDE_NUMBER
    verdicts = [first]
    if not plain((*live, *outputs), cache):
        verdicts += [*integers(op, live, outputs, chip), *extents(op, (*live, *outputs), cache)]
    if op in OWN_EXTENTS:
        verdicts += OWN_EXTENTS[op](live[0] if live else outputs[0], attrs, chip)
    if first.verdict in ("native", "decomposed"):
        calls = layer_calls(node, constant, key)
        own = floors()[op].layer if op in floors() else ""
        if isinstance(calls, str):
            verdicts += [judged("host", calls, "layers of the engine")] if first.verdict == "native" else []
        else:
            for call in calls:
                refused = validate(call.layer, call.types, call.attrs, chip, call.output)
                if call.layer != own and len(calls) > 1:  # retargeting rewrites the op, or reports the reason
                    refused = [replace(v, verdict="decomposed") for v in refused]
                verdicts += refused
    if last:
        verdicts.append(CHANNELS_LAST)
    worst = first if len(verdicts) == 1 else max(verdicts, key=lambda v: KINDS.index(v.verdict))
    danger = hazard_of(op, types, attrs, chip) if worst.verdict in ("native", "decomposed") else None
    return worst if danger is None else replace(worst, reason=f"{worst.reason}; {danger.reason}")


def _channels_first(t: TensorType | None) -> TensorType:
    assert t is not None
    return tensor_type(t.dtype, (t.shape[0], t.shape[-1], *t.shape[1:-1]))
