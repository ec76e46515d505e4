"""The verdict on a node of a graph: what a chip does with it, from its op, types and attributes alone."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from operator import gt
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hexane.dtypes import FP64
from hexane.errors import Error
from hexane.graph import Node, TensorType, tensor_type
from hexane.ops import LEAVES, OPS
from hexane.ops.recording import IgnoredError
from hexane.ops.spec import LayerCall
from hexane.passes.engine.lower import lower_node
from hexane.targets import Chip, Verdict
from hexane.targets.legality import KINDS, combined, floors, route_of
from hexane.targets.silicon import sources_of
from hexane.validate.in_mil import Types, in_mil
from hexane.validate.layer import validate
from hexane.validate.mil_program import beyond_types, mil_program
from hexane.validate.small_constants import loses_digits
from hexane.validate.width_slices import joins_width_slices

AXES = {4: ("batch", "channels", "height", "width"), 5: ("batch", "channels", "depth", "height", "width")}
WEIGHTED = {"conv", "conv_transpose", "batch_norm", "instance_norm", "layer_norm", "group_norm", "rms_norm"}
GATHERS = {"gather", "gather_along_axis", "gather_nd"}
# Ops that read or write integers beside their data: indices, tests, encodings.
INDEXED = GATHERS | {"topk", "argsort", "reduce_argmax", "reduce_argmin", "quantize", "dequantize", "quantized_matmul"}
INDEXED |= {"quantized_conv", "quantized_add", "write_state"}
INDEXED |= {
    "random",
    "random_uniform",
    "random_normal",
    "bernoulli",
    "dropout",
    "multinomial",
}  # whose stream is a state of integers

SMALL_CONSTANT = "constants in fp16"
KEPT = {
    "scaled_dot_product_attention": "anec.sdpa",
    "linear": "anec.linear",
}  # ops that are one layer wherever the engine gets them
BY_NUMBERS = frozenset(("real_div", "batch_norm"))  # ops whose forms read the numbers of their constants

FOLDED = Verdict(
    verdict="native",
    reason="computed when the program is compiled",
    rule="constants fold",
    source="hexane",
    status="read",
)
CHANNELS_LAST = Verdict(
    verdict="decomposed",
    reason="the engine has channels before height and width: transposes bring them there and back",
    rule="layout nchw",
    source="guide ch4",
    status="measured",
)
JUDGED_BY = ("family", "extents", "memory", "gates", "hazards")  # what rules read of a chip
MOST_KNOWN = 1 << 16


class Hazard(NamedTuple):
    """Where a chip silently computes something else, and who says so."""

    reason: str
    source: str


class _Memory:
    """Verdicts by what a node's verdict depends on, for all chips that look the same to the rules."""

    def __init__(self, chip: Chip) -> None:
        self.chip, self.route = chip, route_of(chip)
        self.kinds: dict[Any, Verdict] = {}
        self.by_rules: dict[Any, Verdict] = {}  # without what programs can hold
        self.statuses: dict[Any, Verdict] = {}
        e = chip.extents
        self.largest = {
            rank: tuple([getattr(e, axis) for axis in AXES.get(rank, ("width",) * rank)]) for rank in range(e.rank + 1)
        }

    def status(self, op: str, names: tuple[str, ...]) -> Verdict:
        """The verdict on an op that is written as these ops of MIL."""
        key = op, names
        if key not in self.statuses:
            self.statuses[key] = combined(op, names, self.chip, self.route)
        return self.statuses[key]


_looks: dict[Any, int] = {}  # what rules read of a chip, numbered
_looks_of: dict[int, tuple[Chip, int]] = {}  # with the chip, so that its id stays its own
_memories: dict[int, _Memory] = {}  # by the number of those looks
_constant: "WeakKeyDictionary[Node, bool]" = WeakKeyDictionary()


def judge(node: Node, chip: Chip) -> Verdict:
    """Whether a chip runs a node as it is: the worst of what its op, its extents, its dtypes and its layer's rules say.

    By the route that programs take to the chip: MIL, or a netplist before family A13. What compiling makes of a node
    that does not run as it is, `passes.retarget.becomes` says.
    """
    if is_constant(node):
        return FOLDED
    constant = tuple([v is None or is_constant(v.node) for v in node.inputs])
    return _remembered(_key(node, constant), node, constant, _memory(chip))


