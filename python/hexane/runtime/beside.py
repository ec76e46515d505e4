"""What counts against a memory beside the arena, by what runs the program there."""

from hexane import _core
from hexane.program import Program

RUNTIMES = ("host", "c99")


def beside(program: Program, core: _core.Program, runtime: str) -> int:
    """Bytes: "host": of the scratch that this CPU's kernels use; "c99": of inputs and outputs that are not streamed, for kernels of the C99
    runtime use no scratch, and a small device has no other memory for ports."""
    if runtime == "host":
        return core.scratch_bytes
    return sum(port.view.type.bytes for port in (*program.inputs, *program.outputs) if not port.streamed)


def beside_text(count: int, runtime: str) -> str:
    """57344 of scratch, or 12 of inputs and outputs."""
    return f"{count} of {'scratch' if runtime == 'host' else 'inputs and outputs'}"


def help_text(runtime: str) -> str:
    """What would make it less."""
    if runtime == "host":
        return (
            "threads=1 where scratch is most of it, and runtime c99 where a small device runs the plan, without scratch"
        )
    return "streamed inputs and outputs where these are most of it"
