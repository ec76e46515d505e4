"""Whether a network compiles for a chip: all of the compiler runs, and nothing of the network."""

from collections.abc import Mapping, Sequence

from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.report.preflight import Model, as_graph
from hexane.runtime.chip import chip_program
from hexane.targets.query import load_chip


def cross_compile_check(model: Model, target: str, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> bool:
    """Compiles a model for a chip up to its plan, which is checked too. True: all of it is for the engine; False: some ops are left to
    the host, which a FallbackWarning names. What the chip computes otherwise is a HazardWarning.

    model and input_shapes as `preflight` takes them. Raises Error for a target that is no chip in any spelling (nothing is taken
    for it instead), and for what cannot be compiled.
    """
    chip = load_chip(target)
    program = chip_program(as_graph(model, input_shapes), chip)
    _core.plan_read(_core.plan_write(emit_plan(program)))
    return all(segment.device == "ane" for segment in program.segments)
