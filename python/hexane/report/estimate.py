"""What a network will cost on a chip: compiled for it, then counted by the formula of `hexane.cost`."""

from collections.abc import Mapping, Sequence

from hexane.cost import Estimate, estimate_program
from hexane.errors import Error
from hexane.graph import Graph
from hexane.options import Options
from hexane.pipeline import compile_segments, divide
from hexane.program import Program
from hexane.report.preflight import Model, as_graph
from hexane.runtime.chip import listed
from hexane.runtime.collector import collector_paused
from hexane.targets import Chip
from hexane.targets.query import load_chip

DISPATCH_SHARE = 0.5  # of the latency, from which calls are said to dominate


def estimate(model: Model, target: str | Chip, *, input_shapes: Mapping[str, Sequence[int]] | None = None) -> Estimate:
    """How long a call takes on a chip, with an interval, and why: nothing runs, no chip is needed.

    model: a Graph, tensors (one, a sequence, or a mapping of names), the path of MIL text (.mil), or an ONNX path,
    bytes or ModelProto; input_shapes fix free dims of those. target: a chip in any spelling; M5 and M5 Pro have rates
    of their own. Raises Error for a target that is no chip, for a model without fixed shapes, and for one of which no
    op runs on the engine.
    """
    chip = load_chip(target)
    return estimate_program(program_for(as_graph(model, input_shapes), chip), chip)


def program_for(graph: Graph, chip: Chip) -> Program:
    """The program whose cost is estimated. Raises Error for a graph of which no op runs on the engine."""
    with collector_paused():
        divided, segments = divide(graph, chip)
        if not any(segment.device == "ane" for segment in segments):
            left = listed([d for d in divided.decisions if d.verdict == "host"]) or "it computes nothing"
            raise Error(
                f"[estimate] {chip.label}: got a network of which no op runs on the engine: {left}; need one that has"
                " some"
            )
        return compile_segments(divided, segments, chip, Options())


def remarks(found: Estimate) -> list[str]:
    """What the reader of an estimate should know, as sentences."""
    lines = []
    if found.extrapolated:
        lines.append(f"no latency of {found.target} is known: the rates are those of {found.measured_on}")
    calls = found.floor_us / found.latency_us
    if calls >= DISPATCH_SHARE:
        lines.append(
            f"calls dominate: {found.submissions} x {found.floor_us / found.submissions:.0f} us are {100 * calls:.0f} %"
            " of the latency; a batch shares them"
        )
    if found.submissions > 1:
        lines.append(
            f"{found.submissions} submissions: ops on the host cut the network; one submission would save"
            f" {found.floor_us * (1 - 1 / found.submissions):.0f} us"
        )
    if found.host_us:
        lines.append(f"the host computes for {found.host_us:.0f} us, by a rate that no measurement of this CPU gave")
    return lines
