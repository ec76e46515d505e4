"""Runs one network as several chips compute it: how far outputs and layers differ, where the difference begins, why."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from itertools import combinations
from math import inf
from typing import Any, NamedTuple

import numpy as np

from hexane import sources
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Value
from hexane.graph.decisions import counted
from hexane.graph.printer import html_table, text_table
from hexane.ops import OPS
from hexane.passes.repair import repair as repaired
from hexane.passes.repair import repairs_of, without_repair
from hexane.report.break_cause import cause_of_break
from hexane.report.causes import Cause, Run, cause_of, slice_change
from hexane.report.culprit import FAR, Culprit, Watched, find_culprit, in_order
from hexane.report.difference import BUCKETS, RELATIVE, Difference, are_apart, difference, measures_of
from hexane.report.legend import legend
from hexane.report.model_ports import graph_for
from hexane.runtime import Model, compile
from hexane.runtime.observe import observe, tapped
from hexane.targets import Chip, Target, load_target
from hexane.validate.hazards import hazard

IEEE = "ieee"
Q31 = "q31"
SHOWN = 6  # A line names at most this many outputs.
TOLERANCE = 0.01  # Relative L2 from the model in its own dtypes. Between chips any different bit counts.
HEAD = ("layer", "op", "target", "differ", "max abs", "relative L2", "first overflow", *(f"ulps {b}" for b in BUCKETS))

MEANINGS = {
    "layer, op": (
        "number of the node in the graph, in which inputs and constants count, and its op; `hexane check --node` has"
        " other numbers, of ops alone; layers that compute outputs have rows too"
    ),
    "target": "A from B: the base does not have this layer, so A is compared with B",
    "differ": "number of elements that are not equal",
    "max abs": "largest absolute difference of numbers that are finite in both",
    "relative L2": "of the same numbers: norm of the difference, divided by the norm of the values",
    "first overflow": "index of the first element that is infinite or NaN here and not in the base",
    "ulps": "number of finite elements by their difference after rounding to fp16, in units in the last place",
}


@dataclass(frozen=True)
class ComparedLayer:
    """A layer of the user's network. base: the target to which other targets are compared: the comparison's base, or if
    the base has fused this layer into another one, the first target that has this layer. is_output: its value is an
    output of the network."""

    number: int
    node: Node
    base: str
    ranges: Mapping[str, tuple[float, float] | None]
    differences: Mapping[str, Difference]
    is_output: bool = False

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        ranges = {name: None if span is None else list(span) for name, span in self.ranges.items()}
        differences = {name: d.record() for name, d in self.differences.items()}
        return {
            "number": self.number,
            "op": self.node.op,
            "where": self.node.source,
            "type": str(self.node.types[0]),
            "base": self.base,
            "is_output": self.is_output,
            "ranges": ranges,
            "differences": differences,
        }


@dataclass(frozen=True)
class Output:
    """An output, and the distance of each target from the base. same_top: for outputs of scores (rows, classes): the
    number of rows whose largest score is of the same class, and the number of rows."""

    name: str
    differences: Mapping[str, Difference]
    same_top: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        result: dict[str, Any] = {"name": self.name}
        result["differences"] = {name: d.record() for name, d in self.differences.items()}
        if self.same_top:
            result["same_top"] = {name: list(counts) for name, counts in self.same_top.items()}
        return result

    def said(self, target: str) -> str:
        """probs: top-1 equal in 30 of 30 rows, largest absolute difference 0.0004."""
        top = self.same_top.get(target)
        first = (
            ""
            if top is None or self.differences[target].overflows
            else f"top-1 equal in {top[0]} of {counted(top[1], 'row')}, "
        )
        return f"{self.name}: {first}{self.differences[target]}"


@dataclass(frozen=True)
class Parting:
    """How two targets differ: the outputs beyond the tolerance, the first layer beyond it, and the cause.

    layer None: the outputs agree, or no layer that both targets have is beyond the tolerance. within: the first layer
    beyond the tolerance although all outputs agree. measure: of the outputs' distances. reason: why no op is to blame,
    if the outputs differ only where those of `second` are not finite.
    """

    first: str
    second: str
    tolerance: float
    layer: ComparedLayer | None = None
    difference: Difference | None = None
    cause: Cause | None = None
    outputs: tuple[str, ...] = ()
    within: ComparedLayer | None = None
    culprit: Culprit | None = None
    measure: str = RELATIVE
    reason: str = ""

    @property
    def differs(self) -> bool:
        return bool(self.outputs) or self.layer is not None

    def lines(self, labels: Mapping[str, str], others: Sequence[str] = ()) -> list[str]:
        """Returns the text. others: further targets that differ from `second` like the first target. labels: the
        targets' names."""
        pair = f"{', '.join(labels[name] for name in (self.first, *others))} compared with {labels[self.second]}"
        near = "the same numbers" if self.tolerance == 0 else f"{self.measure} at most {self.tolerance:g}"
        if self.layer is None or self.difference is None or self.cause is None:
            if self.reason:
                return [f"{pair}: outputs that differ: {', '.join(self.outputs)}", f"  {self.reason}"]
            if self.outputs:
                return [f"{pair}: outputs that differ: {', '.join(self.outputs)}; no layer that both have differs"]
            if self.within is None:
                return [f"{pair}: {near} in every output, and in every layer that both have"]
            where = f"{self.within.node.where} (layer {self.within.number})"
            agree = "all outputs are the same" if self.tolerance == 0 else f"{near} in every output"
            inner = (
                f"inner layers differ by more, the first is {where}, without effect on the outputs (--layers says why)"
            )
            return [f"{pair}: {agree}; {inner}"]
        d = self.difference
        if self.culprit is not None:
            before, after = self.culprit.before, self.culprit.after
            far = "infinite or NaN" if before == inf else f"{before:.2g} off (relative L2)"
            return [
                f"{pair}: outputs that differ: {', '.join(self.outputs)}; {self.cause.where} breaks the result",
                f"  proof: with exact inputs of {self.layer.node.where} (layer {self.layer.number}) the outputs are"
                f" {far}; with its exact result they are {after:.2g} off",
                *self._because,
            ]
        overflow = f", {d.overflows} overflow, the first at {list(d.overflow)}" if d.overflow is not None else ""
        head = (
            f"{pair}: first difference at {self.layer.node.where} (layer {self.layer.number}): {d.different} of"
            f" {d.size} numbers differ"
        )
        far = f", {RELATIVE} {d.relative_l2:.2g}" if d.finite and not d.counted else ""
        return [f"{head}{far}{overflow}", *self._because]

    @property
    def _because(self) -> list[str]:
        assert self.cause is not None
        seen = [f"  seen: {self.cause.evidence}"] if self.cause.evidence else []
        return [f"  why: {self.cause.kind}: {self.cause.why}", *seen, f"  change: {self.cause.change}"]

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        result: dict[str, Any] = {"targets": [self.first, self.second], "tolerance": self.tolerance, "layer": None}
        result["outputs"] = list(self.outputs)
        result |= {"reason": self.reason} if self.reason else {}
        if self.layer is not None and self.difference is not None and self.cause is not None:
            result |= {"layer": self.layer.number, "op": self.layer.node.op, "where": self.layer.node.source}
            result |= {"difference": self.difference.record(), "cause": self.cause._asdict()}
        if self.culprit is not None:
            before = None if self.culprit.before == inf else self.culprit.before
            result["culprit"] = {"layer": self.culprit.number, "before": before, "after": self.culprit.after}
        return result


