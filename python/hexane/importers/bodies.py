"""Bodies of loops and branches whose trip count or choice depends on data. A body is a graph of its own. The importers
of all formats use these bodies."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from hexane.dtypes import BOOL, INT64
from hexane.errors import Error
from hexane.graph import Graph, Port, TensorType, Value, unique
from hexane.ops import LEAVES, OPS
from hexane.ops.compose import Builder, cast
from hexane.ops.encodings import is_encoded
from hexane.ops.length_rules import described
from hexane.ops.valid_lengths import length_of

STEP, TRUTH = TensorType(INT64, ()), TensorType(BOOL, ())
MOST_STEPS = 4096  # a loop of more iterations is not unrolled.
LONG_STEPS, LONG_NODES = 64, 2000  # iterations, and nodes after unrolling. A loop above both limits stays one op.
CHEAP_OPS = 8  # A branch of at most so many ops is always computed.
_Item = TypeVar("_Item")


class Body:
    """A subgraph under construction, with `given` and then captured values of the surrounding graph as inputs."""

    def __init__(self, given: Sequence[tuple[str, TensorType]] = ()) -> None:
        self.given = [unique("input", name, kind) for name, kind in given]
        self.captured: dict[Value, Value] = {}  # value of the surrounding graph -> the body's input for it
        self._inputs = set(self.given)

    @staticmethod
    def of_loop(carried: Sequence[Value]) -> "Body":
        """Returns the body of a loop, with the iteration number, the condition and the carried values as inputs."""
        values = [(f"carried{i}", v.type) for i, v in enumerate(carried)]
        return Body([("step", STEP), ("condition", TRUTH), *values])

    def capture(self, value: Value) -> Value:
        """Returns the body's input for a value of the surrounding graph. Constants and encoded weights are returned as
        they are. Raises Error if the valid extent of the value depends on data."""
        if value.node.op == "const" or is_encoded(value.node) or value in self._inputs:
            return value
        if value not in self.captured:
            if (length := length_of(value)) is not None:
                raise Error(
                    f"got {described(value.type, length)}, in a loop or branch that the data decide, need a fixed shape"
                )
            self.captured[value] = unique("input", f"captured{len(self.captured)}", value.type)
            self._inputs.add(self.captured[value])
        return self.captured[value]

    def with_values(self, values: Mapping[Value, Value], results: Sequence[Value]) -> list[Value]:
        """Returns the results with inputs of the body replaced by other values. The inputs are removed."""
        graph = Graph((), tuple(Port(f"result{i}", value) for i, value in enumerate(results)))
        self.given = [place for place in self.given if place not in values]
        return [port.value for port in graph.rewrite(lambda node, inputs: None, became=dict(values)).outputs]

    def graph(self, outputs: Sequence[tuple[str, Value]], outer: Sequence[Value]) -> Graph:
        """Returns the body as a graph. outer: the values of the surrounding graph that become its last inputs."""
        inputs = (*self.given, *(self.capture(value) for value in outer))
        return Graph(inputs, tuple(Port(name, value) for name, value in outputs), name="body")


class Around(Mapping[str, _Item]):
    """Maps names of the surrounding graph to values. Looking up a name makes the value an input of the body."""

    def __init__(self, scope: Mapping[str, _Item], capture: Callable[[_Item], _Item]) -> None:
        self._scope, self._capture = scope, capture

    def __getitem__(self, name: str) -> _Item:
        return self._capture(self._scope[name])

    def __contains__(self, name: object) -> bool:
        return name in self._scope

    def __iter__(self) -> Iterator[str]:
        return iter(self._scope)

    def __len__(self) -> int:
        return len(self._scope)


def is_long(steps: int, nodes: int) -> bool:
    """True if a loop with a known trip count should stay one op, because its unrolled form would take long to
    compile."""
    return steps > LONG_STEPS and steps * nodes > LONG_NODES


def is_cheap(graph: Graph) -> bool:
    """True if computing the graph costs less than a branch, and cannot fail."""
    ops = [OPS[node.op] for node in graph.nodes if node.op not in LEAVES]
    return len(ops) <= CHEAP_OPS and all(op.elementwise or op.view for op in ops)


def truth(b: Builder, condition: Value) -> Value:
    """Returns a condition as one bool. Raises Error for a condition of several elements."""
    if condition.type.size != 1:
        raise Error(f"got a condition {condition.type}, need one bool")
    return cast(b, scalar(b, condition), BOOL)


def scalar(b: Builder, x: Value) -> Value:
    return b.reshape(x, shape=()) if x.shape else x


def loop_op(
    b: Builder,
    body: Body,
    carried: Sequence[Value],
    results: Sequence[Value],
    limit: Value | None,
    condition: Value | None,
    most: int | None = None,
    whole: bool = False,
) -> tuple[Value, ...]:
    """Returns the last carried values and the stacked rows of a loop op. results: the next condition, the next carried
    values, and one row for each stack. A stack has room for `most` rows. whole: every call runs `most` iterations.
    Values that no iteration changes, such as weights that TensorFlow's loops carry, are captured instead. Raises Error
    for a carried value that changes its type."""
    for i, (old, new) in enumerate(zip(carried, results[1:], strict=False)):
        if old.type != new.type:
            raise Error(
                f"carried value {i}: got {old.type} before a step and {new.type} after it, need one shape in a loop "
                "whose steps the data decide: give the trip count as a constant (input_values=), or keep the shape"
            )
    changes = [result != place for place, result in zip(body.given[2:], results[1:], strict=False)]
    if not all(changes):
        changing = [value for value, changed in zip(carried, changes, strict=True) if changed]
        results = _with_fixed(body, carried, results, changes)
        last = iter(loop_op(b, body, changing, results, limit, condition, most, whole))
        return (*[next(last) if changed else v for v, changed in zip(carried, changes, strict=True)], *last)
    stacks = len(results) - 1 - len(carried)
    names = ["condition", *(f"carried{i}" for i in range(len(carried))), *(f"stack{i}" for i in range(stacks))]
    outer = list(body.captured)
    graph = body.graph(list(zip(names, results, strict=True)), outer)
    operands = [*carried, *outer]
    if not operands:  # the op has at least one value
        operands = [b.const(np.array(0))]
        graph = Graph((*graph.inputs, unique("input", "nothing", operands[0].type)), graph.outputs, name="body")
    limit, condition = (None if v is None else scalar(b, v) for v in (limit, condition))
    outputs = b.several(
        "loop", limit, condition, *operands, body=graph, carried=len(carried), most=-1 if most is None else most,
        whole=whole and most is not None,
    )  # fmt: skip
    return tuple(outputs[:-1])


def _with_fixed(body: Body, carried: Sequence[Value], results: Sequence[Value], changes: Sequence[bool]) -> list[Value]:
    """Returns the results without the carried values that never change. The body reads their captured values
    instead."""
    places = body.given[2:]
    fixed = {place: body.capture(v) for place, v, c in zip(places, carried, changes, strict=True) if not c}
    changed = [result for result, c in zip(results[1:], changes, strict=False) if c]
    return body.with_values(fixed, [results[0], *changed, *results[1 + len(places) :]])


def cond_op(
    b: Builder, condition: Value, bodies: Sequence[Body], results: Sequence[Sequence[Value]]
) -> tuple[Value, ...] | None:
    """Returns the results of an op that computes only the chosen branch, or None if both branches are cheap, or if
    neither captures a value. Raises Error if the types of the branches' results differ."""
    outer = list(dict.fromkeys(value for body in bodies for value in body.captured))
    if not outer:
        return None
    then, otherwise = (
        body.graph([(f"result{i}", value) for i, value in enumerate(values)], outer)
        for body, values in zip(bodies, results, strict=True)
    )
    if is_cheap(then) and is_cheap(otherwise):
        return None
    return tuple(b.several("cond", truth(b, condition), *outer, then=then, otherwise=otherwise))
