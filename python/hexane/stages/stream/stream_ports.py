"""Places rows of inputs and outputs in the arena, for devices without memory for a whole port. A streamed input may
come row by row from a camera or a microphone.

    y = conv(x)    ->    r = copy(x); s = conv(r); y = copy(s)

Each copy processes all rows in order, each row once. A device may replace a copy: it then writes each row to its place
in the arena, or reads it from its place. Row streaming turns r and s into rings, like all other tensors.
"""

from collections.abc import Collection
from dataclasses import replace

from hexane.graph import TensorType
from hexane.program import Buffer, PortView, Program, Step, View, dense_strides
from hexane.stages.stream.by_rows import in_order_of


def stream_ports(program: Program, inputs: bool, outputs: bool) -> Program:
    """Returns the program with all inputs or all outputs streamed. Outputs whose length is known only at run time stay
    unchanged."""
    of_lengths = {port.length for port in program.outputs}
    chosen_inputs = program.inputs if inputs else ()
    chosen_outputs = [p for p in program.outputs if not p.length and p.name not in of_lengths] if outputs else ()
    for port in (*chosen_inputs, *chosen_outputs):
        if program.buffers[port.view.buffer].kind == "port" and not program.buffers[port.view.buffer].surface:
            program = _streamed(program, port)
    return program


def stream_ports_as(program: Program, like: Program) -> Program:
    """Returns the program with its inputs streamed if those of `like` are, and likewise its outputs. like: a program of
    the same graph."""
    sides = [any(port.streamed for port in ports) for ports in (like.inputs, like.outputs)]
    return stream_ports(program, *sides) if any(sides) else program


def _streamed(program: Program, port: PortView) -> Program:
    def marked(ports: Collection[PortView]) -> tuple[PortView, ...]:
        return tuple(replace(one, streamed=True) if one is port else one for one in ports)

    program = replace(program, inputs=marked(program.inputs), outputs=marked(program.outputs))
    buffer, is_input = port.view.buffer, any(one.view is port.view and one.streamed for one in program.inputs)
    users = [i for i, step in enumerate(program.steps) if buffer in _buffers(step)]
    if not users:
        return program
    steps = list(program.steps)
    if len(users) == 1 and (copy := _as_rows(program, steps[users[0]], port.view, is_input)) is not None:
        steps[users[0]] = copy
        return replace(program, steps=tuple(steps))
    buffers = [*program.buffers, Buffer("arena", port.view.type.bytes, space=program.space("arena").name)]
    views = {view for i in users for view in _views(steps[i]) if view.buffer == buffer}
    shape = views.pop() if len(views) == 1 else port.view
    seen = shape if _is_whole(shape, port.view.type) else port.view
    kind = TensorType(seen.type.dtype, seen.type.shape)
    own = View(buffer, 0, kind, seen.strides)
    held = View(len(buffers) - 1, 0, kind, dense_strides(kind))
    for i in users:
        steps[i] = _moved(steps[i], own, held)
    near = program.steps[users[0 if is_input else -1]]
    ends = (own, held) if is_input else (held, own)
    copy = Step("copy", near.node, ends[:1], ends[1:], {}, near.numerics)
    steps.insert(users[0] if is_input else users[-1] + 1, copy)
    return replace(program, steps=tuple(steps), buffers=tuple(buffers))


def _views(step: Step) -> list[View]:
    return [view for view in (*step.inputs, *step.outputs) if view is not None]


def _buffers(step: Step) -> set[int]:
    return {view.buffer for view in _views(step)}


def _is_whole(view: View, kind: TensorType) -> bool:
    """True if the view contains every element of a dense tensor exactly once."""
    axes = sorted((stride, extent) for stride, extent in zip(view.strides, view.type.shape, strict=True) if extent > 1)
    size = kind.dtype.bits // 8
    for stride, extent in axes:
        if stride != size:
            return False
        size *= extent
    return view.offset == 0 and size == kind.bytes and view.type.dtype == kind.dtype


def _moved(step: Step, own: View, held: View) -> Step:
    """Returns the step with its views of the port replaced by views of the rows in the arena."""

    def moved(view: View) -> View:
        if view.buffer != own.buffer:
            return view
        return replace(view, buffer=held.buffer, strides=held.strides if view.strides == own.strides else view.strides)

    inputs = tuple(None if view is None else moved(view) for view in step.inputs)
    return replace(step, inputs=inputs, outputs=tuple(map(moved, step.outputs)))


def _as_rows(program: Program, step: Step, port: View, is_input: bool) -> Step | None:
    """Returns the step with its axes in the arena's order if it is already a copy between the port and the arena, else
    None."""
    if step.kernel != "copy" or step.cut is not None:
        return None
    source, target = step.inputs[0], step.outputs[0]
    if source is None or source.type != target.type:
        return None
    own, held = (source, target) if is_input else (target, source)
    home = program.buffers[held.buffer]
    if home.kind != "arena" or home.surface or not _is_whole(own, port.type) or not _is_whole(held, port.type):
        return None
    if home.bytes != port.type.bytes:
        return None
    if is_input and sum(held.buffer in {v.buffer for v in other.outputs} for other in program.steps) > 1:
        return None
    return in_order_of(step, held)
