"""Finds why two programs differ at a layer: the rules in which they differ, and the evidence in the numbers."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, fsum, inf, log2
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import FP16, FP32
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value, topological
from hexane.graph.decisions import counted
from hexane.ops import LEAVES, OPS, evaluate
from hexane.program import Step
from hexane.report.culprit import FAR, Watched
from hexane.report.difference import Difference, difference
from hexane.report.losses import differing_elements, has_the_same_loss, have_one_order
from hexane.report.range_faults import Fault, fault_that_matters, find_faults, table_of
from hexane.report.trial import (
    SUMS,
    Change,
    added_by_a_product,
    as_tried,
    better,
    can_split,
    changed,
    has_bias,
    product_in,
    scaled,
    split,
)
from hexane.runtime import Model
from hexane.runtime.debug import stop_at
from hexane.runtime.observe import Observation, tapped
from hexane.runtime.products import LIMIT, Sum, by_winograd, has_products, kind_of, sum_of
from hexane.stages.engine.rules import IN_SENTENCES, PORT_CAST, STATUSES
from hexane.targets import Chip
from hexane.targets.activations import Activation
from hexane.targets.kernels import kernels
from hexane.validate.hazards import hazard

SAMPLES = 16  # Elements of a product that are examined one by one.
HEADROOM = LIMIT / 2
MOST_PARTS = 8  # A report advises to split a product into at most this many parts.
MOST_IN_FRONT = 8  # Layers before a layer whose products may be scaled with the layer's.
ORDINALS = {2: "second", 4: "fourth", 8: "eighth"}


class Cause(NamedTuple):
    """A cause. kind: slice, overflow, vanished, winograd, dropped, rounding, table, reduction, q31, fp16, magnified or
    accumulated. where: the op; evidence: from the numbers of this run; change: the remedy, with the
    result of a trial if it was tried."""

    kind: str
    where: str
    why: str
    evidence: str
    change: str


@dataclass(frozen=True)
class Run:
    """A program and the values of a run. chip: None for the model in its own dtypes. layers: by the number of the
    node in the user's graph. outputs: by name. again: runs another graph, with its intermediate values observed, on the
    same target and inputs. watch: runs the program with some results replaced. feeds: the inputs by name."""

    name: str
    chip: Chip | None
    net: Model
    seen: Observation
    layers: Mapping[int, Value]
    steps: Mapping[int, Step]  # id of a node -> its step
    outputs: Mapping[str, Array]
    again: "Callable[[Graph], Run]"
    watch: Callable[[Mapping[Value, Array]], Watched]
    feeds: Mapping[str, Array]

    @property
    def label(self) -> str:
        """The name in reports."""
        return self.name if self.chip is None else self.chip.label

    def array(self, number: int) -> Array:
        return self.seen[self.layers[number]]

    def operands(self, node: Node) -> list[Array | None]:
        return [None if v is None else self.seen[v] for v in node.inputs]


class _Part(NamedTuple):
    """A layer as computed from other layers: its steps in order, and the numbers of the layers that they read."""

    steps: list[Step]
    reads: list[int]


@dataclass(frozen=True)
class _Pair:
    """Two runs of the user's graph, and the number of the layer at which they differ."""

    graph: Graph
    number: int
    a: Run
    b: Run

    @property
    def node(self) -> Node:
        return self.graph.nodes[self.number]

    @property
    def difference(self) -> Difference:
        return difference(self.a.array(self.number), self.b.array(self.number))

    def both(self) -> list[tuple[Run, Array]]:
        """Returns each run with the layer's value in the other run."""
        return [(self.a, self.b.array(self.number)), (self.b, self.a.array(self.number))]

    def tolerated(self, change: str) -> str:
        """Returns advice to allow a tolerance. For a layer that is plainly wrong, returns that no remedy was found."""
        if self.difference.distance <= FAR:
            return change
        gap = self.difference
        size = f"{gap.max_abs:.2g} apart from zeros" if gap.distance == inf else f"{gap.distance:.2g}"
        far = f"{size} is more than a result loses when it is rounded"
        return f"none was found: {far}, and a tolerance would hide it"

    def product(self, step: Step, layer: int | None = None) -> Node | None:
        """Returns the user's product that the step computes. layer: the number of the step's layer; None: this one."""
        known = self.a.layers.keys() & self.b.layers.keys()
        return product_in(self.graph, self.number if layer is None else layer, known, step.node.sources)

    def products(self, steps: Sequence[tuple[int, Step]]) -> list[Node]:
        """Returns the user's products that these steps of layers compute; empty if one product is unknown."""
        nodes = [self.product(step, layer) for layer, step in steps]
        return [] if None in nodes else list(dict.fromkeys(node for node in nodes if node is not None))

    def tried(self, nodes: Sequence[Node], change: Change, run: Run) -> tuple[Difference, Difference] | None:
        """Returns how far this run is from the pair's other run, before and after the change of these nodes; None if
        the changed network does not compile. A model in its own dtypes keeps the numbers of the unchanged model."""
        other = self.b if run is self.a else self.a
        graph = changed(tapped(self.graph), nodes, change)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # the user has got these warnings before
                own = run.again(graph)
                compared = other if other.chip is None else other.again(graph)
            after = difference(own.array(self.number), compared.array(self.number))
        except (Error, KeyError):
            return None
        return difference(run.array(self.number), other.array(self.number)), after


