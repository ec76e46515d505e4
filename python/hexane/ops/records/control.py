"""Loops and branches whose trip count or choice is known only at run time, with graphs as bodies, in attributes of the
op.

`compiled_loop` and `compiled_cond` have compiled bodies: the bytes of a plan, as a constant.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from hexane.dtypes import BOOL, DTYPES, INT64
from hexane.errors import Error
from hexane.graph import Graph, TensorType, Value
from hexane.ops.attributes import body, flag, integer, no_attrs, texts
from hexane.ops.shape_rules import Shape
from hexane.ops.spec import Op

LOOP, COND = "loop", "cond"
COMPILED = {LOOP: "compiled_loop", COND: "compiled_cond"}
MOST_DEPTH = 8  # levels of nested bodies, as in csrc/cpu/control/body.h

_Types = Sequence[TensorType | None]
_STEP = TensorType(INT64, ())
_TRUTH = TensorType(BOOL, ())
_HOST = "the engine runs no loops and no branches"


def type_text(kind: TensorType) -> str:
    """Returns a type in the form of an attribute: "fp32 1 3 8 8"."""
    return " ".join([kind.dtype.name, *map(str, kind.shape)])


def depth(graph: Graph) -> int:
    """Returns the levels of nested bodies, 0 for a graph without loops and branches."""
    bodies = [a for node in graph.nodes for a in node.attrs.values() if isinstance(a, Graph)]
    return max((1 + depth(inner) for inner in bodies), default=0)


def _check_body(name: str, graph: Graph, need: Sequence[TensorType | None]) -> None:
    if len(graph.inputs) != len(need):
        raise Error(f"{name}: got a body of {len(graph.inputs)} inputs, need {len(need)}")
    for value, kind in zip(graph.inputs, need, strict=True):
        if value.type != kind:
            raise Error(f"{name}: input {value.node.attrs['name']!r}: got {value.type}, need {kind}")
    if graph.updates or any(node.op in ("state", "param") for node in graph.nodes):
        raise Error(f"{name}: got a body with states, params or random numbers, need them outside of it")
    if any(port.length for port in graph.outputs):
        raise Error(f"{name}: got an output whose length is known only at run time, need a fixed shape")
    if depth(graph) >= MOST_DEPTH:
        raise Error(f"{name}: got more than {MOST_DEPTH} bodies in each other, need fewer")


def _check_loop(types: _Types, attrs: Mapping[str, Any]) -> None:
    limit, condition, *values = types
    graph, carried = attrs["body"], attrs["carried"]
    for what, got, kind in (("limit", limit, _STEP), ("condition", condition, _TRUTH)):
        if got not in (None, kind):
            raise Error(f"{what}: got {got}, need {kind}")
    if not 0 <= carried <= len(values):
        raise Error(f"carried: got {carried}, need at most the {len(values)} values")
    _check_body("body", graph, [_STEP, _TRUTH, *values])
    given = [port.value.type for port in graph.outputs]
    for i, need in enumerate([_TRUTH, *values[:carried]]):
        got_type = given[i] if i < len(given) else None
        if got_type != need:
            raise Error(f"body: output {i}: got {got_type or 'none'}, need {need}, which it has in every step")
    if len(given) > 1 + carried and attrs["most"] < 0:
        raise Error("most: got none, need the largest number of steps for the outputs that are stacked")


def _stacked(attrs: Mapping[str, Any]) -> list[TensorType]:
    graph, carried = attrs["body"], attrs["carried"]
    given = [port.value.type for port in graph.outputs][1:]
    stacks = [TensorType(t.dtype, (max(attrs["most"], 0), *t.shape)) for t in given[carried:]]
    return [*given[:carried], *stacks, _STEP]


def _loop_shape(*_: Any, **attrs: Any) -> list[Shape]:
    return [t.shape for t in _stacked(attrs)]


def _loop_dtype(*_: Any, **attrs: Any) -> list[Any]:
    return [t.dtype for t in _stacked(attrs)]


def _loop_ragged(attrs: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Returns the axis of each stack's valid length, None for outputs that are whole in every call."""
    carried, axis = attrs["carried"], None if attrs["whole"] else 0
    return (*[None] * carried, *[axis] * (len(attrs["body"].outputs) - 1 - carried), None)


def _check_cond(types: _Types, attrs: Mapping[str, Any]) -> None:
    condition, *values = types
    if condition != _TRUTH:
        raise Error(f"condition: got {condition}, need {_TRUTH}")
    for name in ("then", "otherwise"):
        _check_body(name, attrs[name], values)
    then, otherwise = ([port.value.type for port in attrs[name].outputs] for name in ("then", "otherwise"))
    if then != otherwise:
        raise Error(f"got branches of {', '.join(map(str, then))} and {', '.join(map(str, otherwise))}, need one type")


def _cond_shape(*_: Any, then: Graph, **__: Any) -> list[Shape]:
    return [port.value.shape for port in then.outputs]


def _cond_dtype(*_: Any, then: Graph, **__: Any) -> list[Any]:
    return [port.value.dtype for port in then.outputs]