def judge_inside(node: Node, chip: Chip) -> Verdict:
    """Whether a chip runs a node of MIL's that stands between others: `judge` without what ports hold."""
    constant = tuple([v is None or is_constant(v.node) for v in node.inputs])
    return _by_rules(_key(node, constant), node, constant, _memory(chip))


def judge_all(
    nodes: Sequence[Node], chips: Sequence[Chip], refine: Callable[[Node, Chip, Verdict], Verdict] | None = None
) -> list[list[Verdict]]:
    """For each chip the verdict on each node that computes something. nodes: all of a graph, operands first.

    refine: says more of a node that does not run as it is. Chips that look the same to the rules share one list.
    """
    constants: set[Node] = set()
    kinds: dict[Any, tuple[int, Node, tuple[bool, ...]]] = {}
    places: list[int] = []  # of each node's kind
    for node in nodes:
        if node.op in LEAVES:
            if node.op == "const":
                constants.add(node)
            continue
        inputs = node.inputs
        constant = tuple([v is None or v.node in constants for v in inputs])
        if False not in constant and any(inputs):
            constants.add(node)
            places.append(-1)
            continue
        # The graph keeps types and attributes alive, so that their ids tell them apart.
        types = [None if v is None else id(v.node.types[v.output]) for v in inputs]
        kind = (node.op, id(node.attrs), id(node.types), constant, *types, *beyond_types(node, constant))
        places.append(kinds.setdefault(kind, (len(kinds), node, constant))[0])
    keys = [(_key(node, constant), node, constant) for _, node, constant in kinds.values()]
    lists: dict[int, list[Verdict]] = {}
    found = []
    for memory in map(_memory, chips):
        if id(memory) not in lists:
            verdicts = [*(_remembered(*key, memory) for key in keys), FOLDED]
            each = False
            if refine is not None:
                for i, (_, node, _) in enumerate(keys):
                    if verdicts[i].verdict == "native":
                        continue
                    if node.op in BY_NUMBERS:
                        each = True
                    else:
                        verdicts[i] = refine(node, memory.chip, verdicts[i])
            own = lists[id(memory)] = [verdicts[place] for place in places]
            if refine is not None and each:
                for i, node in enumerate([node for node in nodes if node.op not in LEAVES]):
                    if node.op in BY_NUMBERS and own[i].verdict != "native":
                        own[i] = refine(node, memory.chip, own[i])
        found.append(lists[id(memory)])
    return found


def is_constant(node: Node) -> bool:
    """Whether a node is computed when the program is compiled: from constants alone."""
    stack = [] if node in _constant else [node]
    while stack:
        last = stack[-1]
        operands = [v.node for v in last.inputs if v is not None]
        if unknown := [n for n in operands if n not in _constant]:
            stack.extend(unknown)
            continue
        _constant[stack.pop()] = last.op == "const" or (bool(operands) and all(_constant[n] for n in operands))
    return _constant[node]


def _memory(chip: Chip) -> _Memory:
    known = _looks_of.get(id(chip))
    if known is None:
        values = (*[getattr(chip, name) for name in JUDGED_BY], sources_of(chip.products))
        facts = tuple([(path, fact) for path, fact in chip.facts.items() if path.partition(".")[0] in JUDGED_BY])
        known = _looks_of[id(chip)] = chip, _looks.setdefault((values, facts), len(_looks))
    memory = _memories.get(known[1])
    if memory is None:
        memory = _memories[known[1]] = _Memory(chip)
    return memory


def _key(node: Node, constant: tuple[bool, ...]) -> tuple[Any, ...]:
    """What a verdict depends on, beside the chip."""
    types = tuple([None if v is None else v.node.types[v.output] for v in node.inputs])
    return node.op, types, constant, node.types, tuple(node.attrs.values()), *beyond_types(node, constant)


