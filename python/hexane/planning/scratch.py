"""What counts against a memory beside the arena, by what runs the program there."""

from dataclasses import replace

from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.emit.plan_view import PlanView, arena_bytes
from hexane.emit.prepare import prepared
from hexane.program import Program
from hexane.stages.stream.rows import StepRows


def beside(program: Program, core: _core.Program, runtime: str, pools: int = 1) -> int:
    """Bytes. "host": of the scratch that this CPU's kernels use. "c99": of inputs and outputs that are not streamed,
    for kernels of the C99 runtime use no scratch, and a small device has no other memory for ports. "cmsis-nn": of
    these, and what the arena grows by for the scratch of CMSIS-NN, with and without vectors, whichever is more; most of
    it lies in gaps of the arena.

    pools: memories that the program's tensors are divided between. With several of them only steps for whose scratch
    there is room are CMSIS-NN's, so that they do not grow.
    """
    if runtime == "host":
        return core.scratch_bytes
    ports = sum(port.view.type.bytes for port in (*program.inputs, *program.outputs) if not port.streamed)
    if runtime == "c99" or pools > 1:
        return ports
    view = PlanView(prepared(bytes(_core.plan_write(emit_plan(program)))))
    return ports + max(arena_bytes(view, found) for found in view.bodies().values()) - arena_bytes(view, None)


def whole_text(program: Program) -> str:
    """A sentence on steps that the host would compute row by row and the C99 runtime does not; "" where none are."""
    host = replace(program, runtime="host")
    found = [step for step in program.steps if not program.computes_rows(step.kernel) and StepRows(step, host).is_cut]
    if not found:
        return ""
    largest = max(found, key=lambda step: sum(view.type.bytes for view in (*step.inputs, *step.outputs) if view))
    others = "" if len(found) == 1 else f" and {len(found) - 1} more"
    return f" The C99 runtime computes {largest.node.where} ({largest.kernel}){others} as a whole only."


def beside_text(count: int, runtime: str) -> str:
    """57344 of scratch, or 12 of inputs and outputs."""
    what = {"host": "scratch", "c99": "inputs and outputs", "cmsis-nn": "inputs, outputs and scratch"}
    return f"{count} of {what[runtime]}"


def help_text(runtime: str) -> str:
    """What would make it less."""
    if runtime == "host":
        return (
            "threads=1 where scratch is most of it, and runtime c99 where a small device runs the plan, without scratch"
        )
    return "streamed inputs and outputs where these are most of it"