def cause_of(graph: Graph, number: int, a: Run, b: Run, exact: bool = False) -> Cause:
    """Returns why a layer differs between two runs. exact: the layer's operands are exact in the first run, so only the
    layer's own steps can be the cause."""
    parts = {run.name: _part(run, number, a.layers.keys() & b.layers.keys()) for run in (a, b)}
    node, arrays, pair = graph.nodes[number], (a.array(number), b.array(number)), _Pair(graph, number, a, b)
    if result := _slice(node, a, b):
        return result
    if difference(*arrays).overflows and (result := _overflow(pair, a, parts[a.name])):
        return result
    if difference(*reversed(arrays)).overflows and (result := _overflow(pair, b, parts[b.name])):
        return result
    faults = {run.name: find_faults(run.steps, run.seen, run.layers[number]) for run in (a, b)}
    if exact:
        own = _own_steps(a, number, a.layers.keys() & b.layers.keys())
        faults = {a.name: [fault for fault in faults[a.name] if id(fault.step) in own], b.name: []}
    if result := _left_range(pair, parts, faults, overflow=True):
        return result
    return (
        _winograd(pair, parts)
        or _accumulated(pair, parts[a.name])
        or _products(pair, a, parts)
        or _products(pair, b, parts)
        or _left_range(pair, parts, faults, overflow=False)
        or _magnified(pair, parts)
        or _other(pair, parts)
    )


REDUCES = ("layer_norm", "rms_norm", "l2_norm", "instance_norm", "group_norm", "mean_variance_norm", "lp_norm")


def doubted(node: Node, why: str) -> str:
    """Returns the cause with the remark that rounding is inferred, if the op is a reduction or a norm."""
    op = node.op.removeprefix("anec.")
    if not (op.startswith("reduce_") or op in REDUCES):
        return why
    page = "docs/numerics/sums.md"
    return f"{why}; where chips round sums is inferred ({page}), `hexane doctor --report` on a Mac settles it"


DIVIDES = ("real_div", "div", "inverse", "rsqrt")


def by_a_power(overflow: bool, node: Node) -> str:
    """Returns advice, not tried, for numbers that this op turns into infinity or into 0."""
    if overflow and _divides(node):
        return f"{TOO_SMALL_A_DIVISOR}: by a power of two that is undone where numbers are small again (not tried)"
    wanted, where = ("smaller", "small") if overflow else ("larger", "large")
    if exponential := _exponential(node):
        how = "subtract their largest" if overflow else "add to them"
        return (
            f"the numbers that {exponential} reads have to be {wanted}: {how} before it, and undo this after the"
            " logarithm, or in both parts of the quotient that follows (not tried)"
        )
    return (
        f"the numbers that this op reads have to be {wanted}: multiply them by a power of two in front of the op, and"
        f" undo this where numbers are {where} again; products, sums and powers then compute the same (not tried)"
    )


def _exponential(node: Node) -> str:
    """Returns the exponential that the node computes, by itself or fused after its sum; "" for none."""
    fused = [slot.op for slot in node.attrs.get("epilogue") or ()]
    return next((op for op in (kind_of(node), *fused) if op in EXPONENTIALS), "")


EXPONENTIALS = ("exp", "exp2")
TOO_SMALL_A_DIVISOR = "the divisor of this op has to be larger, or its dividend smaller"