def kind_of(node: Node, chip: Chip) -> tuple[Any, ...]:
    """What a verdict depends on, and which chips look like this one."""
    constant = tuple([v is None or is_constant(v.node) for v in node.inputs])
    return _memory(chip), *_key(node, constant)


def largest(t: TensorType, axis: int, chip: Chip) -> int:
    """The largest extent that the axis of a tensor of this rank may have."""
    extent: int = _memory(chip).largest[t.rank][axis]
    return extent


def fits(t: TensorType, chip: Chip) -> bool:
    """Whether the chip takes the tensor at all."""
    most = _memory(chip).largest.get(t.rank)
    return most is not None and not any(map(gt, t.shape, most))


def _remembered(key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], memory: _Memory) -> Verdict:
    known = memory.kinds.get(key)
    if known is None:
        if len(memory.kinds) >= MOST_KNOWN:
            memory.kinds.clear()
        by_rules = _by_rules(key, node, constant, memory)
        known = memory.kinds[key] = _in_a_program(by_rules, key, node, constant, memory)
    return known


def _by_rules(key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], memory: _Memory) -> Verdict:
    known = memory.by_rules.get(key)
    if known is None:
        if len(memory.by_rules) >= MOST_KNOWN:
            memory.by_rules.clear()
        known = memory.by_rules[key] = _judge(node, key, constant, memory)
    return known


def _in_a_program(
    verdict: Verdict, key: tuple[Any, ...], node: Node, constant: tuple[bool, ...], memory: _Memory
) -> Verdict:
    """The verdict on a node that the chip runs, where no program in MIL can hold it or one of the ops that it becomes
    there."""
    kept = _LOSES[node.op] if verdict.verdict == "native" and loses_digits(node) else verdict
    if memory.route != "mil" or not _kept_as_is(verdict, key, node):
        return kept
    if joins_width_slices(node) and memory.chip.hazards.width_slice_concat:
        kept = replace(kept, reason=f"{kept.reason}; {_joined_slices(memory.chip).reason}")
    made = mil_program(node, constant, key)
    if isinstance(made, str):
        return _host(made)
    for found in made:
        inner = judge_inside(found, memory.chip)
        if inner.verdict not in ("native", "decomposed"):
            return _host(f"MIL writes it with {found.op}: {inner.reason}")
    return kept


_LOSES = {
    op: Verdict(
        verdict="decomposed",
        reason=f"fp16 keeps few digits of the constant {what}",
        rule=SMALL_CONSTANT,
        source="hexane",
        status="read",
    )
    for op, what in (
        ("mul", "factor"),
        ("real_div", "divisor, or of its reciprocal, with which the engine multiplies"),
        ("quantize", "scale"),
        ("dequantize", "scale"),
    )
}


def _kept_as_is(verdict: Verdict, key: tuple[Any, ...], node: Node) -> bool:
    """Whether the engine gets the node itself, and not what retargeting makes of it."""
    return verdict.verdict == "native" or (
        verdict.verdict == "decomposed" and in_mil(node.op, key[1], node.attrs) == (node.op,)
    )


def _host(reason: str) -> Verdict:
    return Verdict(
        verdict="host",
        reason=reason,
        rule="programs in MIL",
        source="hexane",
        status="read",
    )


# Sums of squares and what is made of them, of which a step of training has a few: fp16 would make them infinite.
WIDE_NUMBER = Verdict(
    verdict="host",
    reason="single numbers of fp64 stay on the host, where they keep their digits and their range",
    rule="numbers of fp64",
    source="hexane",
    status="read",
)


