"""The cost of a network on a chip: compiles it, and applies the formula of `hexane.cost`."""

import os
from collections.abc import Mapping, Sequence

from hexane import sources
from hexane.cost import Estimate, estimate_program
from hexane.cost.estimate import BATCH
from hexane.cost.parameters import read_rates_file
from hexane.errors import UnsupportedError
from hexane.graph import Graph
from hexane.options import Options
from hexane.pipeline import compile_segments, divide
from hexane.program import Program
from hexane.report.host_latency import THIS_CPU, host_latency
from hexane.report.preflight import Model
from hexane.runtime.chip import listed
from hexane.runtime.collector import collector_paused
from hexane.targets import Chip, Target, load_target

DISPATCH_SHARE = 0.5  # of the latency, from which calls are said to dominate


def estimate(
    model: Model,
    target: str | Target,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    rates: str | os.PathLike[str] | None = None,
) -> Estimate:
    """How long a call takes on a chip, with an interval, and why: nothing runs, no chip is needed. On the target "host"
    it runs for a moment: the latency of this CPU is measured.

    model: a Graph, tensors (one, a sequence, or a mapping of names), the path of MIL text (.mil), or an ONNX path,
    bytes or ModelProto. The input_shapes fix its free dims. target: a chip in any spelling; M5 and M5 Pro have rates of
    their own. rates: a file of `hexane bench --calibrate`. Its rates count for the measured chip, and for the chips
    without measurements that are nearest to it. Raises Error for an unknown target, for a model without fixed shapes,
    and for a model without an op on the engine.
    """
    asked = load_target(target)
    graph = sources.open_network(model, where="estimate").graph(input_shapes)
    if not isinstance(asked, Chip):
        return host_latency(graph)
    return estimate_program(program_for(graph, asked), asked, None if rates is None else read_rates_file(rates))


def program_for(graph: Graph, chip: Chip) -> Program:
    """The program whose cost is estimated. Raises Error if no op of the graph runs on the engine."""
    with collector_paused():
        divided, segments = divide(graph, chip)
        if not any(segment.device == "ane" for segment in segments):
            left = listed([d for d in divided.decisions if d.verdict in ("host", "border")]) or "it computes nothing"
            raise UnsupportedError(
                f"[estimate] {chip.label}: got a network of which no op runs on the engine: {left}; need one that has"
                " some"
            )
        return compile_segments(divided, segments, chip, Options())


def remarks(found: Estimate) -> list[str]:
    """Remarks for the reader of an estimate, as sentences."""
    if found.measured_on == THIS_CPU:
        return [f"measured here, {found.source}; p10 and p90 are of its calls"]
    lines = []
    if found.extrapolated:
        lines.append(f"no latency of {found.target} is known: the rates are those of {found.measured_on}")
    if found.further != 1:
        lines.append(
            f"each layer but the longest takes {found.further:.2g} of its time alone, as in published networks on"
            f" {found.measured_on}"
        )
    calls, one = found.floor_us / found.latency_us, found.floor_us / found.submissions
    if calls >= DISPATCH_SHARE:
        batch = "" if found.batched_us is None else f"in a batch of {BATCH} an input takes {found.batched_us:.0f} us; "
        lines.append(
            f"calls dominate: {found.submissions} x {one:.0f} us are {100 * calls:.0f} % of the latency; {batch}"
            f"compiled as one with a network before or after it, it takes {one:.0f} us less"
        )
    if found.open_loops:
        one_or_more = "a loop" if found.open_loops == 1 else f"{found.open_loops} loops"
        lines.append(f"the time of {one_or_more} on the CPU is not counted: the data decide the number of steps")
    if found.submissions > 1 or found.host_us:
        lines.append(
            f"leaving the engine costs about {found.leaving_us:.0f} us: {found.floor_us - one:.0f} for"
            f" {found.submissions} submissions in place of one, {found.border_us:.0f} for copies between segments; the"
            f" host computes for {found.host_us:.0f}, by a rate that no measurement of this CPU gave"
        )
    if found.energy_uj is not None and found.energy_span_uj is not None:
        span = "{:.0f} to {:.0f}".format(*found.energy_span_uj)
        lines.append(
            f"energy of the engine alone: about {found.energy_uj:.0f} uJ ({span}), by published power of {found.kind}"
            f" programs on {found.measured_on}"
        )
    return lines


def against_host(found: Sequence[Estimate]) -> list[str]:
    """For each chip whether it or this CPU is faster, where that was measured, and whether their intervals overlap."""
    here = next((one for one in found if one.measured_on == THIS_CPU), None)
    if here is None:
        return []
    lines = []
    for one in found:
        if one is here:
            continue
        faster, times = here.latency_us < one.latency_us, one.latency_us / here.latency_us
        apart = here.p90_us < one.p10_us if faster else one.p90_us < here.p10_us
        which = "this CPU" if faster else one.target
        sure = "" if apart else "; the intervals overlap"
        lines.append(
            f"{which} would be faster: {here.latency_us:.0f} us measured here, {one.latency_us:.0f} us estimated on"
            f" {one.target}, {max(times, 1 / times):.1f} times{sure}"
        )
    return lines