def _divides(node: Node) -> bool:
    return kind_of(node) in DIVIDES


CANCELS = (
    "fp16 has 11 bits: take no differences of numbers that nearly cancel (a variance is the mean of (x - mean)^2,"
    " not E[x^2] - E[x]^2), remove a common offset in front of the network, and keep what goes into log, rsqrt and"
    " division away from 0 (not tried)"
)


def _own_steps(run: Run, number: int, shared: set[int]) -> set[int]:
    """Returns by id the steps between a layer and the nearest earlier layers without infinities."""
    result, waiting, met = set[int](), [number], set[int]()
    while waiting:
        layer = waiting.pop()
        if layer in met:
            continue
        met.add(layer)
        part = _part(run, layer, shared)
        result.update(id(step) for step in part.steps)
        waiting += [n for n in part.reads if not np.isfinite(run.array(n).astype(np.float64)).all()]
    return result


def _part(run: Run, number: int, shared: set[int]) -> _Part:
    target = run.seen.source(run.layers[number])
    sources = {run.seen.source(value): n for n, value in run.layers.items() if n in shared}
    known = {value: n for value, n in sources.items() if value != target}
    reads: dict[int, None] = {}
    nodes: dict[int, Step] = {}
    stack, met = [target], set[Value]()
    while stack:
        value = stack.pop()
        if value in met:
            continue
        met.add(value)
        if value in known:
            reads[known[value]] = None
        elif value.node.op not in LEAVES:
            if id(value.node) in run.steps:
                nodes[id(value.node)] = run.steps[id(value.node)]
            stack += [v for v in value.node.inputs if v is not None]
    return _Part([step for key, step in run.steps.items() if key in nodes], list(reads))


def _slice(node: Node, a: Run, b: Run) -> Cause | None:
    dangers = {run.label: hazard(node, run.chip) for run in (a, b) if run.chip is not None}
    dangerous = [(name, danger) for name, danger in dangers.items() if danger is not None]
    if not dangerous or len(dangerous) == 2:
        return None
    name, danger = dangerous[0]
    return Cause("slice", node.where, f"{name}: {danger.reason} ({danger.source})", "", slice_change())


def slice_change() -> str:
    return "slice along another axis: transpose before the slice and back after it (not tried)"


def _overflow(pair: _Pair, run: Run, part: _Part) -> Cause | None:
    for step in part.steps:
        array, operands = run.seen[step.node.values[0]], run.operands(step.node)
        stop = stop_at(0, step, array, operands)
        if stop is None:
            continue
        product = pair.product(step) if has_products(step.node) else None
        change = ""
        if product is not None:
            factor = _down(step, array, operands)
            change = (
                _by_scaling(pair, [product], 1 / factor, run)
                or _by_splitting(pair, product, factor, run)
                or _all_smaller(pair, part, run)
            )
        where = step.node.where if product is None else product.where
        evidence = f"element {list(stop.index)} of {stop.type} is {stop.value}"
        wanted = TOO_SMALL_A_DIVISOR if _divides(step.node) else "the numbers that this op reads have to be smaller"
        if _exponential(step.node):
            change = change or by_a_power(True, step.node)
        change = change or f"no change that keeps what the network computes is known to help: {wanted}"
        return Cause("overflow", where, f"{run.label}: {stop.why}", evidence, change)
    return None


def _all_smaller(pair: _Pair, part: _Part, run: Run) -> str:
    """Returns the advice to scale all overflowing products of the layer and of earlier layers; "" for a single
    product, or if scaling does not help."""
    own: list[tuple[int, Step, Array]] = []
    for layer, step in _also_in_front(pair, run, part):
        array = run.seen[step.node.values[0]]
        is_over = has_products(step.node) and not np.isfinite(array.astype(np.float64)).all()
        if is_over and stop_at(0, step, array, run.operands(step.node)) is not None:
            own.append((layer, step, array))
    products = pair.products([(layer, step) for layer, step, _ in own])
    if len(products) < 2:
        return ""
    return _by_scaling(pair, products, 1 / max(_down(s, array, run.operands(s.node)) for _, s, array in own), run)


