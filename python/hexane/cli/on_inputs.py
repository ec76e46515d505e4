"""Runs chips' programs on the inputs of a command, and says which op makes an output wrong."""

import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from hexane.cli.given import Known
from hexane.cli.output import working
from hexane.errors import Error, HazardWarning, warn
from hexane.graph import Graph
from hexane.passes.repair import repair
from hexane.report.model_ports import ports_of
from hexane.report.on_inputs import OnInputs, on_inputs, scale_line, unknown_line
from hexane.targets import Chip

MOST_RUN = 4  # Most chips whose programs run on the inputs.


def run_on_inputs(graph: Graph, chips: Sequence[Chip], known: Known, command: str) -> tuple[list[OnInputs], str]:
    """Returns the results of the first chips, and the name of their inputs: the given ones, or the first of
    --calibration. No results if an input is missing. Raises Error for a NaN."""
    name, given = next(iter(known.named_feeds()), ("", known.arrays))
    where = name or "these inputs"
    if not given or {port.name for port in ports_of(graph)} - given.keys():
        return [], where
    for name, array in given.items():
        if array.dtype.kind == "f" and np.isnan(array).any():
            raise Error(f"[{command}] input {name!r}: got {int(np.isnan(array).sum())} NaN, need numbers")
    with working("running on the inputs"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report has the warnings
        return [on_inputs(graph, chip, given) for chip in chips[:MOST_RUN]], where


def wrong_outputs(runs: Sequence[OnInputs], where: str) -> Iterator[str]:
    """Yields a line for each chip whose outputs are wrong on the inputs."""
    for run in runs:
        if not run.ok:
            cause = run.parting.cause
            first = "" if cause is None else f": the first wrong op is {cause.where} (see below)"
            yield f"{run.chip.label}: outputs are wrong on {where}{first}"


def judged(graph: Graph, chip: Chip, known: Known, command: str) -> tuple[list[str], OnInputs | None]:
    """Returns lines on the outputs of the chip's program on the inputs, and the result; without all inputs, lines on
    the ops whose results depend on them. Warns with HazardWarning if an output is wrong."""
    runs, where = run_on_inputs(graph, [chip], known, command)
    if not runs:
        repaired = repair(graph, chip)
        return [line for line in (unknown_line(repaired), scale_line(repaired)) if line], None
    for line in wrong_outputs(runs, where):
        warn(f"[{command}] {line}", HazardWarning)
    return [f"on {where}, in the engine's arithmetic on this CPU:", *(f"  {one}" for one in runs[0].lines)], runs[0]