@dataclass(frozen=True)
class Comparison:
    """The results of several targets for a network and its inputs. base: the target to which other targets are
    compared. missing: for each target the numbers of layers that it does not have. notes: known hazards that the
    numbers do not show. labels: the name of each target: "M1 (h13)". repaired: for each chip the
    number of places that `repair` rewrote."""

    name: str
    targets: tuple[str, ...]
    base: str
    layers: tuple[ComparedLayer, ...]
    partings: tuple[Parting, ...]
    missing: Mapping[str, tuple[int, ...]]
    notes: tuple[str, ...]
    labels: Mapping[str, str]
    outputs: tuple[Output, ...] = field(default=())
    repaired: Mapping[str, int] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """True if no two targets differ beyond the tolerance."""
        return not any(p.differs for p in self.partings)

    @property
    def refusal(self) -> str:
        """Which comparisons differ beyond the tolerance, and what allows it; "" if none does."""
        far = [p for p in self.partings if p.differs]
        if not far:
            return ""
        pairs = "; ".join(f"{self.labels[p.first]} and {self.labels[p.second]}" for p in far[:SHOWN])
        more = f"; {counted(len(far) - SHOWN, 'more pair')}" if len(far) > SHOWN else ""
        exact = any(p.tolerance == 0 for p in far)
        why = ": any bit that differs between chips counts, --tolerance 0.01 allows more" if exact else ""
        limits = ", ".join(dict.fromkeys(f"{p.tolerance:g}" for p in far if p.tolerance))
        beyond = f" beyond the tolerance {limits}" if limits and not exact else ""
        return f"exit code 3: these differ{beyond}: {pairs}{more}{why}"

    @property
    def first_lines(self) -> list[str]:
        """The distances of each target's outputs from the base's; targets with equal differences share a line."""
        shared: dict[object, list[str]] = {}
        for name in self.targets:
            if name != self.base:
                shared.setdefault(tuple(output.differences[name] for output in self.outputs), []).append(name)
        return [
            f"{self._called(names)} compared with {self.labels[self.base]}: {self._said(names[0])}"
            for names in shared.values()
        ]

    def _said(self, name: str) -> str:
        gap = [output for output in self.outputs if output.differences[name].different]
        if not gap and len(self.outputs) > SHOWN:
            return f"{counted(len(self.outputs), 'output')}, equal"
        if len(self.outputs) <= SHOWN:
            return "; ".join(output.said(name) for output in self.outputs)

        def size(output: Output) -> tuple[int, float]:
            d = output.differences[name]
            return -d.overflows, -d.distance

        worst = sorted(gap, key=size)[:SHOWN]
        more = counted(len(self.outputs) - len(worst), "more output")
        return f"{'; '.join(output.said(name) for output in worst)}; {more}"

    def rows(self) -> list[tuple[str, ...]]:
        """Returns the rows of the table under HEAD. Targets with equal differences share a row."""
        rows = []
        for layer in self.layers:
            shared: dict[Difference, list[str]] = {}
            for name, gap in layer.differences.items():
                shared.setdefault(gap, []).append(name)
            for d, names in shared.items():
                reference = "" if layer.base == self.base else f" from {self.labels[layer.base]}"
                first = "" if d.overflow is None else str(list(d.overflow))
                far = (
                    ("", "", *[""] * len(d.ulps))
                    if d.counted
                    else (d.number(d.relative_l2, 2), first, *map(str, d.ulps))
                )
                numbers = (str(d.different), d.number(d.max_abs, 3), *far)
                rows.append((str(layer.number), layer.node.where, self._called(names) + reference, *numbers))
        return rows

    @property
    def lines(self) -> list[str]:
        """The lines of text below the table."""
        shared: dict[object, list[Parting]] = {}
        for p in self.partings:
            where = (
                None
                if p.layer is None or p.cause is None
                else (p.layer.number, p.difference, p.cause.kind, p.cause.change)
            )
            within = None if p.within is None else p.within.number
            shared.setdefault((p.second, p.tolerance, where, p.outputs, within), []).append(p)
        lines = [
            line for alike in shared.values() for line in alike[0].lines(self.labels, [p.first for p in alike[1:]])
        ]
        for name, numbers in self.missing.items():
            if numbers:
                shown = ", ".join(map(str, numbers[:10])) + (", .." if len(numbers) > 10 else "")
                lines.append(
                    f"not compared on {self.labels[name]}, fused or written otherwise: {counted(len(numbers), 'layer')}"
                    f" ({shown})"
                )
        return [*lines, *self.notes]

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "model": self.name,
            "targets": list(self.targets),
            "labels": dict(self.labels),
            "base": self.base,
            "outputs": [output.record() for output in self.outputs],
            "layers": [layer.record() for layer in self.layers],
            "partings": [parting.record() for parting in self.partings],
            "missing": {name: list(numbers) for name, numbers in self.missing.items()},
            "notes": list(self.notes),
            "repaired": dict(self.repaired),
        }

    def to_json(self) -> str:
        return json.dumps(self.record(), indent=2, ensure_ascii=False)

    @property
    def legend(self) -> str:
        """The meanings of the table's columns."""
        return legend("columns", MEANINGS)

    @property
    def summary(self) -> str:
        others = [name for name in self.targets if name != self.base]
        inner = [bool(layer.differences) for layer in self.layers if not layer.is_output]  # true if compared
        some = "" if all(inner) else f"{sum(inner)} of "
        return (
            f"{self.name}: {counted(len(self.outputs), 'output')} and {some}{counted(len(inner), 'inner layer')} of"
            f" {self._called(others)} compared with {self._base()}"
        )

    def _base(self) -> str:
        label = self.labels[self.base]
        return f"{label} (the model's own dtypes on this CPU)" if self.base == IEEE else label

    @property
    def repairs(self) -> list[str]:
        """A line for the chips on which the model was repaired; chips with equally many places share it."""
        shared: dict[int, list[str]] = {}
        for name, count in self.repaired.items():
            if count:
                shared.setdefault(count, []).append(name)
        return [
            f"on {self._called(names)} with {counted(count, 'repair')} against overflow of fp16 (`hexane check` lists"
            f" {'it' if count == 1 else 'them'}, --repair off compares without)"
            for count, names in shared.items()
        ]

    def _called(self, names: Sequence[str]) -> str:
        return ", ".join(self.labels[name] for name in names)

    def __str__(self) -> str:
        head = [*self.first_lines, self.summary, *self.repairs]
        return "\n".join([*head, "", text_table(HEAD, self.rows()), "", self.legend, "", *self.lines])

    def __repr__(self) -> str:
        return f"<Comparison {self.summary}>"

    def _repr_html_(self) -> str:
        said = escape("\n".join([*self.first_lines, *self.lines]))
        return f"<p><b>{escape(self.summary)}</b></p><pre>{said}</pre>{html_table(HEAD, self.rows())}"


