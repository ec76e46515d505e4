"""Random graphs of native ops, lowered for five chips: the layers compute what the graph does, and each rounds where it
says."""

from typing import Any

import numpy as np
import pytest

from compare import assert_within_ulps
from engine import CHIPS, alone, native_part, run_layers
from hexane.graph import Array, Graph
from hexane.ops import OPS, evaluate
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes.engine.lower_segment import lower_segment
from hexane.passes.retarget import retarget
from hexane.passes.simplify.fold import fold
from hexane.targets import Chip, load_target
from random_graphs import random_graph
from turns import share

SEEDS = 10


def segment(seed: int, kind: str, chip: str) -> tuple[Graph, dict[str, Array]] | None:
    graph, feeds = random_graph(seed, kind)
    target = load_target(chip)
    assert isinstance(target, Chip)
    part = native_part(fold(retarget(fold(graph, target), target), target), target)
    if part is None:
        return None
    names = [str(v.node.attrs["name"]) for v in part.inputs]
    return part, {name: feeds[name] for name in names}


def check_exact(seed: int, chip: str) -> None:
    found = segment(seed, "exact", chip)
    if found is None:
        return
    graph, feeds = found
    layers = lower_segment(graph, load_target(chip))
    verify(layers, "engine", load_target(chip))
    want, got = run_reference(graph, feeds), run_layers(layers, feeds)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array, err_msg=f"seed {seed}, {chip}, {name}")


def assert_rounded_once(got: Array, want: Array) -> None:
    """Within 1 ulp; where terms cancel, within what a sum in fp32 is off: a few of its roundings of the largest
    result."""
    if want.dtype.kind == "f" and want.size:
        finite = np.isfinite(want)
        slack = 1e-6 * float(np.abs(want[finite]).max(initial=0))
        with np.errstate(invalid="ignore"):
            off = np.abs(got.astype(np.float64) - want.astype(np.float64))
        got = np.where(finite & (off <= slack), want, got)
    assert_within_ulps(got, want, 1)


def check_fp16(seed: int, chip: str) -> None:
    """Each layer, fed the reference's own inputs."""
    found = segment(seed, "fp16", chip)
    if found is None:
        return
    graph, feeds = found
    layers = lower_segment(graph, load_target(chip))
    memory: dict[Any, Any] = {}
    for node in layers.nodes:
        if node.op == "input":
            memory[node.values[0]] = feeds[str(node.attrs["name"])]
        elif node.op in ("const", "param"):
            memory[node.values[0]] = node.data
        else:
            arrays = [None if v is None else memory[v] for v in node.inputs]
            results = evaluate(node, arrays)
            memory.update(zip(node.values, results, strict=True))
            if OPS[node.op].takes_slots or OPS[node.op].layer == "Softmax":
                single, given = alone(node, arrays)
                if not given:
                    continue
                for name, array in run_layers(single, given).items():
                    assert_rounded_once(array, results[int(name[1:])])


def check_fp32(seed: int, chip: str) -> None:
    """In fp32 nothing rounds on the way but fp32 itself: the layers mean what the graph does."""
    found = segment(seed, "fp32", chip)
    if found is None:
        return
    graph, feeds = found
    want, got = run_reference(graph, feeds), run_layers(lower_segment(graph, load_target(chip)), feeds)
    for name, array in want.items():
        scale = np.abs(array[np.isfinite(array)]).max(initial=1) if array.dtype.kind == "f" else 0
        np.testing.assert_allclose(
            got[name], array, rtol=1e-3, atol=1e-4 * scale, err_msg=f"seed {seed}, {chip}, {name}"
        )


CHECKS = {"exact": check_exact, "fp16": check_fp16, "fp32": check_fp32}


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", CHECKS)
def test_layers_compute_what_the_graph_does(kind: str, chip: str) -> None:
    first = 1000 * CHIPS.index(chip)
    for seed in range(first, first + SEEDS):
        CHECKS[kind](seed, chip)


@pytest.mark.slow
@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", CHECKS)
def test_layers_compute_what_many_graphs_do(kind: str, chip: str) -> None:
    for seed in share(range(10_000, 11_000 if kind == "exact" else 10_300)):
        CHECKS[kind](seed, chip)
