"""Runs a program in the C99 runtime with every byte of its arenas overwritten as soon as no later run reads it, before
the next run begins.

Which bytes those are is found from the last run back, by what kernels say they need and by nothing of how the program
was made. So what reads a row that is no longer there, or bytes outside of what it needs, shows as other results.
"""

import ctypes
from collections.abc import Iterator, Mapping

import numpy as np

from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array
from hexane.program import Program, View
from hexane.runtime.c99 import C99Model
from hexane.stages.stream.rows import AXIS, StepRows
from program_runs import runs

POISON = 0xD5  # -43 as int8, about -3e13 as fp32
IN_ORDER = ("running_sum", "running_reduce")  # which read the row before of what they write
YIELD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32)


def run_poisoned(program: Program, c99: ctypes.CDLL, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one run."""
    model = C99Model(bytes(_core.plan_write(emit_plan(program))), c99)
    names = [name for name, extent in program.extents.items() if extent.space.kind == "arena"]
    held = {
        name: model._held[i] for i, name in enumerate(program.extents) if name in names
    }  # the spaces of a plan, in order
    assert all(array.size == program.extents[name].bytes for name, array in held.items())
    order = list(runs(program))
    dead = _dead_after(program, order, names)
    at = 0

    def after(_: int | None, step: int) -> int:
        nonlocal at
        assert step == order[at][0]
        for name, array in held.items():
            array[dead[at][name]] = POISON
        at += 1
        return 0

    for array in held.values():
        array[:] = POISON
    hook = YIELD(after)
    c99.hx_shared_yield(model._net, hook)
    found = model(feeds)
    c99.hx_shared_yield(model._net, None)
    assert at == len(order)
    return found


def _dead_after(program: Program, order: list[tuple[int, int, int]], names: list[str]) -> list[dict[str, Array]]:
    """For each run the bytes that no later one reads as they are now."""
    rows: dict[int, StepRows] = {}
    live = {name: np.zeros(program.extents[name].bytes, bool) for name in names}
    found = []
    for i, begin, end in reversed(order):
        found.append({name: ~alive for name, alive in live.items()})
        step = program.steps[i]
        own = rows.setdefault(i, StepRows(step, program))
        cut = step.cut if end else None
        for view in step.outputs:
            if (name := program.buffers[view.buffer].space) in live:
                live[name][_bytes(program, view, cut, begin, end)] = False
        for k, view in enumerate(step.inputs):
            if view is not None and (name := program.buffers[view.buffer].space) in live:
                live[name][_bytes(program, view, *_needed(own, k, view, cut, begin, end))] = True
        if step.kernel in IN_ORDER and begin > 0:
            out = step.outputs[0]
            live[program.buffers[out.buffer].space][_bytes(program, out, cut, begin - 1, begin)] = True
    return found[::-1]


def _needed(
    own: StepRows, k: int, view: View, cut: tuple[int, int, int] | None, begin: int, end: int
) -> tuple[tuple[int, int, int] | None, int, int]:
    if cut is None or view.type.rank <= AXIS or view.type.shape[AXIS] == 1 or own.is_packed(k):
        return None, 0, 0
    first, behind = own.needs(k)
    some = first[begin:end] < behind[begin:end]
    if not some.any():
        return cut, 0, 0
    return cut, int(first[begin:end][some].min()), int(behind[begin:end][some].max())


def _bytes(program: Program, view: View, cut: tuple[int, int, int] | None, begin: int, end: int) -> Array:
    """Where in its space these rows of a view lie; all of them where it is not cut."""
    at = np.array([program.offsets[view.buffer] + view.offset], np.int64)
    for index, stride in _steps(view, cut, begin, end):
        at = (at[:, None] + index[None, :] * stride).ravel()
    return (at[:, None] + np.arange(view.type.dtype.bits // 8)).ravel()


def _steps(view: View, cut: tuple[int, int, int] | None, begin: int, end: int) -> Iterator[tuple[Array, int]]:
    for axis, (extent, stride) in enumerate(zip(view.type.shape, view.strides, strict=True)):
        index = np.arange(begin, end) if cut is not None and axis == cut[0] else np.arange(extent)
        yield np.unique(index % view.ring) if view.ring and axis == AXIS else index, stride
