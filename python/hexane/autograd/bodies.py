"""The gradients of loops and branches. The bodies of loops and branches are graphs, so their gradients are loops and
branches too.

  %y, %n = loop(%limit, none, %x, %w) {body}
  %kept  = loop(%limit, none, %x, %w) {the carried values before each step}
  %dx, %dw = loop(%n, none, %dy, 0, %w, %kept) {from the last step to the first: the step again, and its gradients}

Only the carried values of each step are kept; the backward loop recomputes all other values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.dtypes import BOOL, FP32, FP64, INT64, DType
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Port, TensorType, Value, unique
from hexane.graph.topological import topological
from hexane.ops import LEAVES
from hexane.ops.compose import Builder, cast
from hexane.ops.fold import Folder
from hexane.ops.gradients.rule import filled, moved_back
from hexane.ops.records.control import COND, LOOP
from hexane.ops.valid_lengths import whole

Gradients = list[Value | None]
Backward = Callable[[Mapping[Value, Value], Sequence[Value], frozenset[Value]], Gradients]

_STEP, _TRUTH = TensorType(INT64, ()), TensorType(BOOL, ())
_MOST_STEPS = 1 << 31  # a limit of at least this many steps counts as no limit


def inlined(b: Builder, graph: Graph, values: Sequence[Value]) -> list[Value]:
    """Inserts a graph's nodes with these values as its inputs, and returns its outputs."""
    table = dict(zip(graph.inputs, values, strict=True))
    for node in graph.nodes:
        if node.op not in LEAVES:
            inputs = [None if v is None else table.get(v, v) for v in node.inputs]
            table.update(zip(node.values, b.several(node.op, *inputs, **node.attrs), strict=True))
    return [table.get(port.value, port.value) for port in graph.outputs]


class _Body:
    """A body under construction, with an input for each outside value that it reads."""

    def __init__(self, given: Sequence[tuple[str, TensorType]]) -> None:
        self.given = [unique("input", name, kind) for name, kind in given]
        self._outer: dict[Value, Value] = {}

    def read(self, value: Value, always: bool = False) -> Value:
        """Returns the body's input for a value outside the body. A constant is used directly, unless `always`."""
        if value.node.op == "const" and not always:
            return value
        if value not in self._outer:
            self._outer[value] = unique("input", f"value{len(self._outer)}", value.type)
        return self._outer[value]

    def outer(self, results: Sequence[Value]) -> list[Value]:
        """The outside values that the results are computed from."""
        nodes = {id(node) for node in topological(results)}
        return [value for value, inner in self._outer.items() if id(inner.node) in nodes]

    def graph(self, results: Sequence[tuple[str, Value]], outer: Sequence[Value]) -> Graph:
        inputs = (*self.given, *(self._outer[value] for value in outer))
        return Graph(inputs, tuple(Port(name, value) for name, value in results), name="body")


def cond_gradient(
    b: Builder, node: Node, gradients: Sequence[Value | None], needed: frozenset[Value], backward: Backward
) -> Gradients:
    """The gradient of the chosen branch, 0 for a value that this branch does not read."""
    condition, *values = node.inputs
    assert condition is not None
    sides: list[tuple[_Body, Gradients]] = []
    for name in ("then", "otherwise"):
        graph, body = node.attrs[name], _Body(())
        assert isinstance(graph, Graph)
        inner = [unique("input", f"given{i}", v.type) for i, v in enumerate(values) if v is not None]
        body.given = list(inner)
        results = inlined(Folder(*node.sources), graph, inner)
        seeds = _seeds(b, results, [None if g is None else body.read(g) for g in gradients])
        points = [v for v, outer in zip(inner, values, strict=True) if outer in needed]
        by_value = _of_floats(points, frozenset(inner), seeds, backward)
        sides.append((body, [by_value.get(v) for v in inner]))
    wanted = [i for i in range(len(values)) if any(found[i] is not None for _, found in sides)]
    if not wanted:
        return [None] * len(node.inputs)
    results_of = [[_given(b, found[i], body.given[i]) for i in wanted] for body, found in sides]
    read = list(dict.fromkeys(v for (body, _), rs in zip(sides, results_of, strict=True) for v in body.outer(rs)))
    for body, _ in sides:
        for value in read:
            body.read(value)
    then, otherwise = (
        body.graph([(f"gradient{i}", v) for i, v in zip(wanted, results, strict=True)], read)
        for (body, _), results in zip(sides, results_of, strict=True)
    )
    made = iter(b.several(COND, condition, *values, *read, then=then, otherwise=otherwise))
    return [None, *(next(made) if i in wanted else None for i in range(len(values)))]


