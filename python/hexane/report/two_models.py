"""Compares two files of one network on the same inputs, such as a converted model and its original: where the first
begins to differ from the second.

Both models run on the host in their own dtypes, and all results are kept. Results with equal numbers count as one
value, whatever their names, shapes and layouts. The difference begins between the last equal values and a wrong output.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor, inf, log10, prod
from typing import Any

import numpy as np

from hexane import sources
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Port, Value
from hexane.graph.decisions import counted
from hexane.graph.node import constant
from hexane.ops import LEAVES, evaluate_exactly
from hexane.report.difference import Difference, difference, measures_of
from hexane.report.model_ports import graph_for, ports_of_module
from hexane.runtime import Model, compile

MOST_EXACT = 64  # The most ops recomputed exactly, to tell faults of precision from faults of conversion.
MOST_NAMED = 4  # The most ops named in a list.
_QUANTISES = re.compile(r"(de)?quantize|(cpu\.)?(quantized|q31)_")  # ops of quantised models
_DECODES = re.compile(r"dequantize|decode_")  # ops that decode weights
FAR = 0.1  # No tolerance is advised for larger errors.
FEW = 8  # Results with fewer elements may be equal by chance.


@dataclass(frozen=True, slots=True)
class PairedOutput:
    """An output that both models have. difference: of the first model's output from the second's."""

    name: str
    other: str
    difference: Difference


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two models: its name, the last value that both models have, and in order the ops between this value
    and the wrong output."""

    model: str
    last: str
    ops: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        return {"model": self.model, "last": self.last, "ops": list(self.ops)}

    def __str__(self) -> str:
        more = f" and {len(self.ops) - MOST_NAMED} more" if len(self.ops) > MOST_NAMED else ""
        ops = ", ".join(self.ops[:MOST_NAMED]) + more if self.ops else "no op"
        return f"{self.model}: after {self.last}: {ops}"


@dataclass(frozen=True, slots=True)
class TwoModels:
    """Two compared models. shared: how many of the first model's `total` results the second has too. sides: the ops
    where the two differ; None if they agree. cause: in words."""

    names: tuple[str, str]
    outputs: tuple[PairedOutput, ...]
    shared: int
    total: int
    tolerance: float
    sides: tuple[Side, Side] | None = None
    cause: str = ""

    @property
    def ok(self) -> bool:
        return not any(one.difference.beyond(self.tolerance) for one in self.outputs)

    @property
    def lines(self) -> list[str]:
        different = [one for one in self.outputs if one.difference.beyond(self.tolerance)]
        count = counted(len(self.outputs), "output")
        if not different:
            far = (
                "the same numbers"
                if self.tolerance == 0
                else f"{measures_of(one.difference for one in self.outputs)} at most {self.tolerance:g}"
            )
            first = f"{self.names[0]} computes what {self.names[1]} does: {far} in {count}"
        else:
            first = f"{self.names[0]} differs from {self.names[1]} in {len(different)} of {count}"
        lines = [first]
        for one in self.outputs:
            name = one.name if one.name == one.other else f"{one.name} ({one.other})"
            d = one.difference
            lines.append(f"  output {name}: {d.measure} {d.number(d.distance, 3)} ({d})")
        of = f"{self.shared} of {self.names[0]}'s {counted(self.total, 'result')}"
        same = "with the same numbers" if self.tolerance == 0 else f"within {self.tolerance:g}"
        lines.append(f"  {of} {'has' if self.shared == 1 else 'have'} an equal in {self.names[1]}, {same}")
        if self.sides is not None:
            lines += ["they differ from here on:", *(f"  {side}" for side in self.sides)]
        return lines + ([self.cause] if self.cause else [])

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {
            "models": list(self.names),
            "ok": self.ok,
            "tolerance": self.tolerance,
            "outputs": [
                {"name": o.name, "other": o.other, "distance": None if o.difference.distance == inf or
                 not o.difference.finite else o.difference.distance, **o.difference.record()} for o in self.outputs
            ],
            "shared": self.shared,
            "results": self.total,
            "sides": [] if self.sides is None else [side.record() for side in self.sides],
            "cause": self.cause,
        }  # fmt: skip


def plain(name: str) -> str:
    """Returns the letters and digits of a name, as converters change the other characters."""
    return re.sub(r"[^0-9a-z]", "", name.lower())


