"""Counts the memory that a program needs besides its arena, for each runtime."""

from dataclasses import dataclass, replace

import numpy as np

from hexane import _core
from hexane.emit.plan import WEIGHTS_ALIGNMENT, emit_plan
from hexane.emit.plan_view import PlanView, arena_bytes
from hexane.emit.prepare import prepared
from hexane.errors import Error
from hexane.graph import Array
from hexane.program import Buffer, Program, Step, View
from hexane.program.attrs import Strings, pack
from hexane.stages.stream.rows import StepRows
from hexane.targets.kernels import kernels

_FAMILIES = _core.numerics_families()


class ExtraBytes:
    """Counts the bytes that a program needs besides its arena. Caches the bytes of each step, because most steps do not
    change from one tried program to the next."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._known: dict[object, tuple[int, int, int]] = {}
        self._bytes: dict[int, tuple[Array, Array]] = {}  # id of an array -> the array, kept alive, and its bytes

    def __call__(self, program: Program, pools: int = 1) -> int:
        """Returns the bytes for the program's runtime. "host": scratch of this CPU's kernels. "c99": inputs and outputs
        that are not streamed; they lie in the same memory as the arena. The kernels use no scratch.
        "cmsis-nn": as for "c99", plus the growth of the arena for CMSIS-NN's scratch: the larger growth of the two for
        processors with and without vector instructions. Most scratch of CMSIS-NN lies in gaps of the arena.

        pools: the number of memories for tensors. With several memories CMSIS-NN runs only steps whose scratch fits, so
        the memories do not grow.
        """
        if program.runtime == "host":
            return self.scratch(program)
        ports = port_bytes(program)
        if program.runtime == "c99" or pools > 1:
            return ports
        view = PlanView(prepared(bytes(_core.plan_write(emit_plan(program)))))
        return (
            ports
            + max(arena_bytes(view, assignment) for assignment in view.bodies().values())
            - arena_bytes(view, None)
        )

    def scratch(self, program: Program) -> int:
        """Returns the bytes of scratch that this CPU's kernels use."""
        looped = {i for loop in program.loops for i in range(loop.first, loop.first + len(loop.moves))}
        constants = _Constants(program, self._bytes)
        steps = [
            self._of_step(step, constants, i in looped)
            for i, step in enumerate(program.steps)
            if step.kernel != "program"  # a step "program" runs on another device
        ]
        return _core.scratch_bytes(steps, self.threads)

    def _of_step(self, step: Step, constants: "_Constants", in_loop: bool) -> tuple[int, int, int]:
        strings = Strings()
        attrs = pack(kernels(step.numerics.family).layout(step.kernel), step.attrs, strings)
        block = _FAMILIES[step.numerics.family]
        inputs, outputs = ([constants.described(view) for view in side] for side in (step.inputs, step.outputs))
        cut = step.cut if self.threads > 1 else None  # only with several threads does a cut affect the scratch
        name, family = step.kernel, step.numerics.family
        numerics = pack(block, step.numerics.parameters, Strings()) if block else b""
        looped, text = in_loop and cut is not None, strings.tobytes()
        of_operands = [None if one is None else one.key for one in (*inputs, *outputs)]
        key = name, family, attrs, text, numerics, cut, looped, len(inputs), *of_operands
        if key not in self._known:
            sides = [_given(one) for one in inputs], [_given(one) for one in outputs]
            try:
                self._known[key] = _core.kernel_scratch(
                    name, family, *sides, attrs=attrs, strings=text, numerics=numerics, cut=cut, in_loop=looped,
                    threads=self.threads,
                )  # fmt: skip
            except Error as error:
                raise Error(f"{error} ({name}, {step.node.where})") from None
        return self._known[key]


@dataclass(frozen=True, slots=True)
class _Operand:
    """A view as kernels see it. data: its contents if they are equal in all calls, else None."""

    view: View
    data: Array | None

    @property
    def key(self) -> object:
        """A key that is equal for operands with the same scratch needs."""
        view = self.view
        at = None if self.data is None else (self.data.__array_interface__["data"][0], view.offset)
        return view.type, view.strides, view.ring, at


