"""Sets the arithmetic of the engine's steps: the chip's own, if the step's kernel has a version that computes in it."""

from dataclasses import replace

from hexane.dtypes import FP16
from hexane.graph.decisions import Decision
from hexane.program import Program, Step
from hexane.stages.engine.rules import AFFINE, BYTES, OPERAND, PORT_CAST, WIDE_SUM, ieee_rule_of, rule_of
from hexane.targets import Chip, Numerics
from hexane.targets.activations import activations
from hexane.targets.kernels import kernels


def engine_arithmetic(chip: Chip) -> Numerics:
    """Returns the arithmetic of a chip: whether it uses Winograd products, and its activation tables."""
    tables = {name: table.parameters for name, table in activations().items()}
    return Numerics(f"{chip.name} engine", "engine", {"winograd": int(chip.gates.winograd or 0), **tables})


def in_engine_numerics(program: Program, chip: Chip, host: Numerics) -> Program:
    """Returns the program with the engine's steps computed in the chip's arithmetic, as far as it is known. host: the
    arithmetic of the host, which casts the values that go to the engine.

    Each of the engine's steps gets a decision with its rule and the rule's status (rules.py). A step that only moves
    elements gets no decision, because it gives the same bits in any arithmetic.
    """
    known, moves = kernels("engine"), kernels("any")
    arithmetic = engine_arithmetic(chip)
    steps, decisions = list(program.steps), []
    for segment in program.segments:
        if segment.device != "ane":
            continue
        computed = {id(program.steps[i].node) for i in range(*segment.steps)}
        for i in range(*segment.steps):
            step = steps[i]
            if step.kernel in moves:
                steps[i] = replace(step, numerics=arithmetic)
                continue
            inputs = [None if view is None else view.type.dtype.name for view in step.inputs]
            outputs = [view.type.dtype.name for view in step.outputs]
            verdict, rule, numerics = "ieee", ieee_rule_of(step.kernel), step.numerics
            if _is_port_cast(step, computed):
                verdict, rule, numerics = "ieee", PORT_CAST, host
            elif known.has(step.kernel, inputs, outputs):
                verdict, rule, numerics = "engine", rule_of(step.kernel, step.attrs.get("epilogue", ())), arithmetic
                if outputs == ["fp32"] and step.kernel in ("reduce_sum", "reduce_mean"):
                    rule = WIDE_SUM
            elif step.kernel in ("quantized_conv", "quantized_matmul") and outputs == ["int32"]:
                verdict, rule = "engine", BYTES
            elif step.kernel in ("mul", "add", "abs") and outputs == ["fp32"]:
                squares = step.kernel == "abs" or step.node.inputs[0] is step.node.inputs[-1]
                verdict, rule = "engine", OPERAND if squares else AFFINE
            steps[i] = replace(step, numerics=numerics)
            decisions.append(Decision("numerics", step.node.where, verdict, str(rule), "docs/numerics.md"))
    return replace(program, steps=tuple(steps), decisions=(*program.decisions, *decisions))


def _is_port_cast(step: Step, computed: set[int]) -> bool:
    """True if a step casts a float operand of the segment, a model input or a host result, to fp16."""
    if step.kernel != "cast" or step.outputs[0].type.dtype is not FP16:
        return False
    source = step.node.inputs[0]
    return source is not None and source.dtype.kind == "float" and id(source.node) not in computed