def _call(graph: Graph, arrays: Sequence[Any]) -> list[Any]:
    from hexane.ops.reference import run_reference  # imported late, because hexane.ops.reference imports this module

    typed = [np.asarray(a).astype(v.dtype.numpy) for a, v in zip(arrays, graph.inputs, strict=True)]
    results = run_reference(graph, dict(zip(graph.input_names(), typed, strict=True)))
    return [results[port.name] for port in graph.outputs]


def _loop(limit: Any, condition: Any, *values: Any, body: Graph, carried: int, most: int, whole: bool) -> list[Any]:
    state, captured = list(values[:carried]), values[carried:]
    rows: list[list[Any]] = [[] for _ in body.outputs[1 + carried :]]
    going = condition is None or bool(condition)
    steps = 0
    for step in count():
        if not going or (limit is not None and step >= int(limit)):
            steps = step
            break
        if rows and step == most:
            raise Error(f"got more than {most} steps, need at most as many as its stacks hold")
        going, *results = _call(body, [step, going, *state, *captured])
        state = results[:carried]
        for row, value in zip(rows, results[carried:], strict=True):
            row.append(value)
    stacks = []
    for row, kind in zip(rows, _stacked({"body": body, "carried": carried, "most": most})[carried:], strict=False):
        stack = np.zeros(kind.shape, kind.dtype.numpy)
        if row:
            stack[: len(row)] = row
        stacks.append(stack)
    return [*state, *stacks, np.array(steps, np.int64)]


def _cond(condition: Any, *values: Any, then: Graph, otherwise: Graph) -> list[Any]:
    return _call(then if condition else otherwise, values)


def _written_out(b: Any, condition: Value, *values: Value, then: Graph, otherwise: Graph) -> tuple[Value, ...]:
    """Expands to both branches and selects between their results: the engine has no branches."""
    sides = []
    for graph in (then, otherwise):
        table = dict(zip(graph.inputs, values, strict=True))
        for node in graph.nodes:
            if node.op not in ("input", "const"):
                inputs = [None if v is None else table.get(v, v) for v in node.inputs]
                table.update(zip(node.values, b.several(node.op, *inputs, **node.attrs), strict=True))
        sides.append([table.get(port.value, port.value) for port in graph.outputs])
    return tuple(b.select(condition, x, y) for x, y in zip(*sides, strict=True))


def _typed(types: Sequence[str]) -> list[TensorType]:
    from_text = [line.split() for line in types]
    return [TensorType(DTYPES[name], tuple(map(int, shape))) for name, *shape in from_text]


def _compiled_shape(*_: Any, types: tuple[str, ...], **__: Any) -> list[Shape]:
    return [t.shape for t in _typed(types)]


def _compiled_dtype(*_: Any, types: tuple[str, ...], **__: Any) -> list[Any]:
    return [t.dtype for t in _typed(types)]


def _only_compiled(*_: Any, **__: Any) -> Any:
    raise Error("got a compiled body, need the op that it was compiled from")


def _loop_attrs(_: Any, attrs: Mapping[str, Any]) -> dict[str, Any]:
    return {"carried": attrs["carried"]}


OPS = (
    Op(
        name=LOOP,
        doc="Runs `body` until its condition is False or `limit` steps are done. Each step replaces the first `carried` "
            "values; the other values are the same in every step. The body takes step (int64), condition (bool) and "
            "the values; it gives the next condition, the next carried values, and rows of stacks. Results: "
            "carried values, stacks with room for `most` steps, and the number of steps. whole: the stacks are "
            "valid to their ends, with zeros after the last step.",
        inputs=("limit?", "condition?", "values*"), outputs=("results*",),
        attrs={"body": body(), "carried": integer(), "most": integer(-1), "whole": flag(False)},
        shape=_loop_shape, dtype=_loop_dtype, check=(_check_loop,), kernel="loop", ref=_loop, ragged=_loop_ragged,
        cases=(), host=_HOST, every_call=True,
    ),
    Op(
        name=COND,
        doc="The results of `then` where condition is True, else those of `otherwise`: graphs whose inputs are the values. "
            "Only the chosen graph is computed.",
        inputs=("condition", "values*"), outputs=("results*",), attrs={"then": body(), "otherwise": body()},
        shape=_cond_shape, dtype=_cond_dtype, check=(_check_cond,), kernel="cond", expand=_written_out, ref=_cond, cases=(),
        every_call=True,
    ),
)  # fmt: skip

COMPILED_OPS = (
    Op(
        name=COMPILED[LOOP], doc="`loop` whose body is the bytes of a plan. types: of the results.",
        inputs=("body", "limit?", "condition?", "values*"), outputs=("results*",),
        attrs={"types": texts(), "carried": integer()}, shape=_compiled_shape, dtype=_compiled_dtype, kernel="loop",
        kernel_attrs=_loop_attrs, level="kernel", ref=_only_compiled, cases=(), every_call=True,
    ),
    Op(
        name=COMPILED[COND], doc="`cond` whose branches are the bytes of plans. types: of the results.",
        inputs=("then", "otherwise", "condition", "values*"), outputs=("results*",), attrs={"types": texts()},
        shape=_compiled_shape, dtype=_compiled_dtype, kernel="cond", kernel_attrs=no_attrs,
        level="kernel", ref=_only_compiled, cases=(), every_call=True,
    ),
)  # fmt: skip