def open_other(other: sources.Module, arrays: Mapping[str, Array]) -> tuple[Graph, dict[str, Array]]:
    """Returns the graph of the second model, and its inputs: the first model's, matched by name or else by order.

    Raises Error for inputs that have no counterpart."""
    ports, _, _ = ports_of_module(other)
    by_name = {plain(name): array for name, array in arrays.items()}
    if all(plain(port.name) in by_name for port in ports):
        by_port = {port.name: by_name[plain(port.name)] for port in ports}
    elif len(ports) == len(arrays):
        by_port = {port.name: array for port, array in zip(ports, arrays.values(), strict=True)}
    else:
        need = f"{', '.join(port.name for port in ports)}, as {other.name or 'the other model'} has"
        raise Error(f"[compare] --with: got the inputs {', '.join(arrays)}, need {need}")
    where = f"{other.name or 'model'}: input"
    fitted = {
        port.name: _fitted(by_port[port.name], port.shape, port.dtype.numpy, f"{where} {port.name!r}") for port in ports
    }
    return graph_for(other, fitted)


def _fitted(array: Array, shape: Sequence[Any], dtype: Any, where: str) -> Array:
    """Returns an array in another port's dtype and shape. An image becomes channels, rows and columns. where: the port,
    in an Error."""
    fixed = [d for d in shape if isinstance(d, int)]
    if len(fixed) == len(shape) and tuple(array.shape) != tuple(shape):
        if array.ndim == 3 and len(shape) == 4 and tuple(shape[1:]) == (array.shape[2], *array.shape[:2]):
            array = array.transpose(2, 0, 1)
        if array.size != prod(fixed):
            raise Error(f"[compare] --with: {where}: got the first model's shape {array.shape}, need {tuple(shape)}")
        array = array.reshape(fixed)
    with np.errstate(over="ignore"):
        return np.asarray(array, dtype, order="C")


@dataclass(frozen=True, slots=True)
class _Run:
    """A run of one model. arrays: all results, in the order of the ops."""

    name: str
    graph: Graph
    arrays: Mapping[Value, Array]

    def label(self, value: Value) -> str:
        if value.node.op == "input":
            return f"input {value.node.attrs['name']}"
        source = value.node.source
        return f"{value.node.op} at {source}" if source else value.node.op


def _run(graph: Graph, name: str, feeds: Mapping[str, Array]) -> _Run:
    """Runs a graph on the host with every result as an output."""
    values = dict.fromkeys(v for node in graph.nodes if node.op not in LEAVES for v in node.values)
    ports = tuple(Port(f"result{i}", value) for i, value in enumerate(values))
    net = compile(Graph(graph.inputs, ports, name=graph.name, updates=graph.updates), numerics="ieee")
    assert isinstance(net, Model)
    returned: Any = net({key: np.asarray(array, order="C") for key, array in feeds.items()})
    named = returned if isinstance(returned, dict) else {ports[0].name: returned}
    arrays = {port.value: np.array(named[port.name]) for port in ports}
    given = {v: feeds[str(v.node.attrs["name"])] for v in graph.inputs if str(v.node.attrs["name"]) in feeds}
    return _Run(name, graph, {**given, **arrays})


def compare_models(
    first: tuple[str, Graph, Mapping[str, Array]], second: tuple[str, Graph, Mapping[str, Array]], tolerance: float
) -> TwoModels:
    """Compares two models. first, second: name, graph and inputs. tolerance: relative L2, or the share of different
    integers."""
    a, b = (_run(graph, name, feeds) for name, graph, feeds in (first, second))
    outputs = _paired(a, b)
    pairs = _shared(a, b, tolerance)
    total = sum(v.node.op != "input" for v in a.arrays)
    shared = sum(v.node.op != "input" for v in pairs)
    names = a.name, b.name
    wrong = next((one for one in outputs if one.difference.beyond(tolerance)), None)
    if wrong is None:
        return TwoModels(names, outputs, shared, total, tolerance)
    ends = (_output(a.graph, wrong.name), _output(b.graph, wrong.other))
    regions = _region(ends[0], pairs.keys()), _region(ends[1], set(pairs.values()))
    sides = tuple(_side(run, region, end) for run, region, end in zip((a, b), regions, ends, strict=True))
    return TwoModels(
        names, outputs, shared, total, tolerance, (sides[0], sides[1]), _cause(a, b, regions, ends, tolerance)
    )


def _output(graph: Graph, name: str) -> Value:
    return next(port.value for port in graph.outputs if port.name == name)


def _paired(a: _Run, b: _Run) -> tuple[PairedOutput, ...]:
    """Pairs the outputs by name, or if no names match by order."""
    others = {plain(port.name): port for port in b.graph.outputs}
    pairs = [(port, others[plain(port.name)]) for port in a.graph.outputs if plain(port.name) in others]
    if not pairs:
        pairs = list(zip(a.graph.outputs, b.graph.outputs, strict=False))
    result = []
    for one, other in pairs:
        x, y = _known(a, one.value), _known(b, other.value)
        if x.size != y.size:
            raise Error(
                f"[compare] {a.name}: output {one.name!r}: got {x.shape}, need {y.shape}, as output {other.name!r} of"
                f" {b.name} has"
            )
        wide = np.float64 if "f" in (x.dtype.kind, y.dtype.kind) else np.int64
        gap = difference(x.reshape(-1).astype(wide), y.reshape(-1).astype(wide))
        result.append(PairedOutput(one.name, other.name, gap))
    return tuple(result)


