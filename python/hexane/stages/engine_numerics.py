"""Gives the steps of the engine the arithmetic of the chip, where there is a kernel that computes in it."""

from dataclasses import replace

from hexane.decisions import Decision
from hexane.program import Program
from hexane.targets import Chip, Numerics
from hexane.targets.kernels import kernels


def in_engine_numerics(program: Program, chip: Chip) -> Program:
    """The program whose steps on the engine compute as the chip does, as far as that is known: its products, to the bit.

    A decision for each such step says what it computes in. What only moves elements is the same in any arithmetic and gets none.
    """
    known, moves = kernels("engine"), kernels("any")
    arithmetic = Numerics(f"{chip.name} engine", "engine", {"winograd": int(chip.gates.winograd or 0)})
    steps, decisions = list(program.steps), []
    for segment in program.segments:
        if segment.device != "ane":
            continue
        for i in range(*segment.steps):
            step = steps[i]
            if step.kernel in moves:
                continue
            inputs = [None if view is None else view.type.dtype.name for view in step.inputs]
            outputs = [view.type.dtype.name for view in step.outputs]
            if known.has(step.kernel, inputs, outputs):
                steps[i] = replace(step, numerics=arithmetic)
                reason, verdict = "products in fixed point, rounded to 2^-16 one by one", "engine"
                if step.attrs.get("epilogue"):
                    reason += "; what is fused behind them in IEEE arithmetic"
            else:
                reason, verdict = "what the chip computes here is not modelled yet", "ieee"
            decisions.append(Decision("numerics", step.node.where, verdict, reason, "docs/numerics.md"))
    return replace(program, steps=tuple(steps), decisions=(*program.decisions, *decisions))