def compare(
    model: Any,
    targets: Sequence[str | Target],
    inputs: Mapping[str, Any],
    *,
    tolerance: float | None = None,
    layers: bool = False,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    repair: bool = True,
    name: str = "",
) -> Comparison:
    """Runs a model as each target computes it, and compares the outputs and every layer that they share.

    targets: chips in any spelling, computed in their engines' arithmetic; "ieee" (or "host") for the model in its own
    dtypes on this CPU; "q31" for the model with TFLite's arithmetic of quantised ops. Differences are from "ieee" if
    given, or else from the first target. tolerance: the largest distance of an output: relative L2, or for integers and
    bools the share of different elements. None means 0.01 from ieee, and no different bit between chips. layers: the
    tolerance holds for each layer too. repair: see hx.Options. model, input_shapes: see `preflight`. inputs: arrays by
    name; they fix free dims, and the values of inputs that decide shapes. name: the model's name in reports. Raises
    Error for fewer than two targets, for an unknown target, if the model does not compile for a target, and for inputs
    of another shape or dtype than the model's.
    """
    if tolerance is not None and not 0 <= tolerance < np.inf:
        raise Error(f"[compare] tolerance: got {tolerance}, need a number from 0 on")
    chips = {_name(target): target for target in reversed(targets)}  # keeps the first spelling of a target
    names = list(dict.fromkeys(_name(target) for target in targets))
    if len(names) < 2:
        raise Error(
            f"[compare] targets: got {', '.join(map(_label, targets)) or 'none'}, need at least two that differ"
        )
    feeds = {name: np.asarray(array) for name, array in inputs.items()}
    opened = sources.open_network(model, where="compare")
    graph, feeds = graph_for(opened, feeds, input_shapes)
    graph = graph if repair else without_repair(graph)
    runs = [_run(tapped(graph), chips[name], feeds) for name in names]
    base = next((run for run in runs if run.name == IEEE), runs[0])
    numbers = [n for n, node in enumerate(graph.nodes) if any(_computes(run, n, node) for run in runs)]
    table = {n: _layer(graph, n, runs, base) for n in numbers}
    limits = _Limits(tolerance, layers)
    own = base.outputs if base.name == IEEE else None
    if own is None and not all(np.isfinite(array).all() for array in feeds.values() if array.dtype.kind == "f"):
        own = _run(graph, IEEE, feeds).outputs
    pairs = [(b, a) if a.name == IEEE else (a, b) for a, b in combinations(runs, 2)]
    return Comparison(
        name or opened.name or graph.name,
        tuple(names),
        base.name,
        tuple(table.values()),
        tuple(_parting(graph, table, a, b, limits, own) for a, b in pairs),
        {run.name: tuple(n for n in numbers if n not in run.layers) for run in runs},
        tuple(_notes(graph, runs, feeds)),
        {run.name: run.label for run in runs},
        tuple(_output(name, runs, base) for name in base.outputs),
        {run.name: len(repairs_of(repaired(graph, run.chip))) for run in runs if run.chip is not None},
    )


