"""Finds known failures in a network (`targets/shared/rules.toml`), with one finding per rule and kind of op."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil, prod
from typing import Any

import numpy as np

from hexane.graph import Graph, Node, TensorType, Value
from hexane.lowering.masks import mask_operands
from hexane.ops.encodings import encoding_of
from hexane.program import Segment
from hexane.targets.rules import Rule, rules

# Rules that are tested on the layers after `retarget`, not on the model's ops: `retarget` replaces strides and
# dilations that a chip refuses, and may write attention as products and a softmax.
OF_LAYERS = ("conv_strides", "palette_strides", "pool_strides", "dilations", "fused_attention")
Filled = Mapping[str, Any]  # values for the placeholders of a rule's texts
Test = Callable[[Node, Rule], Filled | None]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule that ops of one kind break. where: the place of the first op; count: the number of ops."""

    rule: str
    op: str
    where: str
    count: int
    wrong: str
    instead: str
    systems: tuple[str, ...]
    source: str
    status: str

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {**asdict(self), "systems": list(self.systems)}

    def __str__(self) -> str:
        where = f" at {self.where}" if self.where else ""
        more = f" (1 of {self.count} ops)" if self.count > 1 else ""
        return f"{self.op}{where}{more}: {self.wrong}: {self.instead} ({self.evidence})"

    @property
    def cited(self) -> str:
        """The source and its status: "guide ch22, measured"."""
        return f"{self.source}, {self.status}"

    @property
    def evidence(self) -> str:
        seen = f"; on {', '.join(self.systems)}" if self.systems else ""
        return f"{self.cited}{seen}"


def find_rules(graph: Graph, segments: Sequence[Segment] | None = None) -> tuple[Finding, ...]:
    """Returns the rules that a network breaks, in the order of the file. segments: the network's parts on a chip. The
    rules of OF_LAYERS are for the engine's layers, and rules of inputs and outputs for those that the engine reads and
    writes. None: the network's own nodes, inputs and outputs."""
    findings: dict[tuple[str, str], Finding] = {}
    for rule, op, where, filled in _broken(graph, segments):
        key = rule.name, op
        if key in findings:
            findings[key] = replace(findings[key], count=findings[key].count + 1)
            continue
        findings[key] = finding_of(rule, op, where, filled)
    order = list(rules())
    return tuple(sorted(findings.values(), key=lambda finding: order.index(finding.rule)))


def finding_of(rule: Rule, op: str, where: str, filled: Filled) -> Finding:
    """Returns the finding of one op that breaks a rule. filled: values for the placeholders of the rule's texts."""
    wrong, instead = (_text(text, rule, filled) for text in (rule.wrong, rule.instead))
    return Finding(rule.name, op, where, 1, wrong, instead, rule.systems, rule.source, rule.status)


def _broken(graph: Graph, segments: Sequence[Segment] | None) -> Iterator[tuple[Rule, str, str, Filled]]:
    by_op: dict[str, list[Rule]] = {}
    for rule in rules().values():
        for op in rule.ops:
            by_op.setdefault(op, []).append(rule)
    masks = mask_operands(graph.nodes)
    tests: dict[str, Test] = {**_TESTS, "infinite_mask": partial(_infinite_mask, masks)}
    judged = [(node, False) for node in graph.nodes if node.op != "input"]
    layers = (
        graph.nodes if segments is None else _once([node for s in segments if s.device == "ane" for node in s.nodes])
    )
    judged += [(node, True) for node in layers]
    for node, as_layer in judged:
        for rule in by_op.get(node.op, ()):
            if (rule.name in OF_LAYERS) != as_layer:
                continue
            test = tests.get(rule.name)
            filled = {} if test is None else test(node, rule)
            if filled is not None:
                yield rule, node.op, node.source, filled
    for op, name, kind in _ports(graph, segments):
        for rule in by_op.get(op, ()):
            filled = _short_rows(name, kind, rule)
            if filled is not None:
                yield rule, op, name, filled