def _judge(node: Node, key: Any, constant: tuple[bool, ...], memory: _Memory) -> Verdict:
    op, types, attrs, outputs = node.op, key[1], node.attrs, node.types
    if op in OPS and OPS[op].host:
        return Verdict(
            verdict="host", reason=OPS[op].host, rule="updates of params", source="hexane", status="inferred"
        )
    chip, last = memory.chip, attrs.get("layout") == "nhwc"
    if last:
        types, outputs = (_channels_first(types[0]), *types[1:]), tuple([_channels_first(t) for t in outputs])
    first = memory.status(op, in_mil(op, types, attrs) or ())
    live = _live(op, types, constant)
    if any(t.dtype is FP64 and t.size <= 1 for t in (*live, *outputs)):
        return WIDE_NUMBER
    found = [first]
    if not _plain((*live, *outputs), memory):
        found += [*_integers(op, live, outputs, chip), *_extents(op, (*live, *outputs), memory)]
    if op in OWN_EXTENTS:
        found += OWN_EXTENTS[op](live[0] if live else outputs[0], attrs, chip)
    if first.verdict in ("native", "decomposed"):
        calls = _calls(node, constant, key)
        own = floors()[op].layer if op in floors() else ""
        if isinstance(calls, str):
            found += [_no_layer(calls)] if first.verdict == "native" else []
        else:
            for call in calls:
                refused = validate(call.layer, call.types, call.attrs, chip, call.output)
                found += refused if call.layer == own or len(calls) == 1 else map(_of_a_part, refused)
    if last:
        found.append(CHANNELS_LAST)
    worst = first if len(found) == 1 else max(found, key=lambda v: KINDS.index(v.verdict))
    danger = _hazard(op, types, attrs, chip) if worst.verdict in ("native", "decomposed") else None
    return worst if danger is None else replace(worst, reason=f"{worst.reason}; {danger.reason}")


def _of_a_part(verdict: Verdict) -> Verdict:
    """Of an op of several layers one of which the chip refuses: retargeting writes it, or says what it lacks."""
    return replace(verdict, verdict="decomposed")


_calls_of: dict[Any, tuple[LayerCall, ...] | str] = {}


def _no_layer(reason: str) -> Verdict:
    return Verdict(verdict="host", reason=reason, rule="layers of the engine", source="hexane", status="read")


def _calls(node: Node, constant: tuple[bool, ...], key: Any) -> tuple[LayerCall, ...] | str:
    """The layers of a node, as their rules see them, or why there are none."""
    known = _calls_of.get(key)
    if known is None:
        if len(_calls_of) >= MOST_KNOWN:
            _calls_of.clear()
        try:
            made = [node] if node.op in KEPT else lower_node(node, constant)
            records = [(OPS[KEPT.get(layer.op, layer.op)], layer) for layer in made]
            known = tuple([op.call(layer) for op, layer in records if op.call is not None])
        except IgnoredError:
            raise
        except Error as error:
            known = str(error).removeprefix(f"[{node.where}] ")
        _calls_of[key] = known
    return known


def hazard(node: Node, chip: Chip) -> Hazard | None:
    """What a chip silently computes otherwise in a node that it takes."""
    if joins_width_slices(node) and chip.hazards.width_slice_concat:
        return _joined_slices(chip)
    return _hazard(node.op, tuple([None if v is None else v.type for v in node.inputs]), node.attrs, chip)


def _joined_slices(chip: Chip) -> Hazard:
    fact = chip.facts["hazards.width_slice_concat"]
    reason = "the chip gives wrong elements where several slices that begin inside a row are concatenated"
    return Hazard(reason, f"{fact.source}, {fact.status}")


def _channels_first(t: TensorType | None) -> TensorType:
    assert t is not None
    return tensor_type(t.dtype, (t.shape[0], t.shape[-1], *t.shape[1:-1]))


def _live(op: str, types: Types, constant: tuple[bool, ...]) -> list[TensorType]:
    """The inputs whose extents have to fit: weights are part of the layer."""
    data = types[:1] if op in WEIGHTED else types
    live = [t for t, known in zip(data, constant, strict=False) if t is not None and not known]
    if op in GATHERS and constant[0] and types[0] is not None:
        live.append(types[0])  # a table that is read by computed places
    return live


def _plain(types: Sequence[TensorType], memory: _Memory) -> bool:
    """Whether they are floats or bools that the chip takes, as nearly all are: `_integers` and `_extents` have nothing
    to say."""
    for t in types:
        shape, most = t.shape, memory.largest.get(len(t.shape))
        if most is None or t.dtype.kind not in ("float", "bool") or 0 in shape or any(map(gt, shape, most)):
            return False
    return True