def _left_range(
    pair: _Pair, parts: Mapping[str, _Part], faults: Mapping[str, Sequence[Fault]], overflow: bool
) -> Cause | None:
    """Returns the cause if a number overflowed, or vanished, in a step before the layer and changed the layer."""
    for run, other in pair.both():
        own = [fault for fault in faults[run.name] if fault.overflow == overflow]
        broken = fault_that_matters(own, run.seen, run.layers[pair.number], other)
        if broken is not None:
            return _of_fault(pair, run, parts[run.name], *broken)
    return None


def _of_fault(pair: _Pair, run: Run, part: _Part, fault: Fault, after: float) -> Cause:
    """Returns the cause of a fault. after: the distance of the layer without the fault."""
    step = fault.step
    product = has_products(step.node)
    known = product and fault.overflow and any(s is step for s in part.steps)
    if known and (result := _overflow(pair, run, _Part([step], part.reads))):  # `_overflow` also finds a remedy
        return result
    gap = pair.difference
    now = f"{gap.overflows} of {gap.size} numbers infinite" if gap.overflows else f"{gap.distance:.2g}"
    evidence = f"{fault.evidence}; without it this layer would be {after:.2g} apart, not {now}"
    change = by_a_power(fault.overflow, step.node)
    stop = stop_at(0, step, run.seen[step.node.values[0]], run.operands(step.node))
    said = fault.words if stop is None else stop.why if product else f"{fault.words} ({stop.why})"
    kind = "overflow" if fault.overflow else "vanished"
    user = pair.product(step) if product and any(s is step for s in part.steps) else None
    where = step.node.where if user is None else user.where
    return Cause(kind, where, doubted(step.node, f"{run.label}: {where}: {said}"), evidence, change)


def _by_scaling(pair: _Pair, products: Sequence[Node], factor: float, run: Run) -> str:
    """Returns the advice to scale the products' inputs by a common factor; "" if scaling does not help."""
    tried = None if factor == 1 or not products else pair.tried(products, scaled(factor), run)
    if tried is None or not better(tried[1], tried[0]):
        return ""
    up, down = (f"{factor:g}", f"1/{factor:g}") if factor > 1 else (f"1/{1 / factor:g}", f"{1 / factor:g}")
    several, biased = len(products) > 1, [has_bias(product) for product in products]
    bias = "" if not any(biased) else " and the biases" if several else " and the bias"
    where = " and of ".join(product.where for product in products)
    reads, results = ("inputs", "their results") if several else ("input", "its result")
    return f"scale the {reads}{bias} of {where} by {up} and {results} by {down} ({as_tried(*tried)})"


def _by_splitting(pair: _Pair, product: Node, parts: int, run: Run) -> str:
    """Returns the advice to split a product into a sum of several; "" if splitting does not help."""
    if parts > MOST_PARTS or not can_split(product, parts):
        return ""
    tried = pair.tried([product], split(parts), run)
    if tried is None or not better(tried[1], tried[0]):
        return ""
    return (
        f"add {parts} products in place of {product.where}: each has the weights of every {ORDINALS[parts]} channel"
        f" that is added, and zeros for the others ({as_tried(*tried)})"
    )


def _down(step: Step, array: Array, operands: list[Array | None]) -> int:
    """Returns the power of two by which the overflowed sums must shrink."""
    over = np.flatnonzero(~np.isfinite(array))
    picked = over[np.linspace(0, over.size - 1, min(SAMPLES, over.size)).astype(int)]
    sums = [sum_of(step.node, _index(at, array), operands) for at in picked]
    peak = max(float(np.abs(s.bias + np.cumsum(s.products)).max(initial=abs(s.bias))) for s in sums)
    return int(2 ** max(1, ceil(log2(peak / HEADROOM))))


def _winograd(pair: _Pair, parts: Mapping[str, _Part]) -> Cause | None:
    a, b = pair.a, pair.b
    steps = {run.name: [s for s in parts[run.name].steps if by_winograd(s)] for run in (a, b)}
    with_it = [run for run in (a, b) if steps[run.name]]
    if len(with_it) != 1 or any(run.chip is None for run in (a, b)):
        return None
    (run,) = with_it
    other = b if run is a else a
    step = steps[run.name][0]
    why = (
        f"{run.label} computes this 3x3 convolution by Winograd's F(2, 3), whose transforms are rounded to fp16;"
        f" {other.label} adds its products directly"
    )
    array, operands = run.seen[step.node.values[0]], run.operands(step.node)
    plain = evaluate(step.node, operands)[0].astype(np.float64)
    distance = difference(array, plain)
    evidence = f"{run.label} is {distance.relative_l2:.2g} (relative L2) from the exact sums of its operands"
    change = (
        "nothing in the network is wrong: allow a tolerance between these chips; Hexane adds other kernel sizes and"
        f" strides directly on both; what {run.label} does there is not known"
    )
    return Cause("winograd", step.node.where, why, evidence, pair.tolerated(change))


