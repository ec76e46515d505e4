"""Splits products by their output channels, so that fewer weights are unpacked at a time.

    y = conv(x, w)    ->    y[..., :32] = conv(x, w[:32]); y[..., 32:] = conv(x, w[32:])

Only integer products are split: their results have the same bits for any number of channels computed together.
"""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from hexane.graph import TensorType
from hexane.program import Buffer, Program, Step, View, dense_strides

SLICED = ("quantized_conv", "q31_conv", "quantized_matmul", "q31_matmul")
GRAIN = 8  # slices have a multiple of this many channels


def reader_of(program: Program, buffer: int) -> int | None:
    """Returns the only step that reads the buffer, if the buffer is its weight and the step can be split and is in no
    loop. Returns None otherwise."""
    readers = [
        i for i, step in enumerate(program.steps) if any(v is not None and v.buffer == buffer for v in step.inputs)
    ]
    if len(readers) != 1 or any(loop.first <= readers[0] < loop.first + len(loop.moves) for loop in program.loops):
        return None
    step = program.steps[readers[0]]
    weight = step.inputs[1] if len(step.inputs) > 1 else None
    if step.kernel not in SLICED or step.cut is not None or weight is None or weight.buffer != buffer:
        return None
    return readers[0] if _can_be_divided(program, step, weight) else None


def _can_be_divided(program: Program, step: Step, weight: View) -> bool:
    out, axis = step.outputs[0], _axis(step)
    if step.attrs.get("groups", 1) != 1 or weight.type.rank < 2 or weight.type.shape[axis] != out.type.shape[-1]:
        return False
    written = sum(view.buffer == out.buffer for other in program.steps for view in other.outputs)
    if written != 1 or out.ring or out.type.shape[-1] < 2 * GRAIN:
        return False
    channels = out.type.shape[-1]
    for view in step.inputs[2:]:
        if view is None or view.type.size == 1:
            continue
        if not (view.type == out.type or (view.type.shape == (channels,) and _is_constant(program, view))):
            return False
    return _is_constant(program, weight)


def _axis(step: Step) -> int:
    """Returns the axis of a weight's output channels."""
    if step.kernel.endswith("conv"):
        return 0
    return -2 if step.attrs["transpose_y"] else -1


def _is_constant(program: Program, view: View) -> bool:
    """True if the view is a whole constant weight without a name."""
    buffer = program.buffers[view.buffer]
    whole = buffer.bytes == view.type.bytes and view.dense and not view.offset
    return buffer.kind == "weights" and not buffer.name and buffer.data is not None and whole


def in_slices(program: Program, at: int, count: int) -> tuple[Program, frozenset[int]]:
    """Returns the program with one step split into at most `count` steps, each for some of its channels, and the
    buffers of the sliced constants."""
    step, buffers = program.steps[at], list(program.buffers)
    first_new, out = len(buffers), step.outputs[0]
    channels = out.type.shape[-1]
    each = max(GRAIN, -(-channels // count // GRAIN) * GRAIN)
    steps = []
    for begin in range(0, channels, each):
        part = slice(begin, min(begin + each, channels))
        inputs = [step.inputs[0], _constant(buffers, step.inputs[1], _axis(step), part)]
        for view in step.inputs[2:]:
            if view is None or view.type.size == 1:
                inputs.append(view)
            elif view.type == out.type:
                inputs.append(_window(view, part))
            else:
                inputs.append(_constant(buffers, view, 0, part))
        steps.append(replace(step, inputs=tuple(inputs), outputs=(_window(out, part),)))
    more = len(steps) - 1
    all_steps = (*program.steps[:at], *steps, *program.steps[at + 1 :])
    used = {view.buffer for one in all_steps for view in one.inputs if view is not None}
    for view in step.inputs[1:]:
        if view is not None and view.buffer not in used:
            buffers[view.buffer] = replace(buffers[view.buffer], data=None)
    moved = replace(
        program,
        steps=all_steps,
        buffers=tuple(buffers),
        loops=tuple(replace(loop, first=loop.first + more * (loop.first > at)) for loop in program.loops),
        spans={
            i: (first + more * (first > at), last + more * (last > at)) for i, (first, last) in program.spans.items()
        },
    )
    return moved, frozenset(range(first_new, len(buffers)))


def _window(view: View, part: slice) -> View:
    """Returns a view of some channels, which are the innermost axis."""
    kind = TensorType(view.type.dtype, (*view.type.shape[:-1], part.stop - part.start))
    return replace(view, offset=view.offset + part.start * view.strides[-1], type=kind)


def _constant(buffers: list[Buffer], view: View | None, axis: int, part: slice) -> View:
    """Returns a view of a slice of a constant along an axis, in a new buffer."""
    assert view is not None
    data = buffers[view.buffer].data
    assert data is not None
    own = np.ascontiguousarray(np.moveaxis(np.moveaxis(data.reshape(view.type.shape), axis, 0)[part], 0, axis))
    kind = TensorType(view.type.dtype, own.shape)
    buffers.append(Buffer("weights", kind.bytes, data=own, space=buffers[view.buffer].space))
    return View(len(buffers) - 1, 0, kind, dense_strides(kind))


def halvings(program: Program, at: int) -> Iterable[int]:
    """Yields the possible numbers of slices of a step: 2, 4, 8 and so on."""
    channels = program.steps[at].outputs[0].type.shape[-1]
    count = 2
    while channels // count >= GRAIN:
        yield count
        count *= 2
