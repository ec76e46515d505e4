"""Places inputs and outputs in the arena, for devices without other memory.

    y = conv(quantize(x))    ->    load: q = quantize(x)    body: r = conv(q)    store: y = dequantize(r)

An input is stored in the arena in the form in which the network first computes with it, such as int8 after its
quantize. An output is stored in the form it has before its last moves, casts and elementwise ops.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hexane.graph import TensorType
from hexane.ops import OPS
from hexane.program import Buffer, Program, Step, View, dense_strides

CASTS = ("copy", "quantize", "dequantize")


class Body(NamedTuple):
    """The steps [first, end) of a program: earlier steps load inputs into the arena, later ones store outputs."""

    first: int
    end: int


@dataclass(slots=True)
class _Steps:
    """loads, stores: the steps that run before and after all others, in order."""

    program: Program
    steps: list[Step | None]  # None for a step moved to loads or stores
    buffers: list[Buffer]
    loads: list[Step]
    stores: list[Step]

    def users(self, buffer: int, written: bool) -> list[int]:
        result = []
        for i, step in enumerate(self.steps):
            views = () if step is None else step.outputs if written else step.inputs
            if any(view is not None and view.buffer == buffer for view in views):
                result.append(i)
        return result

    def step(self, i: int) -> Step:
        step = self.steps[i]
        assert step is not None
        return step

    def new(self, size: int) -> int:
        self.buffers.append(Buffer("arena", size, space=self.program.space("arena").name))
        return len(self.buffers) - 1

    def operand(self, i: int) -> View | None:
        """Returns the single operand of a step that copies, casts or computes elementwise, or None for other steps."""
        step = self.step(i)
        record = OPS.get(step.node.op)
        simple = step.kernel in CASTS or (record is not None and record.elementwise and record.kernel == step.kernel)
        views = [v for v in step.inputs if v is not None and self.buffers[v.buffer].kind != "weights"]
        if not simple or len(views) != 1 or len(step.outputs) != 1:
            return None
        same = views[0].type.size == step.outputs[0].type.size and views[0].buffer != step.outputs[0].buffer
        return views[0] if same else None

    def is_stored(self, buffer: int) -> bool:
        """True if a step moved to the stores reads the buffer; its writer must then run before the stores."""
        return any(view is not None and view.buffer == buffer for step in self.stores for view in step.inputs)

    def is_mine(self, view: View) -> bool:
        """True if the view covers a whole buffer of the arena."""
        buffer = self.buffers[view.buffer]
        return buffer.kind == "arena" and not buffer.surface and not view.ring and buffer.bytes == view.type.bytes


def hold(program: Program) -> tuple[Program, Body]:
    """Returns the program with inputs and outputs in the arena, and the range of its body."""
    work = _Steps(program, list(program.steps), list(program.buffers), [], [])
    for port in program.inputs:
        if port.streamed:  # a streamed input passes through the arena already
            continue
        if (readers := work.users(port.view.buffer, False)) and program.buffers[port.view.buffer].kind == "port":
            _load(work, port.view, readers)
    for port in program.outputs:
        if port.streamed:
            continue
        if (writers := work.users(port.view.buffer, True)) and program.buffers[port.view.buffer].kind == "port":
            _store(work, port.view, writers)
    body = [step for step in work.steps if step is not None]
    steps = (*work.loads, *body, *work.stores)
    first = len(work.loads)
    return replace(program, steps=steps, buffers=tuple(work.buffers)), Body(first, first + len(body))


def _load(work: _Steps, port: View, readers: Sequence[int]) -> None:
    chain: list[int] = []
    at = list(readers)
    while len(at) == 1 and work.operand(at[0]) is not None and work.is_mine(out := work.step(at[0]).outputs[0]):
        if work.users(out.buffer, True) != at:
            break
        chain.append(at[0])
        at = work.users(out.buffer, False)
    sizes = [work.step(i).outputs[0].type.bytes for i in chain]
    if chain and min(sizes) <= port.type.bytes:
        for i in chain[: sizes.index(min(sizes)) + 1]:
            work.loads.append(work.step(i))
            work.steps[i] = None
        return
    held = work.new(port.type.bytes)
    work.loads.append(_copy(work.step(readers[0]), port, held, port.buffer))
    _move(work, port.buffer, held)


def _store(work: _Steps, port: View, writers: Sequence[int]) -> None:
    chain: list[int] = []
    at = list(writers)
    if not work.users(port.buffer, False):
        while len(at) == 1 and (source := work.operand(at[0])) is not None and work.is_mine(source):
            chain.append(at[0])
            if work.users(source.buffer, False) != at or work.is_stored(source.buffer):
                break
            at = work.users(source.buffer, True)
    sources = [view for view in map(work.operand, chain) if view is not None]
    sizes = [view.type.bytes for view in sources]
    if not chain or min(sizes) > port.type.bytes:
        held = work.new(port.type.bytes)
        work.stores.append(_copy(work.step(writers[-1]), port, port.buffer, held))
        _move(work, port.buffer, held)
        return
    last = sizes.index(min(sizes))
    kept = sources[last].buffer
    if any(i > chain[last] for i in work.users(kept, True)):  # a later step overwrites the buffer
        held = work.new(min(sizes))
        own = _copy(work.step(chain[last]), sources[last], held, kept)
        work.stores.append(_with_buffer(work.step(chain[last]), kept, held))
        work.steps[chain[last]] = own
        chain = chain[:last]
    for i in reversed(chain[: last + 1]):
        work.stores.append(work.step(i))
        work.steps[i] = None


def _copy(near: Step, view: View, to: int, source: int) -> Step:
    """Returns a step that copies all elements of the view. near: the copy gets the node and the arithmetic of this
    step."""
    kind = TensorType(view.type.dtype, view.type.shape)
    whole = View(source, 0, kind, dense_strides(kind))
    return Step("copy", near.node, (whole,), (replace(whole, buffer=to),), {}, near.numerics)


def _move(work: _Steps, buffer: int, to: int) -> None:
    work.steps[:] = [None if step is None else _with_buffer(step, buffer, to) for step in work.steps]


def _with_buffer(step: Step, buffer: int, to: int) -> Step:
    def moved(view: View) -> View:
        return replace(view, buffer=to) if view.buffer == buffer else view

    inputs = tuple(None if view is None else moved(view) for view in step.inputs)
    return replace(step, inputs=inputs, outputs=tuple(map(moved, step.outputs)))