def _ports(graph: Graph, segments: Sequence[Segment] | None) -> Iterator[tuple[str, str, TensorType]]:
    """Yields "input" or "output", name and type of the inputs that the engine reads, and of the outputs that it
    writes; of all if segments is None."""
    inputs = {str(v.node.attrs["name"]): v.type for v in graph.inputs}
    outputs = list(graph.outputs)
    if segments is not None:
        engine = [s for s in segments if s.device == "ane"]
        read = {port.name for s in engine for port in s.inputs if port.source is None}
        on_host = {source for s in segments if s.device == "host" for node in s.nodes for source in node.sources}
        inputs = {name: kind for name, kind in inputs.items() if name in read}
        outputs = [p for p in outputs if engine and on_host.isdisjoint(p.value.node.sources)]
    yield from (("input", name, kind) for name, kind in inputs.items())
    yield from (("output", p.name, p.value.type) for p in outputs)


def _once(layers: Sequence[Node]) -> list[Node]:
    """Returns the layers, but only one of equal pieces that a node became, such as those of a convolution."""
    return list({(node.sources, node.op, str(node.attrs)): node for node in layers if node.op != "input"}.values())


def _text(text: str, rule: Rule, filled: Filled) -> str:
    """Returns a rule's text with its placeholders filled."""
    values = {**{name: fact.value for name, fact in rule.numbers.items()}, **filled}
    return text.format_map({name: _spoken(value) for name, value in values.items()})


def _spoken(value: Any) -> str:
    if isinstance(value, tuple):
        return " or ".join(filter(None, (", ".join(map(str, value[:-1])), str(value[-1]))))
    return f"{value:,}" if isinstance(value, int) and value >= 100_000 else str(value)


# ---- tests of rules: return values for the placeholders if a node breaks the rule, and None if not ----


def _kernel_dma(node: Node, rule: Rule) -> Filled | None:
    """Breaks the rule if the bytes that a core reads are near a multiple at which the prefetcher stops."""
    product = _product(node)
    if product is None:
        return None
    outputs, inputs, taps = product

    def of_core(size: int) -> int:
        return int(ceil(size / rule.number("cores")) * inputs * taps * rule.number("element_bytes"))

    def is_near(size: int) -> bool:
        multiple, count = rule.number("multiple"), of_core(size)
        below = count % multiple
        return bool(count >= multiple - rule.number("window") + 1) and (
            min(below, multiple - below) < rule.number("window")
        )

    if not is_near(outputs):
        return None
    padded = ceil(outputs / rule.number("cores")) * rule.number("cores")
    while is_near(padded):
        padded += rule.number("cores")
    name = f"{outputs} x {inputs}" + (f" x {taps}" if taps > 1 else "")
    return {"name": name, "bytes": of_core(outputs), "size": outputs, "padded": padded}


def _product(node: Node) -> tuple[int, int, int] | None:
    """Returns (outputs, inputs, taps) of a product with constant weights that are not encoded; None for others."""
    weight = _weight(node)
    if weight is None or encoding_of(weight).kind != "whole" or weight.dtype.kind != "float":
        return None
    shape = weight.shape
    if node.op == "conv":
        return shape[0], shape[1], prod(shape[2:])
    if len(shape) < 2 or prod(shape[:-2]) != 1:
        return None
    by_rows = node.op == "linear" or node.attrs["transpose_y"]
    return (shape[-2], shape[-1], 1) if by_rows else (shape[-1], shape[-2], 1)


def _weight(node: Node) -> Value | None:
    weight = node.inputs[1]
    if weight is None:
        return None
    return weight if weight.node.op in ("const", "param") or encoding_of(weight).kind != "whole" else None


