"""The verdict on a node of a graph: what a chip does with it, from its op, types and attributes alone."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod
from typing import Any
from weakref import WeakKeyDictionary

from hexane.graph import Node, TensorType
from hexane.targets import Chip, Verdict
from hexane.targets.legality import KINDS, combined
from hexane.validate.as_layer import Types, as_layer, in_mil
from hexane.validate.layer import validate

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
    "multinomial",
}  # whose stream is a state of integers

FOLDED = Verdict(
    verdict="native",
    reason="computed when the program is compiled",
    rule="constants fold",
    source="hexane",
    status="read",
)
MOST_KNOWN = 1 << 16


class _Memory:
    """Verdicts of one chip, by node and by what a node's verdict depends on. It keeps its chip, so that ids stay apart."""

    def __init__(self, chip: Chip) -> None:
        self.chip = chip
        self.nodes: WeakKeyDictionary[Node, Verdict] = WeakKeyDictionary()
        self.kinds: dict[Any, Verdict] = {}


_memories: dict[int, _Memory] = {}
_constant: "WeakKeyDictionary[Node, bool]" = WeakKeyDictionary()


def judge(node: Node, chip: Chip) -> Verdict:
    """What becomes of a node on a chip: the worst of what its op, its extents, its dtypes and its layer's rules say."""
    memory = _memories.get(id(chip))
    if memory is None:
        memory = _memories[id(chip)] = _Memory(chip)
    known = memory.nodes.get(node)
    if known is None:
        known = memory.nodes[node] = _by_kind(node, memory)
    return known


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


def _by_kind(node: Node, memory: _Memory) -> Verdict:
    if is_constant(node):
        return FOLDED
    types = tuple([None if v is None else v.node.types[v.output] for v in node.inputs])
    constant = tuple([v is not None and is_constant(v.node) for v in node.inputs])
    key = (node.op, types, constant, node.types, tuple(node.attrs.values()))
    known = memory.kinds.get(key)
    if known is None:
        if len(memory.kinds) >= MOST_KNOWN:
            memory.kinds.clear()
        known = memory.kinds[key] = _judge(node.op, types, constant, node.types, node.attrs, memory.chip)
    return known


def _judge(
    op: str,
    types: Types,
    constant: tuple[bool, ...],
    outputs: tuple[TensorType, ...],
    attrs: Mapping[str, Any],
    chip: Chip,
) -> Verdict:
    names = in_mil(op, types, attrs)
    first = combined(op, names or (), chip)
    live = [t for i, (t, c) in enumerate(zip(types, constant, strict=True)) if t is not None and _counts(op, i, c)]
    found = [first, *_integers(op, live, outputs, chip), *_extents(op, (*live, *outputs), attrs, chip)]
    layer = as_layer(op, types, attrs, outputs[0])
    if layer is not None and first.verdict in ("native", "decomposed"):
        found += validate(layer.layer, layer.types, layer.attrs, chip, layer.output)
    worst = max(found, key=lambda v: KINDS.index(v.verdict))
    return _with_hazard(worst, op, types, attrs, chip)


def _counts(op: str, index: int, constant: bool) -> bool:
    """Whether an input's extents have to fit: weights are part of the layer."""
    if constant:
        return op in GATHERS and index == 0
    return not (op in WEIGHTED and index > 0)


def _extents(op: str, types: tuple[TensorType, ...], attrs: Mapping[str, Any], chip: Chip) -> Iterator[Verdict]:
    e = chip.extents
    for t in types:
        if t.rank > e.rank:
            said = "Cannot reshape a tensor of rank > 5" if op == "reshape" else ""
            yield _oversize(
                chip, "rank", f"{t} has {t.rank} axes, the chip takes {e.rank}", "fold axes into one", reject=said
            )
            continue
        for axis, extent in zip(AXES.get(t.rank, ("width",) * t.rank), t.shape, strict=True):
            most = getattr(e, axis)
            if extent > most:
                change = f"split the axis into pieces of at most {most}"
                yield _oversize(chip, axis, f"{t}: {axis} {extent}, the chip takes {most}", change)
        if 0 in t.shape:
            yield _refused(f"{t} has an axis of extent 0", "extent 0", "guide ch4", "leave the empty tensor out")
    if op == "transpose" and e.transpose_elements is not None and prod(types[0].shape) > e.transpose_elements:
        got = f"{types[0]} has {prod(types[0].shape)} elements, a transpose takes {e.transpose_elements}"
        yield _oversize(chip, "transpose_elements", got, "transpose pieces and concatenate them")
    if op == "group_norm":
        x = types[0].shape
        inner = max(x[1] // attrs["num_groups"], prod(x[2:]))
        if inner > e.channels:
            got = f"a group has an extent of {inner} inside, the chip takes {e.channels}"
            yield _oversize(chip, "channels", got, "normalise smaller images")


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
    whole = next((t for t in (*live, *outputs) if t.dtype.kind not in ("float", "bool")), None)
    if whole is None:
        return
    if op == "cast" and outputs[0] is whole and chip.gates.gather_check:
        yield _refused(f"a cast to {whole.dtype}", "cast to an integer", "guide app. A", "keep the numbers as floats")
        return
    yield Verdict(
        verdict="host",
        reason=f"{whole.dtype} is no dtype that the engine computes in: it has fp16",
        rule="dtypes of the datapath",
        source="guide ch4",
        status="measured",
        change="keep the numbers as floats, which are exact to 2048",
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


def _with_hazard(verdict: Verdict, op: str, types: Types, attrs: Mapping[str, Any], chip: Chip) -> Verdict:
    """A slice that starts inside a row turns large numbers into infinity on some chips: said, not refused."""
    limit = chip.hazards.width_slice_limit
    x = types[0] if types else None
    begins = attrs.get("begin") if op in ("slice_by_index", "slice_by_size") else None
    if limit is None or x is None or not begins or not begins[-1] or verdict.verdict not in ("native", "decomposed"):
        return verdict
    return replace(
        verdict, reason=f"{verdict.reason}; numbers above {limit} become infinity, as the last axis does not begin at 0"
    )
