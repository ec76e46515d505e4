"""Runs chips' programs on the inputs of a command, and says which op makes an output wrong."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

import numpy as np

from hexane.cli.given import Known
from hexane.cli.output import working
from hexane.errors import Error, HazardWarning, warn
from hexane.graph import Array, Graph
from hexane.options import MOST_FEEDS
from hexane.passes.repair import repair
from hexane.report.conditions import errors_on
from hexane.report.model_ports import ports_of
from hexane.report.on_inputs import OnInputs, on_inputs, scale_line, unknown_line
from hexane.targets import Chip

MOST_RUN = 4  # Most chips whose programs run on the inputs.


class Run(NamedTuple):
    """The results of chips on one input. where: the input's name. feed: its arrays by name."""

    results: list[OnInputs]
    where: str
    feed: Mapping[str, Array]


def run_on_inputs(graph: Graph, chips: Sequence[Chip], known: Known, command: str) -> Run | None:
    """Returns the results of the first chips on the given inputs; of several inputs of --calibration, on the one whose
    outputs are furthest off on a chip. None if an input of the model is missing. Raises Error for a NaN."""
    names = [port.name for port in ports_of(graph)]
    feeds = list(islice(known.named_feeds(), MOST_FEEDS))
    if not names or any(set(names) - feed.keys() for _, feed in feeds):
        return None
    feeds = [(label, {name: feed[name] for name in names}) for label, feed in feeds]
    for _, feed in feeds:
        for name, array in feed.items():
            if array.dtype.kind == "f" and np.isnan(array).any():
                raise Error(f"[{command}] input {name!r}: got {int(np.isnan(array).sum())} NaN, need numbers")
    with working("running on the inputs"), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the report has the warnings
        where, feed = feeds[0]
        if len(feeds) > 1:
            errors = errors_on(graph, [chip.name for chip in chips[:MOST_RUN]], feeds)
            worst = max(errors, key=lambda one: one.size).feed
            where, feed = f"{worst}, the worst of {len(feeds)} inputs", dict(feeds)[worst]
        return Run([on_inputs(graph, chip, feed) for chip in chips[:MOST_RUN]], where or "these inputs", feed)


def wrong_outputs(runs: Sequence[OnInputs], where: str) -> Iterator[str]:
    """Yields a line for each chip whose outputs are wrong on the inputs."""
    for run in runs:
        if not run.ok:
            cause = run.parting.cause
            first = "" if cause is None else f"the first wrong op is {cause.where} (see below)"
            why = "; ".join(filter(None, (run.reason, first)))
            yield f"{run.chip.label}: outputs are wrong on {where}{why and f': {why}'}"


def judged(graph: Graph, chip: Chip, known: Known, command: str) -> tuple[list[str], OnInputs | None]:
    """Returns lines on the outputs of the chip's program on the inputs, and the result; without all inputs, lines on
    the ops whose results depend on them. Warns with HazardWarning if an output is wrong."""
    run = run_on_inputs(graph, [chip], known, command)
    if run is None:
        repaired = repair(graph, chip)
        return [line for line in (unknown_line(repaired), scale_line(repaired)) if line], None
    for line in wrong_outputs(run.results, run.where):
        warn(f"[{command}] {line}", HazardWarning)
    (result,) = run.results
    return [f"on {run.where}, in the engine's arithmetic on this CPU:", *(f"  {one}" for one in result.lines)], result
