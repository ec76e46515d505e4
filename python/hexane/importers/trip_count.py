"""Counts the iterations of a loop whose condition depends on constants alone, such as `step < length`."""

from collections.abc import Mapping, Sequence

import numpy as np

from hexane.errors import Error
from hexane.graph import Node, Value
from hexane.graph.tensor_type import Array
from hexane.graph.topological import topological
from hexane.ops import OPS, evaluate

MOST_COUNTED = 1 << 16  # a loop of more iterations counts as one without a known trip count
_MOST_EVALUATED = 1 << 17  # nodes that are evaluated to count iterations, about a second
_MOST_ELEMENTS = 256  # a condition that computes with larger tensors is left to run time


def trip_count(
    given: Sequence[Value], carried: Sequence[Value], results: Sequence[Value], limit: int | None
) -> int | None:
    """Returns the number of iterations, or None if the condition depends on data or counting would take too long.

    given: the body's inputs: the iteration number, the condition, and the carried values. carried: the carried values
    before the first iteration. results: the next condition, and the next carried values. limit: the loop ends after so
    many iterations, even if the condition holds. The condition before the first iteration counts as true.
    """
    if limit == 0:
        return 0
    step, condition, *places = given
    truth = results[0]
    if truth is condition or truth.node.op == "const":
        return limit if truth is condition or bool(truth.node.data) else 1
    now = {step: np.array(0), condition: np.array(True)}
    after = dict(zip(places, results[1:], strict=False))
    order = _needed(truth, after, dict(zip(places, carried, strict=True)), now)
    if order is None:
        return None
    kept = [(place, after[place]) for place in places if place in now]
    most = min(MOST_COUNTED if limit is None else limit, MOST_COUNTED, _MOST_EVALUATED // max(len(order), 1))
    for number in range(most):
        values = {**now, step: np.array(number)}
        try:
            for node in order:
                _compute(node, values)
        except (Error, ValueError):  # the loop raises it again when it runs
            return None
        if not values[truth].reshape(()):
            return number + 1
        now = {condition: values[truth], **{place: values[result] for place, result in kept}}
    return limit if most == limit else None


def _needed(
    truth: Value, after: Mapping[Value, Value], before: Mapping[Value, Value], now: dict[Value, Array]
) -> list[Node] | None:
    """Returns the nodes that the condition depends on, operands first, or None if it depends on data. `now` receives
    the first contents of the carried values that it reads."""
    roots, known = [truth], 0
    while known < len(roots):
        known = len(roots)
        order = topological(roots)
        for node in order:
            for value in node.values:
                if value.type.size > _MOST_ELEMENTS:
                    return None
            if node.op == "input":
                (value,) = node.values
                if value in now:
                    continue
                start = before.get(value)
                if start is None or start.node.data is None or start.node.op != "const":
                    return None
                now[value] = start.node.data
                roots.append(after[value])
            elif node.op != "const" and (node.op not in OPS or OPS[node.op].every_call or node.data is not None):
                return None
    return [node for node in topological(roots) if node.op != "input"]


def _compute(node: Node, values: dict[Value, Array]) -> None:
    if node.op == "const":
        assert node.data is not None
        results = [node.data]
    else:
        results = evaluate(node, [None if v is None else values[v] for v in node.inputs])
    values.update(zip(node.values, results, strict=True))