@dataclass(frozen=True, slots=True)
class _Steps:
    """A loop's steps. most: the limit known when the loop is compiled; number: the count in this call."""

    most: int
    number: Value


def loop_gradient(
    b: Builder, node: Node, gradients: Sequence[Value | None], needed: frozenset[Value], backward: Backward
) -> Gradients:
    """The gradient of a loop: a loop that runs from the last step to the first. Raises Error if the number of steps has
    no known limit, because the kept values would need unlimited memory."""
    graph, carried = node.attrs["body"], int(node.attrs["carried"])
    assert isinstance(graph, Graph)
    values = [v for v in node.inputs[2:] if v is not None]
    steps = _steps(node, graph)
    reverse = _Reverse(node, graph, values, carried, steps, needed)
    active = {i for i, g in enumerate(gradients[:carried]) if g is not None}
    rows = [None if g is None else whole(g, node.sources) for g in gradients[carried:-1]]
    while True:
        found = reverse.differentiated(active, rows, backward)
        also = {i for i, g in enumerate(found.of_carried) if g is not None} - active
        if not also:
            break
        active |= also
    return [None, None, *reverse.run(b, found, [gradients[i] for i in range(carried)])]


def _steps(node: Node, graph: Graph) -> _Steps:
    limit, condition = node.inputs[:2]
    most = int(node.attrs["most"])
    known = None if limit is None or limit.node.data is None else max(int(limit.node.data), 0)
    if known is not None and known < _MOST_STEPS and (most < 0 or known <= most):
        most = known
    if most < 0:
        raise Error(
            "got a loop whose number of steps only the data decide, need its largest: each step's carried values are"
            " kept for the gradient (a constant trip count, or the attribute most=)"
        )
    if most == known and _is_true(condition) and (_is_true(again := graph.outputs[0].value) or _is_given(again, graph)):
        return _Steps(most, Folder(*node.sources).const(np.array(most)))
    return _Steps(most, node.values[-1])


def _is_true(condition: Value | None) -> bool:
    return condition is None or (condition.node.data is not None and bool(condition.node.data))


def _is_given(again: Value, graph: Graph) -> bool:
    """True if a body returns the condition that it was given."""
    while again.node.op == "identity" and again.node.inputs[0] is not None:
        again = again.node.inputs[0]
    return again == graph.inputs[1]


@dataclass(frozen=True, slots=True)
class _Slices:
    """The parts of a captured value's gradient if the body only reads slices of the value, each at one index."""

    axis: int
    indices: list[Value]
    gradients: list[Value]


@dataclass(frozen=True, slots=True)
class _Found:
    """The gradients of a step, inside the body of the reverse loop."""

    body: _Body
    states: dict[int, Value]  # index of a carried value -> gradient of its next value
    of_carried: Gradients
    of_captured: list[Value | _Slices | None]
    kept: dict[int, Value]  # index of a carried value -> its values before each step, stacked


