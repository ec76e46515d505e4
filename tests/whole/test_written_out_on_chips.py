"""What models write out compiles for every chip there is: passes in front of the layers make nothing that the chip does
not take.

`pytest tests/whole/test_written_out_on_chips.py --seed N` compiles the graph of one seed again, for all chips.
"""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, arrays
from hexane.build import FUNCTIONS
from hexane.graph import Graph
from hexane.ops import Op
from hexane.targets.floors import mil_ops
from hexane.targets.tables import table, target_names
from random_graphs import KINDS, random_graph
from turns import share
from written_out import WrittenOut

CHIPS = [name for name in target_names() if name != "host"]
SEEDS = 8  # for each chip
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    if "seeds" in metafunc.fixturenames:
        metafunc.parametrize("seeds", [range(100)] if only is None else [(only,)], ids=["all"])
    if "many" in metafunc.fixturenames:
        first = range(100_000, 101_000, 100) if only is None else []
        metafunc.parametrize("many", [range(f, f + 100) for f in first], ids=[str(f) for f in first])


def check(graph: Graph, chip: str, seed: int) -> None:
    try:
        hx.compile(graph, target=chip, threads=1)
    except hx.Error as error:
        raise AssertionError(f"{chip}, --seed {seed}: {error}\n{graph}") from error


@pytest.mark.parametrize("chip", CHIPS)
def test_written_out_forms_compile(chip: str, seeds: range) -> None:
    """Other graphs for each chip."""
    own = seeds if len(seeds) == 1 else [CHIPS.index(chip) + len(CHIPS) * i for i in range(SEEDS)]
    for seed in own:
        check(WrittenOut(seed).graph(), chip, seed)


@pytest.mark.slow
def test_many_graphs_compile_for_all_chips(many: range) -> None:
    for seed in share(many):
        graph = WrittenOut(seed).graph() if seed % 2 else random_graph(seed, KINDS[seed // 2 % len(KINDS)])[0]
        for chip in CHIPS:
            check(graph, chip, seed)


@pytest.mark.parametrize("chip", CHIPS)
def test_a_stride_that_no_factors_make_compiles(chip: str) -> None:
    """Where the chip has slices they take every fifth row, else the host does the convolution: a validator refuses
    it."""
    x = hx.pad(hx.relu(hx.input("x", (2, 1, 20, 20))), begin=(0, 0, 7, 0), end=(0, 0, 3, 9))
    weight = np.ones((1, 1, 5, 7), np.float32)
    net = hx.compile(hx.sigmoid(hx.conv(x, weight, strides=5)), target=chip)
    assert net.program is not None
    image = np.arange(800, dtype=np.float32).reshape(2, 1, 20, 20) % 3 / 64
    np.testing.assert_allclose(net(image), hx.compile(hx.sigmoid(hx.conv(x, weight, strides=5)))(image), rtol=2e-3)


@pytest.mark.parametrize("chip", ["m9", "h11", "h12", "t0"])
def test_a_transpose_stays_one_where_the_reshape_that_it_is_would_be_refused(chip: str) -> None:
    """Before A13 reshapes only flatten: transpose(%x) {perm=(1, 0)} of a column is no reshape there."""
    x = hx.relu(hx.input("x", (2, 1)))
    net = hx.compile(hx.graph(hx.relu(hx.transpose(x, perm=(1, 0)) - 1.0)), target=chip)
    assert net.program is not None
    assert {layer.segment for layer in net.program.layers} == {0}
    np.testing.assert_array_equal(net(np.float32([[2], [3]])), [[1, 2]])


@pytest.mark.parametrize("chip", ["t0", "u1"])
def test_a_deep_tensor_is_no_row_of_slices_where_a_chip_has_no_depth(chip: str) -> None:
    x = hx.relu(hx.input("x", (1, 1, 4096, 2, 2)))
    net = hx.compile(hx.graph(hx.sigmoid(hx.reshape(x, shape=(1, 1, 128, 128)))), target=chip)
    assert net.program is not None
    assert 2 <= len(net.program.layers) < 10


# What lowering may write in other ops, by the catalogue's cases: each row of floors.toml that says what these are is checked.
WRITTEN = [(op, i) for op, i in CASES if op.expand is not None and mil_ops(op.name) is not None]


@pytest.mark.parametrize(("op", "index"), WRITTEN, ids=[f"{op.name}-{i}" for op, i in WRITTEN])
def test_an_op_that_lowering_writes_in_others_is_judged_by_these(op: Op, index: int) -> None:
    """A Fourier transform is a product between reshapes, which chips before A13 refuse."""
    chips = ["h11", "u1", "h13"]  # before A13, without depth, the first with MIL
    assert_written(op, index, [chips[WRITTEN.index((op, index)) % len(chips)]], 1)


@pytest.mark.slow
@pytest.mark.parametrize("behind", [1, 99], ids=["first_input", "all_inputs"])
@pytest.mark.parametrize(("op", "index"), WRITTEN, ids=[f"{op.name}-{i}" for op, i in WRITTEN])
def test_an_op_that_lowering_writes_in_others_is_judged_by_these_for_every_chip(
    op: Op, index: int, behind: int
) -> None:
    assert_written(op, index, share(CHIPS), behind)


def assert_written(op: Op, index: int, chips: list[str], behind: int) -> None:
    """The case compiles with so many of its inputs behind an op of the engine, the others constant."""
    for chip in chips:
        graph = graph_behind_the_engine(op, index, behind)
        try:
            hx.compile(graph, target=chip, threads=1)
        except hx.Error as error:
            raise AssertionError(f"{chip}: {error}\n{graph}") from error


def test_every_row_of_floors_that_names_ops_for_one_is_walked() -> None:
    walked = {op.name for op, _ in WRITTEN}
    alone = {op.name for op, _ in CASES if op.expand is None}  # a kernel of its own, and nothing else
    assert (
        set(table("floors")["ops"]) - {"loop"} <= walked | alone
    )  # whose cases are in tests/importers/test_import_bodies.py


def graph_behind_the_engine(op: Op, index: int, behind: int) -> Graph:
    """Floats behind a relu; integers, which may be indices, as they are."""
    given: list[Any] = []
    for i, array in enumerate(arrays(op, op.cases[index])):
        if array is None or i >= behind:
            given.append(array)
            continue
        x = hx.input(f"x{i}", array.shape, hx.const(array).dtype.name)
        given.append(hx.relu(x) if x.dtype.kind == "float" else x)
    results = FUNCTIONS[op.name](*given, **dict(op.cases[index].attrs or {}))
    return hx.graph(list(results) if isinstance(results, tuple) else results)