def _name(target: str | Target) -> str:
    own = target.strip().lower() if isinstance(target, str) else target.name
    if own in (IEEE, "host"):
        return IEEE
    return Q31 if own == Q31 else load_target(target).name


def _label(target: str | Target) -> str:
    name = _name(target)
    return name if name in (IEEE, Q31) else load_target(target).label


def _run(graph: Graph, target: str | Target, feeds: Mapping[str, Array]) -> Run:
    """Runs a graph with observed intermediate values on a target."""
    name = _name(target)
    chip = None if name in (IEEE, Q31) else load_target(target)
    try:
        net = compile(graph, target="host" if chip is None else target, numerics="engine" if chip else name)
    except Error as error:
        raise Error(f"[compare] the model does not compile for {_label(target)}: {error}") from None
    assert isinstance(net, Model)
    assert net.program is not None
    program, core = net.program, net._core

    def watch(instead: Mapping[Value, Array]) -> Watched:
        seen, results = observe(core, program, feeds, instead=instead)
        return seen, {port.name: np.asarray(r) for port, r in zip(program.outputs, results, strict=True)}

    seen, outputs = watch({})
    steps = {id(step.node): step for step in net.program.steps if step.kernel != "copy"}
    own = chip if isinstance(chip, Chip) else None
    return Run(
        name, own, net, seen, seen.layers(), steps, outputs, lambda other: _run(other, target, feeds), watch, feeds
    )