def _accumulated(pair: _Pair, part: _Part) -> Cause | None:
    """Returns the cause if an operand of the layer differs by at least half as much as the layer itself."""
    graph, number, a, b = pair.graph, pair.number, pair.a, pair.b
    own = difference(a.array(number), b.array(number)).relative_l2
    gap = {n: difference(a.array(n), b.array(n)).relative_l2 for n in part.reads}
    most = max(gap, key=lambda n: gap[n], default=None)
    if most is None or gap[most] < own / 2:
        return None
    why = "its inputs already differ as much: small differences add up from layer to layer"
    evidence = f"{graph.nodes[most].where} in front of it is {gap[most]:.2g} apart (relative L2), this layer {own:.2g}"
    change = "look for the layer where the relative L2 grows most (--plot)"
    change += ", or allow a larger --tolerance" if own <= FAR else ""
    return Cause("accumulated", graph.nodes[number].where, why, evidence, change)


def _products(pair: _Pair, run: Run, parts: Mapping[str, _Part]) -> Cause | None:
    """Returns the cause if the loss of the engine's products explains the layer's difference.

    The loss is measured at the elements furthest from their exact sums, of those in which the runs differ. If no change
    is known to help, the loss must also explain half of the layer's distance. A loss that both chips have is no cause.
    """
    part, differing = parts[run.name], differing_elements(pair.a.array(pair.number), pair.b.array(pair.number))
    other = pair.b if run is pair.a else pair.a
    losses = [loss for step in part.steps if (loss := _loss(step, run, differing)) is not None]
    for step, array, worst, sums, kind in losses:
        operands = run.operands(step.node)
        if any(has_the_same_loss(step, operands, s, other.operands(s.node)) for s in parts[other.name].steps):
            continue
        first, factor = sums[0], _up(array, operands, sums)
        count = int(first.dropped.sum())
        evidence = (
            f"element {list(_index(worst[0], array))}: the exact sum is {first.exact:g}; {count} of"
            f" {len(first.products)} products are dropped, which takes {first.lost_by_drops:g}, and rounding takes"
            f" {first.lost_by_rounding:g}"
        )
        why = {
            "dropped": f"{run.label}: tiny products become zero, those whose factors' exponents add up to -17 or less",
            "rounding": f"{run.label} rounds every product to a multiple of 2^-16",
        }[kind]
        product = pair.product(step)
        change = "" if product is None else _by_scaling(pair, [product], factor, run)
        change = change or _all_larger(pair, run, part)
        if not change and not _is_most(pair, run, part):
            continue
        where = step.node.where if product is None else product.where
        change = change or (
            "these numbers leave no room to scale up, and no other change that keeps what the network computes is known"
            if factor == 1
            else f"scaling its input by {factor} and its result by 1/{factor} was tried and does not help"
            + (": allow a tolerance" if pair.difference.distance <= FAR else "")
        )
        return Cause(kind, where, why, evidence, change)
    return None


class _Loss(NamedTuple):
    """A step whose products lose more than the rounding of its result. worst: flat indices of the elements furthest
    from their exact sums; sums: how these elements were computed; kind: dropped or rounding."""

    step: Step
    array: Array
    worst: Array
    sums: list[Sum]
    kind: str


def _loss(step: Step, run: Run, differing: Array | None = None) -> _Loss | None:
    """Returns what the step's products lose; None for a small loss. differing: a mask of the layer's elements; if the
    step's result has the layer's elements, only the masked ones are examined."""
    if step.numerics.family != "engine" or not has_products(step.node) or by_winograd(step):
        return None
    array, operands = run.seen[step.node.values[0]], run.operands(step.node)
    off = np.abs(array.astype(np.float64) - evaluate(step.node, operands)[0]).reshape(-1)
    worst = np.argsort(-off, kind="stable")
    if differing is not None and have_one_order(differing.shape, array.shape):
        worst = worst[differing.reshape(-1)[worst]]
    worst = worst[:SAMPLES]
    sums = [sum_of(step.node, _index(at, array), operands) for at in worst]
    lost = {
        "dropped": fsum(abs(s.lost_by_drops) for s in sums),
        "rounding": fsum(abs(s.lost_by_rounding) for s in sums),
    }
    kind = max(lost, key=lambda name: lost[name])
    return _Loss(step, array, worst, sums, kind) if lost[kind] > 0 and lost[kind] >= 0.5 * off[worst].sum() else None