def _extents(op: str, types: tuple[TensorType, ...], memory: _Memory) -> Iterator[Verdict]:
    chip = memory.chip
    e = chip.extents
    for t in types:
        largest = memory.largest.get(len(t.shape))
        if largest is None:
            said = "Cannot reshape a tensor of rank > 5" if op == "reshape" else ""
            yield _oversize(
                chip, "rank", f"{t} has {t.rank} axes, the chip takes {e.rank}", "fold axes into one", reject=said
            )
            continue
        if any(map(gt, t.shape, largest)):
            names = AXES.get(t.rank, ("width",) * t.rank)
            for axis, extent, most in zip(names, t.shape, largest, strict=True):
                if extent > most:
                    pieces = f"split the axis into pieces of at most {most}"
                    change = "write it on four axes" if axis == "depth" and most == 1 else pieces
                    yield _oversize(chip, axis, f"{t}: {axis} {extent}, the chip takes {most}", change)
        if 0 in t.shape:
            yield _refused(f"{t} has an axis of extent 0", "extent 0", "guide ch4", "leave the empty tensor out")


def _transposed(x: TensorType, attrs: Mapping[str, Any], chip: Chip) -> Iterator[Verdict]:
    most = chip.extents.transpose_elements
    if most is not None and x.size > most:
        got = f"{x} has {x.size} elements, a transpose takes {most}"
        yield _oversize(chip, "transpose_elements", got, "transpose pieces and concatenate them")


def _groups(x: TensorType, attrs: Mapping[str, Any], chip: Chip) -> Iterator[Verdict]:
    inner = {"height": x.shape[1] // attrs["num_groups"], "width": prod(x.shape[2:])}
    for axis, extent in inner.items():
        if extent > (most := getattr(chip.extents, axis)):
            got = f"groups are normalised as (1, groups, channels, pixels): {axis} {extent}, the chip takes {most}"
            yield _oversize(chip, axis, got, "normalise smaller images")


# What ops bound beside the extents of their tensors.
OWN_EXTENTS = {"transpose": _transposed, "group_norm": _groups}


def _oversize(chip: Chip, field: str, reason: str, change: str, reject: str = "") -> Verdict:
    fact = chip.facts[f"extents.{field}"]
    return Verdict(
        verdict="oversize",
        reason=reason,
        rule=f"extents.{field}",
        source=fact.source,
        status=fact.status,
        reject=reject,
        published=bool(reject),
        change=change,
    )


def _integers(op: str, live: list[TensorType], outputs: tuple[TensorType, ...], chip: Chip) -> Iterator[Verdict]:
    """The engine computes in fp16: integers are indices or encodings, never numbers."""
    if op in INDEXED:
        return
    advice = "keep numbers that are not indices as floats, which are exact to 2048"
    for whole in (*live, *outputs):
        if whole.dtype.kind not in ("float", "bool"):
            break
    else:
        return
    if op == "cast" and outputs[0] is whole and chip.gates.gather_check:
        yield _refused(f"a cast to {whole.dtype}", "cast to an integer", "guide app. A", advice)
        return
    yield Verdict(
        verdict="host",
        reason=f"{whole.dtype} is no dtype that the engine computes in: it has fp16",
        rule="dtypes of the datapath",
        source="guide ch4",
        status="measured",
        change=advice,
    )


def _refused(reason: str, rule: str, source: str, change: str) -> Verdict:
    return Verdict(
        verdict="rejected",
        reason=f"the compiler refuses {reason}",
        rule=rule,
        source=source,
        status="measured",
        change=change,
    )


def _hazard(op: str, types: Types, attrs: Mapping[str, Any], chip: Chip) -> Hazard | None:
    """A slice that starts inside a row turns large numbers into infinity on some chips: said, not refused."""
    limit = chip.hazards.width_slice_limit
    begins = attrs.get("begin") if op in ("slice_by_index", "slice_by_size") else None
    if limit is None or not types or types[0] is None or not begins or not begins[-1]:
        return None
    fact = chip.facts["hazards.width_slice_limit"]
    reason = f"numbers above {limit} become infinity, as the last axis does not begin at 0"
    return Hazard(reason, f"{fact.source}, {fact.status}")