def _known(run: _Run, value: Value) -> Array:
    return run.arrays[value] if value in run.arrays else np.asarray(value.node.data)


def _shared(a: _Run, b: _Run, tolerance: float) -> dict[Value, Value]:
    """Maps values of the first model to values of the second with the same numbers, in any layout. A value with the
    same name is preferred, then the first in the order of the ops."""
    by_size: dict[int, list[Value]] = {}
    for value, array in b.arrays.items():
        by_size.setdefault(array.size, []).append(value)
    inputs = {plain(str(v.node.attrs["name"])): v for v in b.graph.inputs}
    result: dict[Value, Value] = {}
    for value, array in a.arrays.items():
        if value.node.op == "input":
            name = plain(str(value.node.attrs["name"]))
            result[value] = inputs[name] if name in inputs else b.graph.inputs[list(a.graph.inputs).index(value)]
            continue
        names = {plain(source) for source in value.node.sources}
        others = by_size.get(array.size, [])
        others = sorted(others, key=lambda v: not names & {plain(source) for source in v.node.sources})
        if array.size < FEW:
            others = [v for v in others if v.shape == value.shape]
        partner = next((v for v in others if _alike(array, b.arrays[v], tolerance)), None)
        if partner is not None:
            result[value] = partner
    return result


def _alike(x: Array, y: Array, tolerance: float) -> bool:
    """True if two arrays have the same numbers in the same order; floats may differ by the tolerance. If one of them
    has two or more axes, floats may also be in another order, as after a transpose."""
    if "f" not in (x.dtype.kind, y.dtype.kind):
        return bool(np.array_equal(x.reshape(-1), y.reshape(-1)))
    p, q = (v.reshape(-1).astype(np.float64) for v in (x, y))
    with np.errstate(invalid="ignore", over="ignore"):
        if not np.isclose(np.linalg.norm(p), np.linalg.norm(q), rtol=tolerance, atol=1e-30):
            return False
        if not difference(p, q).beyond(tolerance):
            return True
    if x.ndim < 2 and y.ndim < 2:
        return False
    return not difference(np.sort(p), np.sort(q)).beyond(tolerance / 4)


def _region(end: Value, shared: Iterable[Value]) -> list[Node]:
    """Returns the ops between shared values and an output, operands first."""
    stops, seen, order = set(shared), set(), list[Node]()
    stack: list[tuple[Node, bool]] = [(end.node, False)]
    while stack:
        node, is_done = stack.pop()
        if is_done:
            order.append(node)
            continue
        if id(node) in seen or node.op in LEAVES:
            continue
        seen.add(id(node))
        stack.append((node, True))
        stack += [(v.node, False) for v in reversed(node.inputs) if v is not None and v not in stops]
    return order


def _side(run: _Run, region: Sequence[Node], end: Value) -> Side:
    """Returns the ops of a region, and the value before the first op."""
    inside = {id(node) for node in region}
    read = [v for node in region for v in node.inputs if v is not None and id(node) and id(v.node) not in inside]
    last = next((v for v in read if v.node.op not in ("const", "param")), end)
    return Side(run.name, run.label(last), tuple(run.label(node.values[0]) for node in region))


def _cause(
    a: _Run, b: _Run, regions: tuple[list[Node], list[Node]], ends: tuple[Value, Value], tolerance: float
) -> str:
    """Returns the cause: the dtypes of the first or of the second model, other weights, quantisation of one of them,
    different ops, or that it cannot be told."""
    wanted, unknown = (_known(b, ends[1]), _known(a, ends[0])), None
    for run, region, end, want, other in ((a, regions[0], ends[0], wanted[0], b.name),
                                          (b, regions[1], ends[1], wanted[1], a.name)):  # fmt: skip
        exact, wide = _exactly(run, region, end), want.reshape(-1).astype(np.float64)
        if exact is None:
            unknown = unknown or (run.name, len(region))
        elif not difference(exact.reshape(-1), wide).beyond(tolerance):
            return (
                f"precision: the ops of {run.name} give what {other} gives, if they are computed exactly; its dtypes"
                " do not hold their numbers"
            )
    if cause := _by_weights(a, b, ends, tolerance):
        return cause
    if unknown:
        name, count = unknown
        return f"not told whether by precision or by conversion: {count} ops of {name} have no exact result here"
    rounding = [any(_QUANTISES.match(node.op) for node in region) for region in regions]
    if rounding[0] != rounding[1]:
        name = a.name if rounding[0] else b.name
        return f"quantisation: {name} rounds here to integers and clips what is beyond their range, the other does not"
    return f"conversion: the ops differ, whatever the precision: {a.name} is wrong if {b.name} is the original"