def _computes(run: Run, number: int, node: Node) -> bool:
    """True if the run computes the layer, and does not only move another layer's result."""
    if number not in run.layers:
        return False
    moves = bool(OPS[node.op].moves) or OPS[node.op].view
    return not moves or id(run.layers[number].node) in run.steps


def _layer(graph: Graph, number: int, runs: Sequence[Run], base: Run) -> ComparedLayer:
    have = [run for run in runs if number in run.layers]
    base = base if base in have else have[0]
    ranges = {run.name: _range(run.array(number)) for run in have}
    differences = {r.name: difference(r.array(number), base.array(number)) for r in have if r is not base}
    node = graph.nodes[number]
    is_output = any(port.value.node is node for port in graph.outputs)
    return ComparedLayer(number, node, base.name, ranges, differences, is_output)


def _range(array: Array) -> tuple[float, float] | None:
    numbers = array.astype(np.float64)
    finite = numbers[np.isfinite(numbers)]
    return (float(finite.min()), float(finite.max())) if finite.size else None


def _output(name: str, runs: Sequence[Run], base: Run) -> Output:
    own = base.outputs[name]
    others = [run for run in runs if run is not base]
    tops = {run.name: same_top(run.outputs[name], own) for run in others}
    top = {target: place for target, place in tops.items() if place is not None}
    return Output(name, {run.name: difference(run.outputs[name], own) for run in others}, top)


def _is_scores(array: Array) -> bool:
    """True if the array has two axes and its rows are scores: several floats."""
    return array.ndim == 2 and array.dtype.kind == "f" and array.shape[0] > 0 and array.shape[1] > 1


def same_top(got: Array, want: Array) -> tuple[int, int] | None:
    """Returns in how many rows of scores `got` has its largest at a largest of `want`, and the number of rows. None if
    the arrays are no scores."""
    if not _is_scores(want):
        return None
    chosen = np.take_along_axis(want, np.argmax(got, 1)[:, None], 1)[:, 0]
    return int((chosen == want.max(1)).sum()), len(want)


class _Limits(NamedTuple):
    """tolerance: as given by the user. layers: true if the tolerance holds for layers too."""

    tolerance: float | None
    layers: bool


def _parting(
    graph: Graph, layers: Mapping[int, ComparedLayer], a: Run, b: Run, limits: _Limits, own: Mapping[str, Array] | None
) -> Parting:
    tolerance = limits.tolerance if limits.tolerance is not None else TOLERANCE if b.name == IEEE else 0.0
    outputs = tuple(name for name in a.outputs if are_apart(a.outputs[name], b.outputs[name], tolerance))
    both = [n for n in layers if n in a.layers and n in b.layers]
    if outputs and (reason := _not_finite(a, b, own, tolerance)):
        return Parting(a.name, b.name, tolerance, outputs=outputs, reason=reason)
    if outputs and b.name == IEEE and (broken := _broken(graph, layers, a, b, tolerance, outputs)) is not None:
        return broken
    number = next((n for n in both if are_apart(a.array(n), b.array(n), tolerance)), None)
    if number is None or not (outputs or limits.layers):
        within = None if number is None else layers[number]
        measure = measures_of(difference(a.outputs[name], b.outputs[name]) for name in a.outputs)
        return Parting(a.name, b.name, tolerance, outputs=outputs, within=within, measure=measure)
    d, cause = difference(a.array(number), b.array(number)), cause_of(graph, number, a, b)
    return Parting(a.name, b.name, tolerance, layers[number], d, _untolerated(cause, a, b), outputs)


