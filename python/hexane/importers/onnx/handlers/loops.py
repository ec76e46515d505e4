"""Loop and Scan. A loop with a constant trip count and few nodes is unrolled. A loop with a computed trip count or many
nodes becomes one op with a body graph."""

from collections.abc import Callable, Sequence

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.bodies import MOST_STEPS, Body, is_long
from hexane.importers.onnx.handlers.bodies import FewIterationsError, run_loop
from hexane.importers.onnx.node import Builder, Item, OnnxNode, Outputs, TensorList, axis_of, described
from hexane.importers.onnx.registry import onnx_op


@onnx_op("Loop", shape_inputs=(0, 1), valid_lengths=True)
def loop(b: Builder, n: OnnxNode) -> Outputs:
    """Returns the carried values after the last step, then the stacked outputs of all steps."""
    graph = n.attrs["body"]
    state = [n.item(i) for i in range(2, len(n.inputs))]
    _check(graph, 2 + len(state), 1 + len(state))
    limit, condition = n.optional(0), n.optional(1)
    if any(v is not None and v.node.op != "const" for v in (limit, condition)):
        return run_loop(b, n, graph, state, limit, condition)
    count = n.integer(0) if n.has(0) else MOST_STEPS + 1
    going = bool(n.scalar(1)) if n.has(1) else True
    if count > MOST_STEPS or is_long(count, len(graph.node)) or count <= 0 or not going:
        try:
            return run_loop(b, n, graph, state, limit, condition, trial=True)
        except Error as error:
            if n.has(0) and count > MOST_STEPS and not isinstance(error, FewIterationsError):
                raise  # a loop of so many steps is not unrolled
    stacks: list[list[Value]] = [[] for _ in graph.output[1 + len(state) :]]
    step = 0
    while going and step < count:
        if step == MOST_STEPS:
            return run_loop(b, n, graph, [n.item(i) for i in range(2, len(n.inputs))], limit, condition)
        given = [b.const(np.array(step, np.int64)), b.const(np.array(going)), *state]
        items = n.run(graph, given, step)
        if items is None:
            return None
        decided = _tensor(items[0]).node.data
        if decided is None or decided.size != 1:
            return run_loop(b, n, graph, [n.item(i) for i in range(2, len(n.inputs))], limit, condition)
        going = bool(decided.reshape(()))
        state = list(items[1 : 1 + len(state)])
        for stack, value in zip(stacks, items[1 + len(state) :], strict=True):
            stack.append(_tensor(value))
        step += 1
    return [*state, *_stacked(b, stacks, [0] * len(stacks))]


@onnx_op("Scan", valid_lengths=True)
def scan(b: Builder, n: OnnxNode) -> Outputs:
    """Like Loop, but each step reads a slice of each scan input. Direction 1: inputs are read from the end, and outputs
    are stacked from the end."""
    if n.version < 9:
        raise Error("got Scan of opset 8, which runs over batches, need opset 9 or newer")
    graph, num = n.attrs["body"], n.attrs["num_scan_inputs"]
    values = [n.value(i) for i in range(len(n.inputs))]
    if not 1 <= num <= len(values):
        raise Error(f"num_scan_inputs: got {num} of {len(values)} inputs, need 1 to {len(values)}")
    state, scanned = values[: len(values) - num], values[len(values) - num :]
    _check(graph, len(values), len(state))
    num_out = len(graph.output) - len(state)
    axes = [axis_of(a, len(v.shape)) for a, v in zip(_each(n, "scan_input_axes", num), scanned, strict=True)]
    lengths = {v.shape[a] for v, a in zip(scanned, axes, strict=True)}
    if len(lengths) != 1 or min(lengths) < 1:
        raise Error(f"got the lengths {sorted(lengths)}, need one for all, of at least 1")
    (length,) = lengths
    backwards = _each(n, "scan_input_directions", num)
    if length > MOST_STEPS or is_long(length, len(graph.node)):
        slices = [_piece(b, v, a, length - 1 if back else None)
                  for v, a, back in zip(scanned, axes, backwards, strict=True)]  # fmt: skip
        try:
            outputs = run_loop(b, n, graph, state, b.const(np.array(length)), None, trial=True, scanned=slices)
            assert outputs is not None
            return [*outputs[: len(state)], *_turned(b, n, outputs[len(state) :], length)]
        except Error:
            if length > MOST_STEPS:
                raise
    stacks: list[list[Value]] = [[] for _ in range(num_out)]
    for step in range(length):
        pieces = [_slice(b, v, a, length - 1 - step if back else step)
                  for v, a, back in zip(scanned, axes, backwards, strict=True)]  # fmt: skip
        items = n.run(graph, [*state, *pieces], step)
        if items is None:
            return None
        state = [_tensor(value) for value in items[: len(state)]]
        for stack, value in zip(stacks, items[len(state) :], strict=True):
            stack.append(_tensor(value))
    for stack, front in zip(stacks, _each(n, "scan_output_directions", num_out), strict=True):
        if front:
            stack.reverse()
    return [*state, *_stacked(b, stacks, _each(n, "scan_output_axes", num_out))]