class _Reverse:
    def __init__(
        self, node: Node, graph: Graph, values: list[Value], carried: int, steps: _Steps, needed: frozenset[Value]
    ) -> None:
        self.node, self.graph, self.steps, self.needed = node, graph, steps, needed
        self.carried, self.captured = values[:carried], values[carried:]

    def differentiated(self, active: set[int], rows: Gradients, backward: Backward) -> _Found:
        """A step computed again, with its gradients. active: the carried values that may have a gradient."""
        chosen = sorted(active)
        states = [(f"gradient{i}", self.carried[i].type) for i in chosen]
        body = _Body([("step", _STEP), ("condition", _TRUTH), *states])
        b = Folder(*self.node.sources)
        at = b.sub(b.sub(body.read(self.steps.number), 1), body.given[0])
        kept, before = {}, []
        for i, value in enumerate(self.carried):
            kept[i] = unique("input", f"kept{i}", TensorType(value.dtype, (max(self.steps.most, 1), *value.shape)))
            before.append(b.gather(kept[i], at, axis=0))
        captured = [body.read(value, always=value in self.needed) for value in self.captured]
        wanted = [v for v, outer in zip(captured, self.captured, strict=True) if outer in self.needed]
        results = inlined(b, self.graph, [at, b.const(np.array(True)), *before, *captured])[1:]
        own = dict(zip(chosen, body.given[2:], strict=True))
        given: Gradients = [own.get(i) for i in range(len(self.carried))]
        given += [None if g is None else b.gather(body.read(g), at, axis=0) for g in rows]
        seeds = _seeds(b, results, given)
        slices = _slices(results, wanted)
        pieces = [v for nodes in slices.values() for n in nodes for v in n.values]
        points = [*before, *(v for v in wanted if v not in slices), *pieces]
        by_value = _of_floats(points, frozenset([*before, *captured, *pieces]), seeds, backward)
        of_captured: list[Value | _Slices | None] = []
        for value in captured:
            nodes = [n for n in slices.get(value, ()) if by_value.get(n.values[0]) is not None]
            if value not in slices:
                of_captured.append(by_value.get(value))
            elif not nodes:
                of_captured.append(None)
            else:
                indices = [v for n in nodes if (v := n.inputs[1]) is not None]
                parts = [g for n in nodes if (g := by_value.get(n.values[0])) is not None]
                of_captured.append(_Slices(int(nodes[0].attrs["axis"]), indices, parts))
        return _Found(body, own, [by_value.get(v) for v in before], of_captured, kept)

    def run(self, b: Builder, found: _Found, last: Gradients) -> Gradients:
        """The gradients of the loop's values. last: the gradients of the carried values after the last step."""
        body, inner, most = found.body, Folder(*self.node.sources), self.steps.most
        start: list[Value] = []
        results: list[tuple[str, Value]] = []
        for i in found.states:
            g = last[i]
            start.append(filled(b, self.carried[i]) if g is None else g)
            results.append((f"gradient{i}", _given(inner, found.of_carried[i], self.carried[i])))
        stacks: list[tuple[str, Value]] = []
        for i, gradient in enumerate(found.of_captured):
            if isinstance(gradient, _Slices):
                for k, (index, piece) in enumerate(zip(gradient.indices, gradient.gradients, strict=True)):
                    stacks += [(f"index{i}.{k}", cast(inner, index, INT64)), (f"slice{i}.{k}", piece)]
            elif gradient is not None:
                sums = _sums(gradient.dtype)
                total = unique("input", f"sum{i}", TensorType(sums, gradient.shape))
                body.given.append(total)
                start.append(b.broadcast_to(b.const(np.zeros((), sums.numpy)), shape=gradient.shape))
                results.append((f"sum{i}", inner.add(total, cast(inner, gradient, sums))))
        values = [v for _, v in (*results, *stacks)]
        nodes = {id(node) for node in topological(values)}
        kept = [i for i, value in found.kept.items() if id(value.node) in nodes]
        outer = body.outer([*values])
        graph = body.graph([("condition", inner.const(np.array(True))), *results, *stacks], outer)
        graph = Graph((*graph.inputs, *(found.kept[i] for i in kept)), graph.outputs, name="body")
        operands = [*start, *outer, *self._kept(b, kept)]
        if not operands:
            return [None] * (len(self.carried) + len(self.captured))
        made = iter(
            b.several(LOOP, self.steps.number, None, *operands, body=graph, carried=len(start), most=most, whole=True)
        )
        of_carried = {i: next(made) for i in found.states}
        sums_of = [None if g is None or isinstance(g, _Slices) else next(made) for g in found.of_captured]
        of_captured: Gradients = []
        for value, gradient, added in zip(self.captured, found.of_captured, sums_of, strict=True):
            if isinstance(gradient, _Slices):
                of_captured.append(self._placed(b, value, gradient, [next(made) for _ in 2 * gradient.indices], body))
            else:
                of_captured.append(None if added is None else cast(b, added, value.dtype))
        return [*(of_carried.get(i) for i in range(len(self.carried))), *of_captured]

    def _placed(self, b: Builder, value: Value, slices: _Slices, stacks: Sequence[Value], body: _Body) -> Value:
        """The gradient of the value: the slices of all steps, each added where it was read. Rows of the stacks after
        the last step are 0."""
        axis, shape, sums = slices.axis, value.shape, _sums(value.dtype)
        total: Value | None = None
        for index, places, rows in zip(slices.indices, stacks[::2], stacks[1::2], strict=True):
            direction = self._all_once(index, body.given[0], shape[axis])
            if direction is not None:
                added = cast(
                    b, rows if direction == 1 else b.gather(rows, b.const(_backwards(shape[axis])), axis=0), sums
                )
                total = added if total is None else b.add(total, added)
                continue
            if total is None:
                rest = (*shape[:axis], *shape[axis + 1 :])
                total = b.broadcast_to(b.const(np.zeros((), sums.numpy)), shape=(shape[axis], *rest))
            places = b.reshape(places, shape=(*places.shape, 1))
            total = b.scatter_nd(total, places, cast(b, rows, sums), mode="add")
        assert total is not None
        return cast(b, moved_back(b, total, axis), value.dtype)

    def _all_once(self, index: Value, step: Value, extent: int) -> int | None:
        """1 if the steps read every slice once in rising order, -1 if in falling order, else None."""
        line = _line(index, step)
        if self.steps.most != extent or self.steps.number.node.op != "const" or line is None:
            return None
        slope, first = line
        first += extent if first < 0 else 0
        return slope if (slope, first) in ((1, 0), (-1, extent - 1)) else None

    def _kept(self, b: Builder, which: Sequence[int]) -> list[Value]:
        """The carried values numbered `which` before each step, as stacks."""
        if not which:
            return []
        names = [port.name for port in self.graph.outputs]
        ports = list(self.graph.outputs[: 1 + len(self.carried)])
        for i in which:
            name = f"kept{i}"
            while name in names:
                name += "_"
            ports.append(Port(name, self.graph.inputs[2 + i]))
        graph = Graph(self.graph.inputs, tuple(ports), name="body")
        limit, condition = self.node.inputs[:2]
        operands = [*self.carried, *self.captured]
        count, most = len(self.carried), max(self.steps.most, 1)
        made = b.several(LOOP, limit, condition, *operands, body=graph, carried=count, most=most, whole=True)
        return list(made[count:-1])


