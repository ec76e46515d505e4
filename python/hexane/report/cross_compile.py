"""Checks that a network compiles for a chip: runs the whole compiler, and nothing of the network."""

from collections.abc import Mapping, Sequence

from hexane import _core, sources
from hexane.emit.plan import emit_plan
from hexane.errors import CrossChipFP16Warning, warn
from hexane.report.divergence import DivergenceReport, predict_fp16_divergence
from hexane.report.preflight import Model
from hexane.runtime.chip import chip_program
from hexane.targets import Chip, load_target
from hexane.targets.detect import detect_name
from hexane.targets.query import load_chip


def cross_compile_check(
    model: Model,
    target: str | Chip,
    *,
    against: str | Chip | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
) -> bool:
    """Compiles a model for a chip up to its plan, which is checked too. True: all of it is for the engine; False: some
    ops are left to the host, which a FallbackWarning names. A silent deviation of the chip is a HazardWarning.

    against: a chip on which the network is known to be right, by default this machine's, if it has one. Where numbers
    may differ between the two there is one CrossChipFP16Warning: `predict_fp16_divergence` has all of it. model and
    input_shapes as `preflight` takes them. Raises Error for a target that is no chip in any spelling (nothing is taken
    for it instead), and for what cannot be compiled.
    """
    chip = load_chip(target)
    graph = sources.open_network(model, where="cross_compile_check").graph(input_shapes)
    other = load_target(detect_name().written) if against is None else load_chip(against)
    if isinstance(other, Chip) and other != chip:
        _warn_of_differences(predict_fp16_divergence(graph, chip, other))
    program = chip_program(graph, chip)
    _core.plan_read(_core.plan_write(emit_plan(program)))
    return all(segment.device == "ane" for segment in program.segments)


def _warn_of_differences(report: DivergenceReport) -> None:
    """Ops of one kind and reason together, the strongest first."""
    groups: dict[tuple[str, str, str], list[str]] = {}
    for op in report.divergent:
        groups.setdefault((op.verdict, op.node.op, op.field), []).append(op.node.where)
    said = [
        f"{verdict}: {nodes[0]}" + (f" and {len(nodes) - 1} more" if len(nodes) > 1 else "") + f" ({field})"
        for (verdict, _, field), nodes in groups.items()
    ]
    if said:
        pair = f"{report.first.label} and {report.second.label}"
        warn(f"[check] numbers may differ between {pair}: {'; '.join(said)}", CrossChipFP16Warning)