def _piece(b: Builder, x: Value, axis: int, last: int | None) -> Callable[[Value, Body], Value]:
    """Returns a function that slices a scan input for a step. last: for an input that is read backwards, its last
    index."""

    def piece(step: Value, body: Body) -> Value:
        index = step if last is None else b.sub(b.const(np.array(last)), step)
        result: Value = b.gather(body.capture(x), index, axis=axis)
        return result

    return piece


def _turned(b: Builder, n: OnnxNode, stacks: Sequence[Value], length: int) -> list[Value]:
    """Returns the stacks of a Scan, reversed and transposed by its attributes."""
    result = []
    backwards, axes = (_each(n, f"scan_output_{what}", len(stacks)) for what in ("directions", "axes"))
    for stack, back, axis in zip(stacks, backwards, axes, strict=True):
        if back:
            stack = b.gather(stack, b.const(np.arange(length)[::-1].copy()), axis=0)
        at = axis_of(axis, len(stack.shape))
        order = [*range(1, len(stack.shape))]
        order.insert(at, 0)
        result.append(b.transpose(stack, perm=tuple(order)) if at else stack)
    return result


def _tensor(item: Item) -> Value:
    if isinstance(item, TensorList):
        raise Error(f"got {described(item)} out of the body, need a tensor")
    return item


def _each(n: OnnxNode, name: str, num: int) -> Sequence[int]:
    axes: Sequence[int] = n.attrs.get(name) or (0,) * num
    if len(axes) != num:
        raise Error(f"{name}: got {tuple(axes)}, need {num} integers")
    return axes


def _check(graph: onnx.GraphProto, inputs: int, outputs: int) -> None:
    if len(graph.input) != inputs or len(graph.output) < outputs:
        raise Error(f"got a body of {len(graph.input)} inputs and {len(graph.output)} outputs, "
                    f"need {inputs} and at least {outputs}")  # fmt: skip


def _slice(b: Builder, x: Value, axis: int, at: int) -> Value:
    begin, end = [0] * len(x.shape), list(x.shape)
    begin[axis], end[axis] = at, at + 1
    piece: Value = b.slice_by_index(x, begin=begin, end=end)
    result: Value = b.reshape(piece, shape=(*x.shape[:axis], *x.shape[axis + 1 :]))
    return result


def _stacked(b: Builder, stacks: Sequence[Sequence[Value]], axes: Sequence[int]) -> list[Value]:
    if any(not stack for stack in stacks):
        raise Error("got no steps at all, need one for the outputs that are stacked")
    return [b.stack(*stack, axis=axis) for stack, axis in zip(stacks, axes, strict=True)]
