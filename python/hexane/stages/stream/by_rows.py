"""Rewrites steps so that they can be computed row by row."""

from collections.abc import Iterable
from dataclasses import replace

from hexane.dtypes import FP16, FP32, INT32
from hexane.graph import TensorType
from hexane.ops import OPS, apply
from hexane.ops.records.running import RUNNING_REDUCE
from hexane.program import Buffer, Program, Step, View, dense_strides
from hexane.stages.stream.rows import AXIS

KINDS = {"reduce_sum": "sum", "reduce_mean": "mean", "reduce_max": "max", "reduce_min": "min"}


def by_rows(program: Program) -> Program:
    """Returns the program with the same results, with steps that can be part of more regions.

    quantized_mean(%x)  ->  quantized_mean(running_sum(%x))
    reduce_mean(%x)     ->  copy(running_reduce(%x))

    The last row of a running sum, computed row by row in a ring of one row, is the result. q31_mean, and sums, maxima
    and minima of floats over pixels, are rewritten too. In fp16 a cast replaces the copy after running_reduce. The axes
    of a copy to an output are reordered to the memory order of the copied tensor.
    """
    buffers = list(program.buffers)
    steps: list[Step] = []
    for step in program.steps:
        if _is_mean_of_rows(step) and not program.segments:  # segments refer to steps by number
            steps += _summed(step, buffers, program.space("arena").name)
        elif _is_reduction_of_rows(step) and not program.segments:
            steps += _reduced(step, buffers, program.space("arena").name)
        else:
            steps.append(_in_order_of_source(step, program))
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _is_mean_of_rows(step: Step) -> bool:
    x = step.inputs[0] if step.kernel in ("quantized_mean", "q31_mean") else None
    if x is None or x.type.rank != 4 or x.type.shape[0] != 1 or x.type.shape[AXIS] < 2 or not x.type.shape[3]:
        return False
    return tuple(step.attrs["axes"]) == (1, 2)


def _summed(step: Step, buffers: list[Buffer], space: str) -> Iterable[Step]:
    x = step.inputs[0]
    assert x is not None
    _, rows, _, channels = x.type.shape
    sums, last = TensorType(INT32, (1, rows, 1, channels)), TensorType(INT32, (1, 1, 1, channels))
    buffers.append(Buffer("arena", last.bytes, space=space))
    kept = View(len(buffers) - 1, 0, sums, dense_strides(sums), ring=1)
    node = apply(OPS["running_sum"], step.node.inputs[:1], {}, step.node.sources)[0].node
    yield replace(step, kernel="running_sum", node=node, outputs=(kept,), attrs={}, cut=(AXIS, 0, rows))
    yield replace(step, inputs=(View(kept.buffer, 0, last, dense_strides(last)),))


def _is_reduction_of_rows(step: Step) -> bool:
    x = step.inputs[0] if step.kernel in KINDS and step.numerics.family == "ieee" else None
    if x is None or x.type.dtype not in (FP32, FP16) or x.type.rank not in (3, 4) or x.type.shape[0] != 1:
        return False
    rows, channels = x.type.shape[AXIS], x.type.shape[-1]
    axes = {axis % x.type.rank for axis in step.attrs["axes"]}
    # Images of one channel are excluded: their pixels are added in another order.
    return axes == set(range(1, x.type.rank - 1)) and x.type.size > 0 and rows > 1 and channels > 1


def _reduced(step: Step, buffers: list[Buffer], space: str) -> Iterable[Step]:
    out = step.outputs[0].type
    value = apply(OPS[RUNNING_REDUCE], step.node.inputs[:1], {"kind": KINDS[step.kernel]}, step.node.sources)[0]
    _, _, levels, channels = value.type.shape
    last = TensorType(FP32, (1, 1, levels, channels))
    buffers.append(Buffer("arena", last.bytes, space=space))
    kept = View(len(buffers) - 1, 0, value.type, dense_strides(value.type), ring=1)
    attrs, rows = {"kind": KINDS[step.kernel]}, value.type.shape[AXIS]
    yield replace(step, kernel="running_reduce", node=value.node, outputs=(kept,), attrs=attrs, cut=(AXIS, 0, rows))
    result = TensorType(FP32, out.shape)
    kernel = "copy" if out.dtype == FP32 else "cast"
    yield replace(step, kernel=kernel, inputs=(View(kept.buffer, 0, result, dense_strides(result)),), attrs={})


def _in_order_of_source(step: Step, program: Program) -> Step:
    """Reorders the axes of a copy to a port, so that a channels-last image is copied by rows."""
    if step.kernel != "copy" or step.inputs[0] is None or program.buffers[step.outputs[0].buffer].kind != "port":
        return step
    return in_order_of(step, step.inputs[0])


def in_order_of(copy: Step, view: View) -> Step:
    """Returns the copy with its axes in the memory order of `view`, one of its operands. One axis of extent 1 comes
    first; the other axes of extent 1 come last."""
    source, target = copy.inputs[0], copy.outputs[0]
    assert source is not None
    shape = view.type.shape
    axes = sorted(range(len(shape)), key=lambda axis: (shape[axis] == 1, -view.strides[axis]))
    if axes and shape[axes[-1]] == 1:
        axes.insert(0, axes.pop())

    def ordered(view: View) -> View:
        kind = replace(view.type, shape=tuple(view.type.shape[axis] for axis in axes))
        return replace(view, type=kind, strides=tuple(view.strides[axis] for axis in axes))

    return replace(copy, inputs=(ordered(source),), outputs=(ordered(target),))