def _all_larger(pair: _Pair, run: Run, part: _Part) -> str:
    """Returns the advice to scale all lossy products of the layer and of earlier layers; "" for a single product, or
    if scaling does not help."""
    steps = _also_in_front(pair, run, part)
    losses = [(layer, loss) for layer, step in steps if (loss := _loss(step, run)) is not None]
    products = pair.products([(layer, loss.step) for layer, loss in losses])
    if len(products) < 2:
        return ""
    factor = min(_up(loss.array, run.operands(loss.step.node), loss.sums) for _, loss in losses)
    return _by_scaling(pair, products, factor, run)


def _also_in_front(pair: _Pair, run: Run, part: _Part) -> list[tuple[int, Step]]:
    """Returns the steps of the layer and of up to MOST_IN_FRONT layers before it, each with its layer's number."""
    shared = pair.a.layers.keys() & pair.b.layers.keys()
    by_step = {id(step): (pair.number, step) for step in part.steps}
    waiting, met = list(part.reads), set[int]()
    while waiting and len(met) < MOST_IN_FRONT:
        layer = waiting.pop(0)
        if layer not in met:
            met.add(layer)
            own = _part(run, layer, shared)
            for step in own.steps:
                by_step.setdefault(id(step), (layer, step))
            waiting += own.reads
    return list(by_step.values())


def _is_most(pair: _Pair, run: Run, part: _Part) -> bool:
    """True if exact products, and exact ops after them, would halve the layer's distance."""
    other = pair.b if run is pair.a else pair.a
    products = [step.node for step in part.steps if has_products(step.node)]
    if any(slot.operand is None for node in products for slot in node.attrs.get("epilogue", ())):
        return False  # the sums before an epilogue are not observed
    lossy = {node.values[0]: run.seen[node.values[0]] for node in products}
    exact = {node.values[0]: evaluate(node, run.operands(node))[0] for node in products}
    layer = run.layers[pair.number]
    lost = difference(_after(run, lossy, layer), _after(run, exact, layer))
    return lost.relative_l2 >= 0.5 * difference(run.array(pair.number), other.array(pair.number)).relative_l2


def _after(run: Run, arrays: Mapping[Value, Array], layer: Value) -> Array:
    """Returns the layer's value, computed by the reference implementations from these arrays in place of their
    values."""
    known = dict(arrays)
    for node in topological([layer]):
        if not any(v in known for v in node.values) and any(v in known for v in node.inputs):
            operands = [None if v is None else known[v] if v in known else run.seen[v] for v in node.inputs]
            known.update(zip(node.values, evaluate(node, operands), strict=True))
    return known[layer]


def _up(array: Array, operands: list[Array | None], sums: list[Sum]) -> int:
    """Returns the power of two by which x can grow while sums and input stay in range."""
    peak = max(
        [
            float(np.abs(array.astype(np.float64)).max(initial=0)),
            *(float(np.abs(s.partial).max(initial=0)) for s in sums),
        ]
    )
    x = np.abs(operands[0].astype(np.float64)).max(initial=0)  # type: ignore[union-attr]
    room = min(HEADROOM / max(peak, 1e-30), 2 * HEADROOM / max(float(x), 1e-30))
    return int(2 ** min(max(floor(log2(room)), 0), 12))  # a chip would leave a larger factor to the host


