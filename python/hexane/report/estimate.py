"""Estimates the latency of a network on a chip: compiles it, and applies the formula of `hexane.cost`."""

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

DISPATCH_SHARE = 0.5  # from this share of the latency on, calls dominate


def estimate(
    model: Model,
    target: str | Target,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    rates: str | os.PathLike[str] | None = None,
) -> Estimate:
    """Estimates the latency of a call on a chip, with an interval and the reasons. Nothing runs, and no chip is needed.
    For the target "host" the network runs briefly: the latency of this CPU is measured.

    model: anything that `hx.compile` opens, such as a Graph, tensors (one, a sequence, or a mapping of names), the path
    of MIL text (.mil), or an ONNX path, bytes or ModelProto. The input_shapes fix its free dims. target: a chip in any
    spelling; M5 and M5 Pro have rates of their own. rates: a file of `hexane bench --calibrate`. The file's rates
    replace those of its chip, and of chips without measurements whose nearest measured chip this is. Raises Error for
    an unknown target, for a model without fixed shapes, and for a model without an op on the engine.
    """
    asked = load_target(target)
    graph = sources.open_network(model, where="estimate").graph(input_shapes)
    if not isinstance(asked, Chip):
        return host_latency(graph)
    return estimate_program(program_for(graph, asked), asked, None if rates is None else read_rates_file(rates))


def program_for(graph: Graph, chip: Chip) -> Program:
    """Returns the program to estimate. Raises Error if no op of the graph runs on the engine."""
    with collector_paused():
        divided, segments = divide(graph, chip)
        if not any(segment.device == "ane" for segment in segments):
            left = listed([d for d in divided.decisions if d.verdict in ("host", "border")]) or "it computes nothing"
            raise UnsupportedError(
                f"[estimate] {chip.label}: got a network of which no op runs on the engine: {left}; need one that has"
                " some"
            )
        return compile_segments(divided, segments, chip, Options())


def remarks(cost: Estimate) -> list[str]:
    """Returns remarks on an estimate, as sentences."""
    if cost.measured_on == THIS_CPU:
        return [f"measured here, {cost.source}; p10 and p90 are quantiles of these calls"]
    lines = []
    if cost.extrapolated:
        lines.append(f"no latency of {cost.target} is known: the rates are those of {cost.measured_on}")
    if cost.further != 1:
        lines.append(
            f"each layer except the longest counts with {cost.further:.2g} of its time in a program of its own, as"
            f" published networks on {cost.measured_on} suggest"
        )
    calls, one = cost.floor_us / cost.latency_us, cost.floor_us / cost.submissions
    if calls >= DISPATCH_SHARE:
        batch = "" if cost.batched_us is None else f"in a batch of {BATCH} an input takes {cost.batched_us:.0f} us; "
        lines.append(
            f"calls dominate: {cost.submissions} x {one:.0f} us are {100 * calls:.0f} % of the latency; {batch}"
            f"compiled together with the network before or after it, a call takes {one:.0f} us less"
        )
    if cost.open_loops:
        one_or_more = "a loop" if cost.open_loops == 1 else f"{cost.open_loops} loops"
        lines.append(f"the time of {one_or_more} on the CPU is not counted: the data decide the number of steps")
    if cost.submissions > 1 or cost.host_us:
        more = f"{cost.floor_us - one:.0f} for {cost.submissions} submissions in place of one, "
        lines.append(
            f"leaving the engine costs about {cost.leaving_us:.0f} us: {more if cost.submissions > 1 else ''}"
            f"{cost.border_us:.0f} for copies between segments; the CPU computes for {cost.host_us:.0f}, by a rate"
            " that was not measured on this CPU"
        )
    if cost.energy_uj is not None and cost.energy_span_uj is not None:
        span = "{:.0f} to {:.0f}".format(*cost.energy_span_uj)
        lines.append(
            f"energy of the engine alone: about {cost.energy_uj:.0f} uJ ({span}: p10 at the least and p90 at"
            f" the most published power), by published power of {cost.kind}"
            f" programs on {cost.measured_on}"
        )
    return lines


def against_host(estimates: Sequence[Estimate]) -> list[str]:
    """Returns for each chip whether it or this CPU is faster, and whether their intervals overlap. The list is empty if
    this CPU was not measured."""
    here = next((one for one in estimates if one.measured_on == THIS_CPU), None)
    if here is None:
        return []
    lines = []
    for one in estimates:
        if one is here:
            continue
        faster, times = here.latency_us < one.latency_us, one.latency_us / here.latency_us
        disjoint = here.p90_us < one.p10_us if faster else one.p90_us < here.p10_us
        which = "this CPU" if faster else one.target
        sure = "" if disjoint else "; the intervals overlap"
        lines.append(
            f"{which} would be faster: {here.latency_us:.0f} us measured here, {one.latency_us:.0f} us estimated on"
            f" {one.target}, {max(times, 1 / times):.1f} times{sure}"
        )
    return lines
