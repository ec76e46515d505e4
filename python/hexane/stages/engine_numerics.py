"""Gives the steps of the engine the arithmetic of the chip, where there is a kernel that computes in it."""

from dataclasses import replace

from hexane.decisions import Decision
from hexane.program import Program
from hexane.stages.engine_rules import UNKNOWN, rule_of
from hexane.targets import Chip, Numerics
from hexane.targets.activations import activations
from hexane.targets.kernels import kernels


def engine_arithmetic(chip: Chip) -> Numerics:
    """The arithmetic of a chip: whether it takes Winograd's products, and its activation tables."""
    tables = {name: table.parameters for name, table in activations().items()}
    return Numerics(f"{chip.name} engine", "engine", {"winograd": int(chip.gates.winograd or 0), **tables})


def in_engine_numerics(program: Program, chip: Chip) -> Program:
    """The program whose steps on the engine compute as the chip does, as far as that is known.

    A decision for each such step says by which rule it computes, and how that is known (`engine_rules`). What only moves elements is the
    same in any arithmetic and gets none.
    """
    known, moves = kernels("engine"), kernels("any")
    arithmetic = engine_arithmetic(chip)
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
            verdict, rule = "ieee", UNKNOWN
            if known.has(step.kernel, inputs, outputs):
                steps[i] = replace(step, numerics=arithmetic)
                verdict, rule = "engine", rule_of(step.kernel, step.attrs.get("epilogue", ()))
            decisions.append(Decision("numerics", step.node.where, verdict, str(rule), "docs/numerics.md"))
    return replace(program, steps=tuple(steps), decisions=(*program.decisions, *decisions))