def _magnified(pair: _Pair, parts: Mapping[str, _Part]) -> Cause | None:
    """Returns the cause if the layer's steps are right for their operands, but the layer enlarges small differences of
    its operands."""
    gap = pair.difference
    if gap.distance <= FAR:
        return None
    own = max((_off(run, step) for run in (pair.a, pair.b) for step in parts[run.name].steps), default=0.0)
    if own == inf or own > gap.distance / 4:  # inf: the exact result is 0
        return None
    reads = {
        n: difference(pair.a.array(n), pair.b.array(n)).distance
        for n in parts[pair.a.name].reads
        if n in pair.a.layers and n in pair.b.layers
    }
    most = max(reads, key=lambda n: reads[n], default=None)
    source = "its inputs, rounded to fp16" if most is None else pair.graph.nodes[most].where
    far = "" if most is None else f", {reads[most]:.2g} apart (relative L2)"
    why = (
        f"each step of this layer is right (within {own:.2g} of the exact result for its operands), but the layer"
        f" enlarges small differences of its inputs: from {source}{far}, to {gap.distance:.2g}"
    )
    return Cause("magnified", pair.node.where, why, _furthest(pair.graph, pair.number, pair.a, pair.b, None), CANCELS)


def _off(run: Run, step: Step) -> float:
    """Returns the distance of a step from the exact result for its operands: relative L2, or the share of elements."""
    array = run.seen[step.node.values[0]]
    return difference(array, evaluate(step.node, run.operands(step.node))[0]).distance


def _other(pair: _Pair, parts: Mapping[str, _Part]) -> Cause:
    """Returns a cause that names the arithmetic of both runs in this layer."""
    graph, number, a, b = pair.graph, pair.number, pair.a, pair.b
    node = graph.nodes[number]
    one, other = (_arithmetic(run, parts[run.name]) for run in (a, b))
    why = f"{a.label}: {one}. {b.label}: {other}"
    if one == other and one.words:
        constant = _other_constant(a, b, parts)
        why = f"both compute the same steps{constant and f', with other constants: {constant}'}. Each: {one}"
    elif one.words and other.words and None not in (one.roundings, other.roundings):
        why = f"the chips round at other places. {why}"
    kind, change = "fp16", "nothing: results are rounded to fp16, 11 bits; allow a tolerance"
    steps = [step for part in parts.values() for step in part.steps if step.numerics.family == "engine"]
    table = next((found for step in steps if (found := table_of(step)) is not None), None)
    if table is not None:
        kind, change = (
            "table",
            "nothing in the network is wrong: the chip reads this function from a table; allow a tolerance",
        )
    elif any(_in_q31(step) for part in parts.values() for step in part.steps):
        kind, change = (
            "q31",
            (
                "nothing in the network is wrong: integers may be a step apart where sums fall between two; allow a"
                " tolerance"
            ),
        )
    elif steps and node.op.startswith("reduce_"):
        kind = "reduction"
        tried = pair.tried([node], added_by_a_product, a) if node.op in SUMS else None
        if tried is not None and better(tried[1], tried[0]):
            change = f"add by a product with ones instead ({as_tried(*tried)})"
    change = change if change.startswith("add by") else pair.tolerated(change)
    return Cause(kind, node.where, why, _furthest(graph, number, a, b, table), change)


def _furthest(graph: Graph, number: int, a: Run, b: Run, table: Activation | None) -> str:
    """Describes the element with the largest distance, with its operand if the element depends on one number."""
    x, y = (run.array(number).astype(np.float64) for run in (a, b))
    with np.errstate(invalid="ignore"):
        at = _index(np.argmax(np.nan_to_num(np.abs(x - y), nan=np.inf)), x)
    said = f"element {list(at)}: {a.label} {x[at]:g}, {b.label} {y[at]:g}"
    node = graph.nodes[number]
    source = node.inputs[0]
    if not OPS[node.op].elementwise or len(node.inputs) != 1 or source is None or source.shape != x.shape:
        return said
    before = next((i for i, n in enumerate(graph.nodes) if n is source.node), -1)
    if before not in a.layers:
        return said
    operand, tail = float(a.array(before)[at]), ""
    if table is not None and table.reduction in ("none", "odd"):
        low, high = (-table.domain[1] if table.reduction == "odd" else table.domain[0]), table.domain[1]
        tail = "" if low <= operand <= high else f", in the tail of a table from {low:g} to {high:g}"
    return f"{said}, from {operand:g}{tail}"


class _Arithmetic(NamedTuple):
    """How a run computes a layer. words: phrases, in the order of the steps. roundings: the number of results that are
    rounded to fp16; None for a run that does not store fp16. is_least: more roundings follow inside of a step."""

    words: tuple[str, ...]
    roundings: int | None
    is_least: bool

    def __str__(self) -> str:
        words = "; ".join(self.words) or "computed with the layers next to it"
        if self.roundings is None or not self.words:
            return words
        count = counted(self.roundings, "rounding") if self.roundings else "no rounding"
        return f"{words}: {'at least ' if self.is_least else ''}{count}"


