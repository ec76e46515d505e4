"""Random graphs mean the same whether their operands are inputs or constants, on the host and on chips.

`pytest tests/whole/test_constants_or_inputs.py --seed N` runs the graph of one seed again.
"""

from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from first_quick import first_quick
from hexane.graph import Array, Graph
from hexane.graph.node import constant
from hexane.ops import evaluate
from hexane.ops.reference import run_reference
from random_graphs import random_graph

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
SEEDS = first_quick(range(400), 40)
KINDS = ("fp32", "exact", "quantized")
CHIPS = ("h13", "h16", "h17s")
FLUSHED = 6.2e-5  # what fp16 holds in fewer digits


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    metafunc.parametrize("seed", SEEDS if only is None else [only])


def with_constants(graph: Graph, arrays: dict[str, Array]) -> Graph:
    """The graph with constants in place of some inputs."""
    table = {v: constant(arrays[name]) for v in graph.inputs if (name := str(v.node.attrs["name"])) in arrays}
    fixed = graph.rewrite(lambda node, inputs: None, became=table)
    return replace(fixed, inputs=tuple(v for v in fixed.inputs if v.node.op == "input"))


def rounded_reference(graph: Graph, feeds: dict[str, Array]) -> dict[str, Array]:
    """The graph's outputs, each fp32 value rounded to fp16."""
    memory: dict[object, Array] = {}
    for node in graph.nodes:
        if node.op == "input":
            results = [feeds[str(node.attrs["name"])]]
        elif node.op in ("const", "param"):
            assert node.data is not None
            results = [node.data]
        else:
            results = evaluate(node, [None if v is None else memory[v] for v in node.inputs])
        with np.errstate(over="ignore"):
            kept = [a.astype(np.float16).astype(np.float32) if a.dtype == np.float32 else a for a in results]
        memory.update(zip(node.values, kept, strict=True))
    return {port.name: memory[port.value] for port in graph.outputs}


def outputs(graph: Graph, feeds: dict[str, Array], **options: str) -> dict[str, Array]:
    got = hx.compile(graph, threads=1, **options)(feeds)  # type: ignore[arg-type]
    return got if isinstance(got, dict) else {graph.outputs[0].name: got}


def assert_near(got: Array, want: Array, rounded: Array, where: str) -> None:
    """Off by no more than eight times what a rounding of each value costs, and eight roundings of the largest."""
    if want.size == 0 or want.dtype.kind not in "fiu":
        return
    a, b, c = (x.astype(np.float64) for x in (got, want, rounded))
    held = np.isfinite(b) & (np.abs(b) < 65504)
    if want.dtype.kind in "iu":
        far = held & (np.abs(a - b) > 1) & (b == c)
        assert far.mean() <= 0.02, f"{where}: {a[far][:4]} for {b[far][:4]}"
        return
    largest = np.abs(b[held]).max(initial=0.0)
    by_rounding = np.abs(c - b)[held & np.isfinite(c)].max(initial=0.0)
    with np.errstate(invalid="ignore"):
        far = held & ~(np.abs(a - b) <= 8 * by_rounding + 2.0**-8 * largest + FLUSHED)
    assert not far.any(), f"{where}: {a[far][:4]} for {b[far][:4]}, of {largest}"


def test_operands_may_be_inputs_or_constants(seed: int) -> None:
    graph, drawn = random_graph(seed, KINDS[seed % 3], steps=6)
    names = graph.input_names()
    rng = np.random.default_rng(seed)
    some = [name for name in names if rng.random() < 0.5]
    for fixed in dict.fromkeys([(), tuple(some), tuple(names)]):
        made = with_constants(graph, {name: drawn[name] for name in fixed})
        feeds = {name: drawn[name] for name in made.input_names()}
        want, rounded = run_reference(made, feeds), rounded_reference(made, feeds)
        for name, array in outputs(made, feeds, target="host").items():
            assert array.dtype == want[name].dtype
            assert_close(array, want[name])
        for chip in CHIPS:
            for name, array in outputs(made, feeds, target=chip, numerics="ieee").items():
                assert_near(array, want[name], rounded[name], f"{fixed} constant, {chip}, {name}")
