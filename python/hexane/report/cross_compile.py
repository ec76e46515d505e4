"""Checks that a network compiles for a chip. The whole compiler runs, and the network does not."""

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
    """Compiles a model for a chip up to its plan, and checks the plan. Returns True if all ops are on the engine, and
    False if some are on the host, which a FallbackWarning names. A silent deviation of the chip is a HazardWarning.
    against: a chip on which the network's results are known to be right; by default the chip of this machine, if it has
    one. One CrossChipFP16Warning tells where numbers may differ between the two chips; `predict_fp16_divergence` has
    the details. model, input_shapes: see `preflight`. Raises Error if the target is no known chip, and if the model
    cannot be compiled.
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
    """Warns about divergent ops, grouped by kind and reason, the strongest first."""
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