def _arithmetic(run: Run, part: _Part) -> _Arithmetic:
    """Returns the arithmetic of each step that computes: the program's decision, or without one the dtype of its
    result. Steps in a row with one rule share a phrase, as do steps in fp32 and the cast to fp16 behind them, which is
    their one rounding."""
    decided, moves = _decided(run), kernels("any")
    steps: list[tuple[str, str]] = []  # op and rule
    roundings, is_least = 0, False
    wide: list[tuple[str, str]] = []  # op and status of steps in fp32 before the next cast to fp16
    for step in part.steps:
        status, rule = decided.get(id(step), ("", ""))
        op, dtype = step.node.op.rpartition(".")[2], step.node.types[0].dtype
        if _in_q31(step):
            steps.append((op, "integers, by a multiplier in Q0.31 and a shift, rounded twice"))
            roundings += 2
        elif op == "cast" and dtype is FP16 and wide:
            weakest = max((known for _, known in wide), key=list(STATUSES).index)
            steps.append((" and ".join(name for name, _ in wide), f"in fp32, then one rounding to fp16 ({weakest})"))
            roundings, wide = roundings + 1, []
        elif rule == PORT_CAST.text:
            steps.append(("input", f"cast to fp16 by the CPU ({status})"))
            roundings += 1
        elif rule and op == "cast" and dtype is FP32:
            continue  # exact
        elif rule and dtype is FP32:
            wide.append((op, status))
        elif rule:
            steps.append((op, f"{rule} ({IN_SENTENCES.get(status, status)})"))
            roundings += "no rounding" not in rule and dtype is FP16
            is_least = is_least or any(word in rule for word in ("each step", "each rounded", "; then "))
        elif step.kernel not in moves:
            steps.append((op, f"{'IEEE arithmetic' if run.chip is None else 'on the CPU'}, stored as {dtype}"))
            roundings += dtype is FP16
    steps += [(op, f"in fp32 ({status})") for op, status in wide]
    words = [f"{', '.join(op for op, _ in alike)}: {rule}" for rule, alike in groupby(steps, key=lambda step: step[1])]
    in_fp16 = run.chip is not None or any(_in_q31(step) for step in part.steps)
    return _Arithmetic(tuple(words), roundings if in_fp16 else None, is_least)


def _decided(run: Run) -> dict[int, tuple[str, str]]:
    """Returns the status and the rule of each step by its id. Steps of one op and one place in the model have their
    decisions in the same order."""
    assert run.net.program is not None
    waiting: dict[str, list[str]] = {}
    for decision in run.net.program.decisions:
        if decision.stage == "numerics":
            waiting.setdefault(decision.node, []).append(decision.reason)
    moves, found = kernels("any"), dict[int, tuple[str, str]]()
    for step in run.net.program.steps:
        reasons = waiting.get(step.node.where)
        if reasons and step.kernel not in moves and step.kernel != "copy":
            status, _, rule = reasons.pop(0).partition(": ")
            found[id(step)] = status, rule
    return found


def _other_constant(a: Run, b: Run, parts: Mapping[str, _Part]) -> str:
    """Names the constant that differs most between the same steps of two runs; "" if all are equal."""
    found: list[tuple[float, str]] = []
    for one, other in zip(parts[a.name].steps, parts[b.name].steps, strict=False):
        for v, w in zip(one.node.inputs, other.node.inputs, strict=False):
            if v is None or w is None or v.node.op != "const" or w.node.op != "const" or v.shape != w.shape:
                continue
            x, y = a.seen[v].astype(np.float64), b.seen[w].astype(np.float64)
            far = np.nan_to_num(np.abs(x - y), nan=0)
            if far.size and far.max() > 0:
                at = _index(far.argmax(), far)
                op = one.node.op.rpartition(".")[2]
                found.append(
                    (float(far.max()), f"number {list(at)} of {op} is {x[at]:g} on {a.label}, {y[at]:g} on {b.label}")
                )
    return max(found)[1] if found else ""


def _in_q31(step: Step) -> bool:
    return step.kernel.startswith("q31_")


def _index(flat: Any, array: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(flat), array.shape))
