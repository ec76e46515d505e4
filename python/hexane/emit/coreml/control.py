"""Loops and branches in Core ML's form: `while_loop` and `cond`, whose blocks have ports of Core ML's dtypes."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, FP16, FP32, INT32, INT64, DType
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, TensorType, Value, unique
from hexane.ops import OPS, apply
from hexane.ops.compose import Builder, cast
from hexane.ops.records.control import COND, LOOP
from hexane.ops.rewriter import Rewriter

CONTROL = (LOOP, COND)
STEP, TRUTH = TensorType(INT64, ()), TensorType(BOOL, ())
_LARGEST = 2**31 - 1
_Inside = Callable[[Graph], Graph]


def bodies_of(node: Node) -> list[Graph]:
    return [value for value in node.attrs.values() if isinstance(value, Graph)]


def every_node(graph: Graph) -> Iterator[Node]:
    """Yields the nodes of a graph, and of the bodies of its loops and branches."""
    for node in graph.nodes:
        yield node
        for body in bodies_of(node):
            yield from every_node(body)


def with_bodies(node: Node, inputs: Sequence[Value | None], change: _Inside) -> tuple[Value, ...]:
    """Returns the values of a node with other operands and changed bodies."""
    attrs = {name: change(value) if isinstance(value, Graph) else value for name, value in node.attrs.items()}
    return apply(OPS[node.op], inputs, attrs, node.sources)


def as_while_loops(graph: Graph, halves: bool, inside: _Inside) -> Graph:
    """loop(%limit, %c, %x : fp64) {rows}  ->  cast(loop(none, and(%c, less(0, %limit)), 0, cast(%x), zeros)) : fp64

    The stacked rows become carried values, and so does the step number if it is used; a computed limit becomes a
    captured value. Ports of bodies have Core ML's dtypes, floats in fp16 if `halves`. inside: the passes for bodies.
    Raises Error if the number of stacked rows depends on data.
    """
    counts = graph.use_counts()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        b = Rewriter(*node.sources, folds=True)
        if node.op == COND:
            return _branch(b, node, inputs, halves, inside)
        return _loop(b, node, inputs, halves, inside, counts[node.values[-1]] > 0)

    return graph.rewrite(change, only=CONTROL)


def _kind(dtype: DType, halves: bool) -> DType:
    if dtype.kind == "float":
        return FP16 if halves or dtype is FP16 else FP32
    return BOOL if dtype is BOOL else INT32


def _branch(b: Builder, node: Node, inputs: Sequence[Value | None], halves: bool, inside: _Inside) -> tuple[Value, ...]:
    values = [v for v in inputs[1:] if v is not None]
    operands = [cast(b, v, _kind(v.dtype, halves)) for v in values]

    def changed(body: Graph) -> Graph:
        ports = [unique("input", str(v.node.attrs["name"]), o.type) for v, o in zip(body.inputs, operands, strict=True)]
        table = {v: cast(b, port, v.dtype) for v, port in zip(body.inputs, ports, strict=True)}
        results = [cast(b, v, _kind(v.dtype, halves)) for v in _outputs(body, table)]
        return inside(_body(ports, results))

    results = with_bodies(node, [inputs[0], *operands], changed)
    return tuple(cast(b, v, kind.dtype) for v, kind in zip(results, node.types, strict=True))


def _loop(
    b: Builder, node: Node, inputs: Sequence[Value | None], halves: bool, inside: _Inside, counted: bool
) -> tuple[Value, ...]:
    limit, condition, *rest = inputs
    values = [v for v in rest if v is not None]
    body, most, carried = node.attrs["body"], int(node.attrs["most"]), int(node.attrs["carried"])
    rows = body.outputs[1 + carried :]
    if rows and not _has_room(limit, most):
        raise Error(f"[emit] {node.where}: got a loop whose number of stacked rows the data decide, need it fixed")
    limit = _limit(b, limit)
    step = body.inputs[0]
    counted = counted or limit is not None or bool(rows) or body.use_counts()[step] > 0
    start = [b.const(np.array(0, np.int32))] if counted else []
    start += [cast(b, v, _kind(v.dtype, halves)) for v in values[:carried]]
    stacks = [TensorType(_stack_kind(p.value.dtype, halves), (most, *p.value.shape)) for p in rows]
    start += [b.const(np.zeros(kind.shape, kind.dtype.numpy)) for kind in stacks]
    outer = [cast(b, v, _kind(v.dtype, halves)) for v in values[carried:]]
    outer += [limit] if limit is not None and limit.node.data is None else []

    names = [f"carried{i}" for i in range(len(start))] + [f"captured{i}" for i in range(len(outer))]
    ports = [unique("input", name, v.type) for name, v in zip(names, [*start, *outer], strict=True)]
    count, first = ports[0], int(counted)
    given = [*ports[first : first + carried], *ports[len(start) : len(start) + len(values) - carried]]
    table = {v: cast(b, port, v.dtype) for v, port in zip(body.inputs[2:], given, strict=True)}
    table |= {step: cast(b, count, INT64) if counted else step, body.inputs[1]: b.const(np.array(True))}
    going, *results = _outputs(body, table)
    after = [cast(b, v, _kind(v.dtype, halves)) for v in results[:carried]]
    for stack, kind, row in zip(ports[first + carried : len(start)], stacks, results[carried:], strict=True):
        one = b.reshape(cast(b, row, kind.dtype), shape=(1, *row.shape))
        after.append(b.scatter_nd(stack, b.reshape(count, shape=(1, 1)), one, mode="update"))
    if counted:
        following = b.add(count, np.array(1, np.int32))
        after.insert(0, following)
        if limit is not None:
            least = limit if limit.node.data is not None else ports[-1]
            going = b.logical_and(going, b.less(following, least))
    if limit is not None:
        some = b.less(np.array(0, np.int32), limit)
        condition = some if condition is None else b.logical_and(condition, some)
    if condition is not None and condition.node.data is not None and condition.node.data:
        condition = None
    inner = inside(_body(ports, [going, *after]))
    whole = Graph((unique("input", "step", STEP), unique("input", "condition", TRUTH), *inner.inputs), inner.outputs,
                  name="body")  # fmt: skip
    attrs = {"body": whole, "carried": len(start), "most": -1, "whole": False}
    values_after = apply(OPS[LOOP], [None, condition, *start, *outer], attrs, node.sources)
    steps = cast(b, values_after[0], INT64) if counted else values_after[-1]
    plain = values_after[first : len(start)]
    return (*(cast(b, v, kind.dtype) for v, kind in zip(plain, node.types[:-1], strict=True)), steps)


def _has_room(limit: Value | None, most: int) -> bool:
    return limit is not None and limit.node.data is not None and int(limit.node.data) <= most


def _limit(b: Builder, limit: Value | None) -> Value | None:
    """Returns the limit in int32, or None for one beyond int32."""
    if limit is None or limit.node.data is None:
        return None if limit is None else b.cast(b.minimum(limit, _LARGEST), dtype=INT32)
    steps = int(limit.node.data)
    return None if steps >= _LARGEST else b.const(np.array(max(steps, 0), np.int32))


def _stack_kind(dtype: DType, halves: bool) -> DType:
    """Returns the dtype of stacks. Bools become int32, because Core ML's scatters do not support them."""
    return INT32 if dtype is BOOL else _kind(dtype, halves)


def _outputs(body: Graph, table: dict[Value, Value]) -> list[Value]:
    """Returns the results of a body after replacing its inputs by other values."""
    return [port.value for port in body.rewrite(lambda *_: None, became=table).outputs]


def _body(inputs: Sequence[Value], results: Sequence[Value]) -> Graph:
    ports: list[Any] = [Port(f"result{i}", value) for i, value in enumerate(results)]
    return Graph(tuple(inputs), tuple(ports), name="body")


def in_bodies(graph: Graph, change: _Inside) -> Graph:
    """Returns the graph with `change` applied to the bodies, which keep their ports."""
    if not any(op in CONTROL for op in graph.ops):
        return graph
    return graph.rewrite(lambda node, inputs: with_bodies(node, inputs, change), only=CONTROL)


def around_step(change: _Inside) -> _Inside:
    """Wraps a change of a body so that it does not see the body's step number and condition. Core ML has no int64 for
    the step."""

    def changed(body: Graph) -> Graph:
        if not body.inputs or body.inputs[0].type != STEP:
            return change(body)
        inner = change(replace(body, inputs=body.inputs[2:]))
        return replace(inner, inputs=(*body.inputs[:2], *inner.inputs))

    return changed
