"""Loop and Scan with a number of steps that is known at import, one step's nodes after the other's."""

from collections.abc import Sequence

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.node import Builder, Item, OnnxNode, Outputs, TensorList, axis_of
from hexane.importers.onnx.registry import onnx_op

MAX_STEPS = 4096


@onnx_op("Loop", shape_inputs=(0, 1), valid_lengths=True)
def loop(b: Builder, n: OnnxNode) -> Outputs:
    """Carried values after the last step, then what each step gives out, stacked."""
    graph = n.attrs["body"]
    state = [n.item(i) for i in range(2, len(n.inputs))]
    count = n.integer(0) if n.has(0) else MAX_STEPS + 1
    going = bool(n.scalar(1)) if n.has(1) else True
    _check(graph, 2 + len(state), 1 + len(state))
    stacks: list[list[Value]] = [[] for _ in graph.output[1 + len(state) :]]
    step = 0
    while going and step < count:
        if step == MAX_STEPS:
            raise Error(f"got more than {MAX_STEPS} steps, need fewer")
        given = [b.const(np.array(step, np.int64)), b.const(np.array(going)), *state]
        found = n.run(graph, given, step)
        if found is None:
            return None
        condition = _tensor(found[0]).node.data
        if condition is None or condition.size != 1:
            raise Error("got a condition that is computed at run time, need one that is known at import")
        going = bool(condition.reshape(()))
        state = list(found[1 : 1 + len(state)])
        for stack, value in zip(stacks, found[1 + len(state) :], strict=True):
            stack.append(_tensor(value))
        step += 1
    return [*state, *_stacked(b, stacks, [0] * len(stacks))]


@onnx_op("Scan", valid_lengths=True)
def scan(b: Builder, n: OnnxNode) -> Outputs:
    """Like Loop, but each step reads a slice of every scan input. Direction 1: inputs are read from the end, outputs
    put at the front."""
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
    if len(lengths) != 1 or not 1 <= max(lengths) <= MAX_STEPS:
        raise Error(f"got the lengths {sorted(lengths)}, need one for all, 1 to {MAX_STEPS}")
    (length,) = lengths
    backwards = _each(n, "scan_input_directions", num)
    stacks: list[list[Value]] = [[] for _ in range(num_out)]
    for step in range(length):
        pieces = [_slice(b, v, a, length - 1 - step if back else step)
                  for v, a, back in zip(scanned, axes, backwards, strict=True)]  # fmt: skip
        found = n.run(graph, [*state, *pieces], step)
        if found is None:
            return None
        state = [_tensor(value) for value in found[: len(state)]]
        for stack, value in zip(stacks, found[len(state) :], strict=True):
            stack.append(_tensor(value))
    for stack, front in zip(stacks, _each(n, "scan_output_directions", num_out), strict=True):
        if front:
            stack.reverse()
    return [*state, *_stacked(b, stacks, _each(n, "scan_output_axes", num_out))]


def _tensor(item: Item) -> Value:
    if isinstance(item, TensorList):
        raise Error(f"got a sequence of {len(item)} tensors out of the body, need a tensor")
    return item


def _each(n: OnnxNode, name: str, num: int) -> Sequence[int]:
    found: Sequence[int] = n.attrs.get(name) or (0,) * num
    if len(found) != num:
        raise Error(f"{name}: got {tuple(found)}, need {num} integers")
    return found


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
