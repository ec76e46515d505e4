"""ONNX loops and branches whose trip count or choice depends on data."""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import onnx

from hexane.dtypes import BOOL
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.bodies import Body, cond_op, is_long, loop_op, scalar
from hexane.importers.onnx.handlers.dynamic import check_whole
from hexane.importers.onnx.node import NOTHING, Builder, Item, OnnxNode, TensorList, described, known
from hexane.importers.trip_count import trip_count


class FewIterationsError(Error):
    """The condition ends a loop after so few iterations that it is unrolled."""


def tensors(items: Sequence[Item]) -> list[Value]:
    """Returns the items as tensors. Raises Error for a sequence, and for a tensor whose valid length depends on
    data."""
    for item in items:
        if isinstance(item, TensorList):
            raise Error(f"got {described(item)} in a loop or branch that the data decide, need tensors")
    check_whole(items)
    return [item for item in items if isinstance(item, Value)]


def run_loop(
    b: Builder,
    n: OnnxNode,
    graph: onnx.GraphProto,
    state: Sequence[Item],
    limit: Value | None,
    condition: Value | None,
    *,
    trial: bool = False,
    scanned: Sequence[Callable[[Value, Body], Value]] | None = None,
) -> list[Value] | None:
    """Returns the carried values and stacks of a loop as one op. If the body cannot be translated, reports this and
    returns None. trial: raise Error instead, and FewIterationsError if the condition ends the loop after few
    iterations. scanned: for Scan, a function for each scan input that returns the slice of a step."""
    carried = tensors(state)
    body = Body.of_loop(carried)
    step, going, *values = body.given
    if scanned is None:
        given = [_like(b, v, graph.input[i]) for i, v in enumerate((step, going))] + values
    else:
        given = values + [piece(step, body) for piece in scanned]
    items = n.run(graph, given, step, captured=partial(_captured, body), trial=trial)
    if items is None:
        return None
    results = tensors(items)
    if scanned is not None:
        results.insert(0, b.const(np.array(True)))
    if results[0].dtype is not BOOL or results[0].type.size != 1:
        raise Error(f"got a condition {results[0].type}, need one bool")
    results[0] = scalar(b, results[0])
    most = None if limit is None or (number := known(limit)) is None else max(int(number.reshape(())), 0)
    count = trip_count(body.given, carried, results, most)
    is_fixed = count is not None and (limit is None or known(limit) is not None)
    if is_fixed:
        if trial and count != most and not is_long(count or 0, len(graph.node)):
            raise FewIterationsError(f"got {count} iterations, need more for one op")
        limit = limit if count == most else b.const(np.array(count))
        results[0] = going if results[0] == going else b.const(np.array(True))
    most = most if count is None else count
    num_stacks = len(results) - 1 - len(carried)
    if num_stacks and most is None:
        raise Error(
            f"got {num_stacks} outputs that are stacked and a trip count that is computed at run time, need its "
            "largest value: give the trip count as a constant (input_values=), and let the condition end the loop"
        )
    starts = condition is None or bool(known(condition) if known(condition) is not None else False)
    outputs = loop_op(b, body, carried, results, limit, condition, most, starts and is_fixed)
    return list(outputs)


def _captured(body: Body, item: Item | None) -> Item | None:
    """Returns the body's input for an item of the surrounding graph."""
    if item is None or item is NOTHING:
        return item
    return TensorList(map(body.capture, item)) if isinstance(item, TensorList) else body.capture(item)


def _like(b: Builder, value: Value, info: onnx.ValueInfoProto) -> Value:
    """Reshapes a number to the shape in the body's declaration, () or (1,)."""
    rank = len(info.type.tensor_type.shape.dim) if info.type.tensor_type.HasField("shape") else 0
    result: Value = b.reshape(value, shape=(1,) * min(rank, 1)) if rank else value
    return result


def run_branches(b: Builder, n: OnnxNode, condition: Value, graphs: Sequence[onnx.GraphProto]) -> list[Value] | None:
    """Returns the results of an op that computes only the chosen branch, or None if both branches are cheap, if
    neither reads a value of the surrounding graph, or if one reads a result that is missing. Raises Error if a branch
    cannot be a graph of its own."""
    bodies, results = [Body() for _ in graphs], []
    for body, graph in zip(bodies, graphs, strict=True):
        items = n.run(graph, captured=partial(_captured, body), trial=True)
        if items is None:  # the body reads the result of a node that was reported
            return None
        results.append(tensors(items))
    outputs = cond_op(b, condition, bodies, results)
    return None if outputs is None else list(outputs)