def _infinite_mask(masks: Mapping[int, tuple[int, ...]], node: Node, rule: Rule) -> Filled | None:
    """Breaks the rule if a mask holds an infinity. An infinity that no element can reach, such as -inf in a maximum, is
    no mask."""
    values = [v for i in masks.get(id(node), ()) if i < len(node.inputs) and (v := node.inputs[i]) is not None]
    data = [v.node.data for v in values if v.node.op == "const" and v.dtype.kind == "float" and v.node.data is not None]
    hides = {"maximum": np.isposinf, "minimum": np.isneginf}.get(node.op, np.isinf)
    return {} if any(hides(d.astype(np.float32)).any() for d in data) else None


def _conv_strides(node: Node, rule: Rule) -> Filled | None:
    strides = _strides(node)
    small, large = min(strides, default=1), max(strides, default=1)
    taken = rule.number("equal") if small == large else rule.number("beside_two") if 2 in (small, large) else ()
    other = large if small in (2, large) else small
    return None if other in taken else {"strides": _by(strides)}


def _palette_strides(node: Node, rule: Rule) -> Filled | None:
    weight, strides = _weight(node), _strides(node)
    if weight is None or encoding_of(weight).kind != "palette" or max(strides, default=1) <= rule.number("most"):
        return None
    return {"strides": _by(strides)}


def _pool_strides(node: Node, rule: Rule) -> Filled | None:
    """Breaks the rule by strides. Axes with a single result do not count."""
    own, taken = _strides(node), rule.number("strides_taken")
    shape = node.types[0].shape
    spatial = shape[1:-1] if node.attrs.get("layout") == "nhwc" else shape[2:]
    return {"strides": _by(own)} if any(s not in taken for s, n in zip(own, spatial, strict=True) if n > 1) else None


def _dilations(node: Node, rule: Rule) -> Filled | None:
    dilations = tuple(map(int, node.attrs["dilations"]))
    return {"dilations": _by(dilations)} if any(_rest(d, rule.number("factors")) > 1 for d in dilations) else None


def _rest(number: int, factors: tuple[int, ...]) -> int:
    """Divides the number by these primes as often as possible."""
    for factor in factors:
        while number % factor == 0:
            number //= factor
    return number


def _by(extents: tuple[int, ...]) -> str:
    return " x ".join(map(str, extents))


def _strides(node: Node) -> tuple[int, ...]:
    return tuple(map(int, node.attrs["strides"]))


def _linear_int4(node: Node, rule: Rule) -> Filled | None:
    weight = _weight(node)
    if weight is None:
        return None
    encoding, bits = encoding_of(weight), rule.number("bits")
    data = encoding.stored.node.data
    if encoding.kind not in ("integers", "blocks") or data is None or not data.size:
        return None
    low, high = int(data.min()), int(data.max())  # importers store 4-bit weights in bytes
    return {} if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - (low < 0)) else None


def _input_weights(node: Node, rule: Rule) -> Filled | None:
    weight = node.inputs[1]
    if weight is None or weight.node.op != "input":
        return None
    inner, multiple = weight.shape[-1 if node.attrs["transpose_y"] else -2], rule.number("multiple")
    return None if inner % multiple == 0 else {"inner": inner, "padded": ceil(inner / multiple) * multiple}


def _short_rows(name: str, kind: TensorType, rule: Rule) -> Filled | None:
    if len(kind.shape) < 2 or kind.size == kind.shape[-1] or not kind.size:
        return None
    size = max(kind.shape[-1] * min(kind.dtype.bits, 16) // 8, 1)  # the engine stores floats as fp16
    row = rule.number("row_bytes")
    return (
        None if size * rule.number("least_times") > row else {"name": name, "bytes": size, "times": f"{row / size:.3g}"}
    )


_TESTS: Mapping[str, Test] = {
    "kernel_dma": _kernel_dma,
    "conv_strides": _conv_strides,
    "palette_strides": _palette_strides,
    "pool_strides": _pool_strides,
    "dilations": _dilations,
    "linear_int4": _linear_int4,
    "input_weights": _input_weights,
}