def _given(one: _Operand | None) -> tuple[str, tuple[int, ...], tuple[int, ...], int, Array | None] | None:
    if one is None:
        return None
    view = one.view
    data = None if one.data is None else one.data[view.offset :]
    return view.type.dtype.name, view.type.shape, view.strides, view.ring, data


class _Constants:
    """Describes the operands of a program, with the bytes of constant ones: weights, params, and states that no step
    writes."""

    def __init__(self, program: Program, known: dict[int, tuple[Array, Array]]) -> None:
        """known: a cache of constants' bytes by the id of the array, to which this class adds entries."""
        self._buffers, self._known = program.buffers, known
        self._written: dict[int, list[tuple[int, int]]] = {}
        for step in program.steps:
            for view in step.outputs:
                if program.buffers[view.buffer].kind == "state":
                    self._written.setdefault(view.buffer, []).append(_ends(view))

    def described(self, view: View | None) -> _Operand | None:
        """Returns the operand of a view, or None for an absent one."""
        if view is None:
            return None
        buffer = self._buffers[view.buffer]
        begin, end = _ends(view)
        if buffer.data is None or buffer.kind not in ("weights", "param", "state"):
            return _Operand(view, None)
        if any(begin < last and first < end for first, last in self._written.get(view.buffer, ())):
            return _Operand(view, None)
        return _Operand(view, self._bytes(buffer, buffer.data))

    def _bytes(self, buffer: Buffer, data: Array) -> Array:
        if id(data) not in self._known:
            laid = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            if buffer.strides or laid.ctypes.data % WEIGHTS_ALIGNMENT:
                laid = np.zeros(buffer.bytes, np.uint8)
                np.ndarray(data.shape, data.dtype, laid, 0, buffer.strides or None)[...] = data
            self._known[id(data)] = data, laid
        return self._known[id(data)][1]


def _ends(view: View) -> tuple[int, int]:
    """Returns the half-open range of bytes that the view touches in its buffer."""
    shape, item = view.type.shape, view.type.dtype.bits // 8
    if 0 in shape:
        return view.offset, view.offset
    last = sum((n - 1) * stride for n, stride in zip(shape, view.strides, strict=True))
    return view.offset, view.offset + last + item


def whole_text(program: Program) -> str:
    """Returns a sentence on steps that the host, but not the C99 runtime, would compute row by row, or "" for none."""
    host = replace(program, runtime="host")
    steps = [step for step in program.steps if not program.computes_rows(step.kernel) and StepRows(step, host).is_cut]
    if not steps:
        return ""
    largest = max(steps, key=lambda step: sum(view.type.bytes for view in (*step.inputs, *step.outputs) if view))
    others = "" if len(steps) == 1 else f" and {len(steps) - 1} more"
    return f" The C99 runtime computes {largest.node.where} ({largest.kernel}){others} as a whole only."


def extra_text(count: int, runtime: str) -> str:
    """Returns a text such as "57344 of scratch" or "12 of inputs and outputs"."""
    what = {"host": "scratch", "c99": "inputs and outputs", "cmsis-nn": "inputs, outputs and scratch"}
    return f"{count} of {what[runtime]}"


def port_bytes(program: Program) -> int:
    """Returns the bytes of the inputs and outputs that are not streamed."""
    return sum(port.view.type.bytes for port in (*program.inputs, *program.outputs) if not port.streamed)


def smaller_text(program: Program, runtime: str, threads: int, count: int) -> str:
    """Returns a sentence with the ways to reduce the memory of a plan for this number of threads. count: the bytes of
    memory besides the arena."""
    dtype = ", dtype fp16" if runtime == "host" else ""
    ways = f"More sram, smaller images, fewer channels there{dtype} or int8 (hexane quantize) would help"
    if runtime != "host":
        ports = port_bytes(program)
        return f"{ways}; streamed inputs and outputs may help, too (whole, they take {ports} of it)" if ports else ways
    if not count:
        return ways
    one = "threads=1, which takes less scratch, and " if threads > 1 else ""
    return f"{ways}, as would {one}the runtime c99, which has no scratch, if a small device runs the plan"