def _not_finite(a: Run, b: Run, own: Mapping[str, Array] | None, tolerance: float) -> str:
    """Returns why no op is to blame if the outputs differ only where the model's own outputs are not finite, else "".
    own: the outputs of the model in its own dtypes; None if all inputs are finite and `b` is a chip."""
    if own is None or all(np.isfinite(array).all() for array in own.values() if array.dtype.kind == "f"):
        return ""
    for name, array in a.outputs.items():
        if b.name == IEEE:
            gap = difference(array, b.outputs[name])
            if gap.overflows or gap.distance > tolerance:
                return ""
        elif array.dtype.kind != "f" or (np.isfinite(own[name]) & ~_alike(array, b.outputs[name])).any():
            return ""
    kinds = {"infinite number": np.isinf, "NaN": np.isnan}
    held = []
    for name, array in b.feeds.items():
        for noun, are in kinds.items():
            if array.dtype.kind == "f" and (count := int(are(array).sum())):
                held.append(f"input {name} holds {f'{count} NaN' if noun == 'NaN' else counted(count, noun)}")
    return "; ".join([*held, "the outputs of the model in its own dtypes are not finite either"])


def _alike(x: Array, y: Array) -> Array:
    """Returns where two arrays have the same number or both NaN."""
    return np.asarray((x == y) | (np.isnan(x) & np.isnan(y)))


def _broken(
    graph: Graph, layers: Mapping[int, ComparedLayer], a: Run, b: Run, tolerance: float, outputs: tuple[str, ...]
) -> Parting | None:
    """Returns the layer of a chip's program that breaks the outputs, and why; None if no single layer does."""
    assert a.net.program is not None
    order = [step.node for step in a.net.program.steps]
    shared = in_order({n: a.layers[n] for n in layers if n in a.layers and n in b.layers}, order, a.seen)
    exact = {n: b.array(n) for n in shared}
    culprit = find_culprit(shared, exact, b.outputs, a.seen, a.watch, tolerance)
    if culprit is None or not culprit.breaks:
        return None
    own = replace(a, seen=culprit.seen)
    d, cause = (
        difference(own.array(culprit.number), b.array(culprit.number)),
        cause_of_break(graph, culprit.number, own, b),
    )
    return Parting(
        a.name, b.name, tolerance, layers[culprit.number], d, _untolerated(cause, a, b), outputs, None, culprit
    )


def _untolerated(cause: Cause, a: Run, b: Run) -> Cause:
    """Returns the cause, without advice to allow a tolerance if an output is too far off."""
    far = max((difference(a.outputs[name], b.outputs[name]).distance for name in a.outputs), default=0.0)
    if far <= FAR or "tolerance" not in cause.change or "would hide it" in cause.change:
        return cause
    change = f"none was found: an output is {far:.2g} off, and a tolerance would hide it"
    return cause._replace(change=change)


def _notes(graph: Graph, runs: Sequence[Run], feeds: Mapping[str, Array]) -> list[str]:
    """Returns remarks on slices whose large numbers a chip makes infinite, although the program that ran does not."""
    result = []
    for number, node in enumerate(graph.nodes):
        for run in runs:
            danger = hazard(node, run.chip) if run.chip is not None and number in run.layers else None
            if danger is None or run.chip is None or run.chip.hazards.width_slice_limit is None:
                continue
            sliced = run.array(number).astype(np.float64)
            over = np.flatnonzero(np.isfinite(sliced) & (np.abs(sliced) > run.chip.hazards.width_slice_limit))
            if over.size:
                first = [int(i) for i in np.unravel_index(over[0], sliced.shape)]
                result.append(
                    f"{run.label} would make {over.size} numbers of {node.where} infinite, the first at {first}:"
                    f" {danger.reason} ({danger.source}); the numbers above do not show it; {slice_change()}"
                )
    return result