def _by_weights(a: _Run, b: _Run, ends: tuple[Value, Value], tolerance: float) -> str:
    """Returns the cause if the second model with the weights of the first computes the first one's output, else ""."""
    weights = _weights(a)
    changed: dict[tuple[str, str, int], Array] = {}
    for key, (value, array) in _weights(b).items():
        other = weights.get(key)
        if other is not None and other[1].shape == array.shape and not np.array_equal(other[1], array):
            changed[key] = other[1].astype(value.dtype.numpy)
    if not changed:
        return ""

    def with_weights(node: Node, operands: tuple[Value | None, ...]) -> Sequence[Value] | None:
        put = {i: changed[key] for i in range(len(operands)) if (key := (node.op, plain(node.source), i)) in changed}
        if not put:
            return None
        return node.with_inputs(tuple(constant(put[i]) if i in put else v for i, v in enumerate(operands))).values

    number = [port.value for port in b.graph.outputs].index(ends[1])
    feeds = {str(v.node.attrs["name"]): b.arrays[v] for v in b.graph.inputs}
    graph = b.graph.rewrite(with_weights)
    again = _run(graph, b.name, feeds)
    got, want = (
        x.reshape(-1).astype(np.float64) for x in (_known(again, graph.outputs[number].value), _known(a, ends[0]))
    )
    if difference(got, want).beyond(tolerance):
        return ""
    named = list(dict.fromkeys(source for _, source, _ in changed))
    where = {plain(node.source): node.source for node in b.graph.nodes}
    more = f" and {len(named) - MOST_NAMED} more" if len(named) > MOST_NAMED else ""
    shown = [where[one] for one in named[:MOST_NAMED]]
    of = ", ".join(shown) + more if more else " and ".join(filter(None, (", ".join(shown[:-1]), shown[-1])))
    error = difference(want, _known(b, ends[1]).reshape(-1).astype(np.float64))
    accepts = f". --tolerance {_accepting(error.distance):g} accepts it" if error.distance <= FAR else ""
    for run, key in ((run, key) for run in (a, b) for key in changed):
        if _decodes(_weights(run)[key][0]):
            return (
                f"compressed weights: {run.name} stores the weights of {of} in fewer bits; its error is"
                f" {error.number(error.distance, 3)}{accepts}"
            )
    return f"weights: {a.name} and {b.name} have other weights in {of}; with the same weights they agree{accepts}"


def _accepting(error: float) -> float:
    """Returns the smallest of 1, 2 and 5 times a power of ten that is not below the error."""
    power = 10.0 ** floor(log10(error))
    return next(digit * power for digit in (1, 2, 5, 10) if digit * power >= error)


def _weights(run: _Run) -> dict[tuple[str, str, int], tuple[Value, Array]]:
    """Returns the weights of ops, also those that are computed from constants, by op, name of the layer, and operand.
    Names that two ops share are left out."""
    constants: set[Value] = set()
    result: dict[tuple[str, str, int], tuple[Value, Array]] = {}
    twice = set()
    for node in run.graph.nodes:
        operands = [v for v in node.inputs if v is not None]
        if node.op == "const" or (operands and node.op not in LEAVES and constants.issuperset(operands)):
            constants.update(node.values)
            continue
        for i, value in enumerate(node.inputs):
            if value in constants and value is not None and node.source:
                key = node.op, plain(node.source), i
                twice |= {key} & result.keys()
                result[key] = value, _known(run, value)
    return {key: weight for key, weight in result.items() if key not in twice}


def _decodes(weight: Value) -> bool:
    """True if the weight is decoded: from integers, or from a palette with fewer numbers."""
    stack = [weight]
    while stack:
        node = stack.pop().node
        picks = node.op == "gather" and node.inputs[0] is not None and prod(node.inputs[0].shape) < prod(weight.shape)
        if picks or _DECODES.match(node.op):
            return True
        stack += [v for v in node.inputs if v is not None]
    return False


def _exactly(run: _Run, region: Sequence[Node], end: Value) -> Array | None:
    """Returns the output in fp64, computed from the shared values; None if there are too many ops or one has no exact
    result."""
    if len(region) > MOST_EXACT:
        return None
    exact: dict[Value, Array] = {}
    for node in region:
        operands = [None if v is None else exact.get(v, _operand(run, v)) for v in node.inputs]
        try:
            results = evaluate_exactly(node, operands)
        except (Error, ValueError, TypeError, NotImplementedError):
            return None
        exact.update(zip(node.values, results, strict=True))
    array = exact.get(end, _operand(run, end))
    return None if array is None else np.asarray(array, np.float64)


def _operand(run: _Run, value: Value) -> Array | None:
    return run.arrays.get(value, value.node.data)
