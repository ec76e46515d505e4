"""Random graphs: what is compiled computes what the records, the onnx package's evaluator and onnxruntime say, with all
passes, without each, with two threads, and after a trip through an ONNX model.

`pytest tests/whole/test_differential.py --seed N` runs the graph of one seed again, with every pass off in turn.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from compare import assert_close
from first_quick import first_quick
from hexane import _core
from hexane.emit.plan import emit_plan
from hexane.graph import Array, Graph
from hexane.importers.onnx import import_onnx
from hexane.ops import USER_OPS, Op
from hexane.pipeline import compile_graph, passes
from hexane.targets import load_target
from onnx_export import export, feeds_of
from oracles import ORACLES, all_values, ask
from random_graphs import graph_ending_in, random_graph, random_graphs
from turns import share

HOST = load_target("host")
NEEDED = {
    "expand": "ops without a kernel would be left",
    "split_conv_3d": "convolution kernels have at most two spatial axes",
    "spread_conv_transpose_3d": "transposed ones have at most two as well",
    "select_kernels": "kernels run the ops of their level",
    "legalize_dtypes": "some dtypes have no kernel",
}
OPTIONAL = list(dict.fromkeys(p.name for p in passes("host", HOST) if p.name not in NEEDED))
OVER_QUANTIZED = (
    "move_qdq_past_data_movement",
    "fuse_lookup",
    "fold_qdq",
    "move_qdq_past_data_movement fuse_lookup fold_qdq",
)
KINDS = ("fp32", "exact", "quantized", "quantized exact")
# Of each seed all kinds.
SEEDS = first_quick(range(75), 40)
LARGE = {"steps": 6, "limit": 200_000}  # of a size that is worth two threads
NOT_DRAWN = {
    "write_state": "test_random_states.py writes states",
    "loop": "tests/importers/test_import_bodies.py has loops",
    "cond": "tests/importers/test_import_bodies.py has branches",
}
# Capacities and random draws are no values that oracles have: test_dynamic.py and test_random.py are for them. TFLite's arithmetic is not
# ONNX's: tests/runtime/test_q31.py compares it.
APART = {
    *(name for name in USER_OPS if name.startswith("q31_")),
    "quantize_by_range",  # rounds to integers on a grid of x's own: tests/cpu/test_kernels_by_range.py
    "non_zero",
    "unique",
    "non_max_suppression",
    "random",
    "random_uniform",
    "random_normal",
    "bernoulli",
    "multinomial",
    "dropout",
}
NOT_IN_ONNX = {
    "shift_left": "of signed integers",
    "shift_right": "of signed integers",
    "quantized_mean": "of an exact sum, rounded once",
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", SEEDS if only is None else [only])
    elif "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(1000, 11000, 250) if only is None else [])


def run(graph: Graph, feeds: dict[str, Array], skip: str = "", threads: int = 1) -> dict[str, Array]:
    program = _core.Program(emit_plan(compile_graph(graph, HOST, skip=frozenset(skip.split()))), threads)
    return dict(zip([p["name"] for p in program.outputs], program.run(feeds), strict=True))


def some(kind: str, *picks: int) -> list[str]:
    """Passes to switch off, among them one over quantised tensors where there are many."""
    chosen = [OPTIONAL[i % len(OPTIONAL)] for i in picks]
    return [OVER_QUANTIZED[picks[0] % len(OVER_QUANTIZED)], *chosen[1:]] if kind.startswith("quantized") else chosen


def assert_same(kind: str, got: dict[str, Array], want: dict[str, Array]) -> None:
    assert got.keys() == want.keys()
    for name, array in want.items():
        if kind.endswith("exact"):
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            np.testing.assert_array_equal(got[name], array)  # -0.0 equals 0.0
        else:
            assert_close(got[name], array)


@contextmanager
def against(what: str, graph: Graph) -> Iterator[None]:
    """Failures name what was compared with, and show the graph."""
    try:
        yield
    except Exception as error:
        raise AssertionError(f"{what}: {error}\n{graph}") from error


def check(kind: str, graph: Graph, feeds: dict[str, Array], skipped: Sequence[str]) -> None:
    known = all_values(graph, feeds)
    want = {port.name: known[port.value] for port in graph.outputs}
    with against("the records", graph):
        got = run(graph, feeds)
        assert_same(kind, got, want)
    with against("two threads", graph):
        for name, array in run(graph, feeds, threads=2).items():
            assert array.tobytes() == got[name].tobytes(), "two threads give other bits than one"
    for skip in skipped:
        with against(f"without {skip}", graph):
            assert_same(kind, run(graph, feeds, skip), want)
    for oracle in ORACLES:
        with against(oracle.name, graph):
            assert_same(kind, got, ask(oracle, graph, feeds, known))
    with against("exported and imported", graph):
        model = export(graph)
        given = feeds_of(model, feeds, known)
        empty = {name: array.shape for name, array in given.items() if 0 in array.shape}  # 0 in a file is a free dim
        assert_same(kind, run(import_onnx(model.proto, shapes=empty), given), want)


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.slow)])
def test_drawn_graphs_compute_what_the_oracles_do(count: int) -> None:
    @settings(
        max_examples=count, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(
        st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), random_graphs(kind))),
        st.lists(st.sampled_from([*OPTIONAL, *OVER_QUANTIZED]), max_size=2),
    )
    def drawn_and_checked(drawn: tuple[str, tuple[Graph, dict[str, Array]]], skipped: list[str]) -> None:
        kind, (graph, feeds) = drawn
        check(kind, graph, feeds, skipped)

    drawn_and_checked()


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_graph_computes_what_the_oracles_do(kind: str, seed: int, request: pytest.FixtureRequest) -> None:
    print(f"{kind}, --seed {seed}")
    every = request.config.getoption("--seed") is not None
    check(kind, *random_graph(seed, kind), [*OPTIONAL, OVER_QUANTIZED[-1]] if every else some(kind, seed, seed // 2))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("large", range(10))
def test_a_large_random_graph_computes_what_the_oracles_do(kind: str, large: int) -> None:
    check(kind, *random_graph(large, kind, **LARGE), [])


@pytest.mark.parametrize("op", [op for op in USER_OPS.values() if op.name not in APART], ids=lambda op: op.name)
def test_every_op_is_drawn_and_compared(op: Op) -> None:
    """A new op needs nothing here where its record's cases will do: see NOT_DRAWN and NOT_IN_ONNX,
    support/onnx_export/forms.py for an op that ONNX says otherwise, support/random_graphs/ for a step of its own."""
    found = (graph_ending_in(op, seed) for seed in range(40))
    graphs = list(islice((one for one in found if one is not None), 2))
    assert bool(graphs) != (op.name in NOT_DRAWN), (
        "no case of its record, at other dims, gives results fit for comparing"
    )
    for graph, feeds in graphs:
        check("fp32", graph, feeds, [])
        given = {value.node.op for value in export(graph).given.values()}  # other ops of the graph may be among them
        assert given <= NOT_IN_ONNX.keys(), "has no ONNX form: write one, or say why there is none"


@pytest.mark.slow
def test_ten_thousand_random_graphs_compute_what_the_oracles_do(first: int) -> None:
    for seed in share(range(first, first + 250)):
        kind = KINDS[seed % len(KINDS)]
        print(f"{kind}, --seed {seed}")
        check(kind, *random_graph(seed, kind), some(kind, *(seed // 4 + 5 * i for i in range(3))))