def _slices(results: Sequence[Value], captured: Sequence[Value]) -> dict[Value, list[Node]]:
    """The captured floats that the body only reads in slices, at single indices along one axis, with the nodes that
    read them."""
    own = {v for v in captured if v.dtype.kind == "float" and v.node.op == "input"}
    reads: dict[Value, list[Node]] = {}
    other = set(results)
    for node in topological(results):
        for position, value in enumerate(node.inputs):
            if value in own:
                index = node.inputs[1] if node.op == "gather" else None
                if position == 0 and index is not None and not index.shape:
                    reads.setdefault(value, []).append(node)
                elif value is not None:
                    other.add(value)
    return {
        value: nodes
        for value, nodes in reads.items()
        if value not in other and len({node.attrs["axis"] for node in nodes}) == 1
    }


def _line(value: Value, step: Value) -> tuple[int, int] | None:
    """(a, c) for an index that is a * step + c; None for other indices."""
    if value == step:
        return 1, 0
    node = value.node
    if node.data is not None and node.data.size == 1:
        return 0, int(node.data.reshape(()))
    lines = [None if v is None else _line(v, step) for v in node.inputs]
    if node.op in ("reshape", "identity") or (node.op == "cast" and value.dtype.kind == "int"):
        return lines[0]
    if node.op not in ("add", "sub") or lines[0] is None or lines[1] is None:
        return None
    sign = 1 if node.op == "add" else -1
    return lines[0][0] + sign * lines[1][0], lines[0][1] + sign * lines[1][1]


def _backwards(extent: int) -> Array:
    return np.ascontiguousarray(np.arange(extent)[::-1])


def _sums(dtype: DType) -> DType:
    return dtype if dtype in (FP32, FP64) else FP32


def _given(b: Builder, gradient: Value | None, like: Value) -> Value:
    return filled(b, like) if gradient is None else gradient


def _seeds(b: Builder, results: Sequence[Value], gradients: Sequence[Value | None]) -> dict[Value, Value]:
    seeds: dict[Value, Value] = {}
    for result, gradient in zip(results, gradients, strict=True):
        if gradient is not None:
            seeds[result] = gradient if result not in seeds else b.add(seeds[result], gradient)
    return seeds


def _of_floats(
    values: Sequence[Value], held: frozenset[Value], seeds: Mapping[Value, Value], backward: Backward
) -> dict[Value, Value | None]:
    """The gradients of the float values."""
    floats = list(dict.fromkeys(v for v in values if v.dtype.kind == "float"))
    return dict(zip(floats, backward(seeds, floats, held), strict=True))


RULES: Mapping[str, Callable[[Builder, Node, Sequence[Value | None], frozenset[Value], Backward], Gradients]] = {
    LOOP: loop_gradient,
    COND: cond_gradient,
}
