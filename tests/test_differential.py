"""Random graphs: what is compiled computes what the reference does, with all passes, without each, and with two threads.

`pytest tests/test_differential.py --seed N` runs the graph of one seed again, with every pass off in turn.
"""

import numpy as np
import pytest

from compare import assert_close
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.pipeline import compile_graph, passes
from hexane.reference import run_reference
from hexane.targets import load_target
from random_graphs import random_graph

HOST = load_target("host")
NEEDED = {
    "expand": "ops without a kernel would be left",
    "split_conv_3d": "convolution kernels have at most two spatial axes",
    "spread_conv_transpose_3d": "transposed ones have at most two as well",
    "channels_last": "spatial kernels read channels last only",
    "widen": "some dtypes have no kernel",
}
OPTIONAL = [p.name for p in passes(HOST) if p.wanted and p.name not in NEEDED]
KINDS = ("fp32", "exact")
LARGE = {"steps": 6, "limit": 200_000}  # of a size that is worth two threads


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", range(150) if only is None else [only])
    elif "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(1000, 11000, 250) if only is None else [])


def run(graph: Graph, feeds: dict[str, Array], skip: str = "", threads: int = 1) -> dict[str, Array]:
    program = _core.Program(emit_plan(compile_graph(graph, HOST, skip=frozenset({skip}))), threads)
    return dict(zip([p["name"] for p in program.outputs], program.run(feeds), strict=True))


def assert_same(kind: str, got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        if kind == "exact":
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(got[name], array)  # -0.0 equals 0.0
        else:
            assert_close(got[name], array)


def check(kind: str, seed: int, skipped: list[str], **sizes: int) -> None:
    graph, feeds = random_graph(seed, kind, **sizes)
    print(f"{kind}, --seed {seed}\n{graph}")
    want = run_reference(graph, feeds)
    got = run(graph, feeds)
    assert_same(kind, got, want)
    for name, array in run(graph, feeds, threads=2).items():
        assert array.tobytes() == got[name].tobytes(), "two threads give other bits than one"
    for skip in skipped:
        print("without", skip)
        assert_same(kind, run(graph, feeds, skip), want)


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_graph_computes_what_the_reference_does(kind: str, seed: int, request: pytest.FixtureRequest) -> None:
    every = request.config.getoption("--seed") is not None
    check(kind, seed, OPTIONAL if every else [OPTIONAL[seed % len(OPTIONAL)], OPTIONAL[seed // 2 % len(OPTIONAL)]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("large", range(10))
def test_a_large_random_graph_computes_what_the_reference_does(kind: str, large: int) -> None:
    check(kind, large, [], **LARGE)


@pytest.mark.slow
def test_ten_thousand_random_graphs_compute_what_the_reference_does(first: int) -> None:
    for seed in range(first, first + 250):
        check(KINDS[seed % len(KINDS)], seed, [OPTIONAL[(seed // 2 + 5 * i) % len(OPTIONAL)] for i in range(3)])
