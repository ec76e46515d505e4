"""Networks compiled for chips: what runs is what preflight says, each layer is rounded once, exact numbers stay exact.

`pytest tests/whole/test_chips.py --seed N` runs the graph of one seed again.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_fp16_layers import without_cancelled

import hexane as hx
from chip_layers import check_layers_add_up
from compare import assert_close, assert_within_ulps
from first_quick import first_quick
from hexane.graph import Array, Graph
from hexane.importers.onnx import import_onnx
from hexane.ops import LEAVES
from hexane.ops.neurons import MODE_OF
from hexane.ops.reference import run_reference
from hexane.options import SCHEDULES
from hexane.passes.repair import repair
from hexane.passes.retarget.borders import is_border
from hexane.passes.retarget.retarget import retarget
from hexane.targets import load_target
from hexane.targets.tables import target_names
from networks import small_networks
from oracles import all_values
from random_graphs import KINDS, random_graph
from traced import expected, traced
from turns import share

TARGETS = ("h12", "h13", "h14", "h15", "h16", "h17s")  # one of each family that differs, and one below programs in MIL
# Each target twice in both schedules.
SEEDS = first_quick(range(60), 24)
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    only = metafunc.config.getoption("--seed")
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", SEEDS if only is None else [only])
    elif "first" in metafunc.fixturenames:
        metafunc.parametrize("first", range(1000, 2000, 100) if only is None else [])


def check_layers(net: hx.Model, feeds: dict[str, Array]) -> None:
    """Each step, fed what the program computed, is the reference rounded once."""
    for step, inputs, outputs in traced(net, feeds):
        # Nothing reads the steps' results of a recurrent layer without `sequence`: the kernel leaves their memory alone.
        first = 0 if step.node.attrs.get("sequence", True) else 1
        for got, want in list(zip(outputs, expected(step, inputs), strict=True))[first:]:
            if want.dtype == np.float16:
                assert_within_ulps(without_cancelled(step, inputs, got, want), want, 1)
            elif want.dtype.kind in "fc" or want.dtype.kind == "V":
                assert_close(got, want)
            else:
                np.testing.assert_array_equal(got, want)


def check_agrees(graph: Graph, net: hx.Model) -> None:
    """preflight says of just those ops that they do not run which the program leaves to the host."""
    assert net.program is not None
    report = hx.preflight(graph, net.program.target.name)
    assert report.segments is not None
    assert [s.device for s in report.segments] == [s.device for s in net.program.segments]

    def lines(where: str) -> frozenset[str]:
        return frozenset(where.partition(" at ")[2].split(", "))  # of several nodes, where these became one

    def strangers(some: list[frozenset[str]], others: list[frozenset[str]]) -> list[frozenset[str]]:
        known = frozenset().union(*others)
        return [one for one in some if not one & known]

    # An op that is written as others is named by these. Two nodes may come from one line, of which one is a border.
    borders = [lines(e.node.where) for e in report.entries if is_border(e.node, report.chip)]
    refused = [lines(e.node.where) for e in report.entries if not e.verdict.runs]
    hosted = [lines(d.node) for d in net.program.decisions if d.verdict == "host"]
    moved = [lines(d.node) for d in net.program.decisions if d.verdict == "moved"]  # with the views around them
    assert strangers(refused, [*hosted, *borders]) == []
    assert strangers(hosted, [*refused, *borders, *moved]) == []


def is_exact_in_fp16(values: dict[object, Array]) -> bool:
    """Whether no number on the way is rounded in fp16."""
    floats = [np.asarray(a) for a in values.values() if np.asarray(a).dtype.kind == "f"]
    with np.errstate(over="ignore", invalid="ignore"):
        return all(np.array_equal(a, a.astype(np.float16).astype(a.dtype), equal_nan=True) for a in floats)


def check(kind: str, graph: Graph, feeds: dict[str, Array], target: str, schedule: str = "apple") -> None:
    try:
        net = hx.compile(graph, target=target, threads=1, schedule=schedule, numerics="ieee")
        check_agrees(graph, net)
        check_layers(net, feeds)
        assert net.program is not None
        check_layers_add_up(net.program)
        if kind == "exact":
            known = all_values(graph, feeds)
            if is_exact_in_fp16(known):
                got = net(feeds)
                for port in graph.outputs:
                    array = got[port.name] if len(graph.outputs) > 1 else got
                    np.testing.assert_array_equal(array, known[port.value])
    except Exception as error:
        raise AssertionError(f"{kind} on {target}, {schedule}: {error}\n{graph}") from error


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_graph_compiles_for_every_chip(kind: str, seed: int) -> None:
    print(f"{kind}, --seed {seed}")
    graph, feeds = random_graph(seed, kind)
    check(kind, graph, feeds, TARGETS[seed % len(TARGETS)], SCHEDULES[seed // len(TARGETS) % 2])


@pytest.mark.slow
def test_a_thousand_random_graphs_compile_for_every_chip(first: int) -> None:
    for seed in share(range(first, first + 100)):
        kind = KINDS[seed % len(KINDS)]
        print(f"{kind}, --seed {seed}")
        graph, feeds = random_graph(seed, kind)
        for target, schedule in itertools.product(TARGETS, SCHEDULES):
            check(kind, graph, feeds, target, schedule)


def compiled_as_checked(graph: Graph, target: str) -> hx.Model:
    """The program, cut into the segments that `check` shows. Views that the chip has no layer for are the host's."""
    net = hx.compile(graph, target=target, device="cpu", numerics="ieee", threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    segments = hx.preflight(graph, target).segments
    assert segments is not None
    assert [s.device for s in segments] == [s.device for s in net.program.segments]
    return net


@pytest.mark.parametrize("rank", [5, 6])
@pytest.mark.parametrize(
    "start", [39, *[pytest.param(start, marks=pytest.mark.slow) for start in share(range(40, 80))]]
)
def test_graphs_of_many_axes_compile_for_every_chip(start: int, rank: int) -> None:
    for kind in ("fp32", "exact", "quantized"):
        graph, feeds = random_graph(start, kind, rank=rank, limit=1500)
        for target in ("t0", *TARGETS):
            compiled_as_checked(graph, target)(feeds)


@pytest.mark.parametrize("target", ["t0", "h11", "h12", "h13"])
@pytest.mark.parametrize("rank", [5, 6])
def test_a_product_of_many_axes_compiles_behind_any_op(rank: int, target: str) -> None:
    """A product that only fits once its axes are folded; those folded already are in front of it."""
    a, b = (hx.input(name, (2, 3, 2, 2)[: rank - 2] + tail) for name, tail in (("a", (8, 16)), ("b", (16, 8))))
    summed = a + hx.reduce_sum(a, axes=(0,), keep_dims=True)
    weight = np.random.default_rng(0).integers(-3, 4, (4, 16)).astype(np.float32)
    graph = hx.graph({"product": hx.matmul(summed, hx.relu(b)), "linear": hx.linear(hx.relu(summed), weight)})
    net = compiled_as_checked(graph, target)
    feeds = {t.value.node.attrs["name"]: np.ones(t.shape, np.float32) for t in (a, b)}
    want = run_reference(graph, feeds)
    for name, got in net(feeds).items():
        np.testing.assert_array_equal(got, want[name])


@pytest.mark.parametrize("rank", range(1, 8))
def test_an_l2_norm_of_any_number_of_axes_is_judged(rank: int) -> None:
    graph = hx.graph({"y": hx.l2_norm(hx.input("x", (2,) * (rank - 1) + (8,)))})
    for target in TARGETS:
        check("fp32", graph, {"x": np.ones(graph.inputs[0].shape, np.float32)}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", small_networks())
def test_a_small_network_compiles_for_every_chip(name: str, target: str, model_file: Callable[[str], Path]) -> None:
    graph = import_onnx(model_file(name))
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    for schedule in SCHEDULES:
        check("fp32", graph, feeds, target, schedule)


@pytest.mark.parametrize("target", [name for name in target_names() if name != "host"])
def test_every_chip_there_is_can_be_compiled_for(target: str, model_file: Callable[[str], Path]) -> None:
    graph = import_onnx(model_file("mobile-13"))
    net = hx.compile(graph, target=target)
    assert net.target == target
    check_agrees(graph, net)


@pytest.mark.parametrize("target", TARGETS)
def test_a_pixel_shuffle_is_reported_as_it_is_compiled(target: str) -> None:
    """Below family A13 the reshapes around its transpose are the host's, and stay two: no layer computes both at
    once."""
    x = hx.input("x", (2, 8, 16, 1))
    before = hx.tanh(x)
    shuffled = hx.pixel_shuffle(before, upscale_factor=2)  # on a line of its own, by which decisions name it
    graph = hx.graph(hx.tanh(shuffled))
    check("fp32", graph, {"x": np.linspace(-2, 2, 256, dtype=np.float32).reshape(x.shape)}, target)


@pytest.mark.parametrize("target", TARGETS)
def test_a_reshape_that_is_refused_is_not_hidden_in_one_of_six_axes(target: str) -> None:
    x = hx.tanh(hx.input("x", (2, 2, 91, 2)))
    five = hx.reshape(x, shape=(2, 2, 1, 91, 2))
    graph = hx.graph(hx.expand_dims(five, axes=(4,)))
    check("exact", graph, {"x": np.ones((2, 2, 91, 2), np.float32)}, target)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("build", [hx.sin, hx.cos])
def test_the_cosine_of_large_numbers_is_where_the_report_says(build: Any, target: str) -> None:
    """As a polynomial of an argument that is brought into one turn: its powers are not those of the argument."""
    levels = hx.dequantize(hx.input("x", (1, 8, 4, 4), "int8"), hx.const(np.float32(100)), None)
    check("fp32", hx.graph(build(levels)), {"x": np.arange(-64, 64, dtype=np.int8).reshape(1, 8, 4, 4)}, target)


@pytest.mark.parametrize("target", ["t0", *TARGETS])
@pytest.mark.parametrize("scales", [(), (5,)])
def test_integers_of_six_axes_are_on_the_engine_as_reported(target: str, scales: tuple[int, ...]) -> None:
    """They are written on as few axes as the chip takes; the reshapes around them are the host's where need be."""
    grid = hx.const(np.full(scales, 0.25, np.float32)), hx.const(np.full(scales, 3, np.int8))
    x = hx.input("x", (2, 3, 1, 2, 5, 4))
    steps = hx.dequantize(hx.quantize(hx.relu(x), *grid, axis=4, dtype="int8"), *grid, axis=4)
    feeds = {"x": np.arange(-120, 120, dtype=np.float32).reshape(x.shape) / 8}
    check("exact", hx.graph(steps), feeds, target)
    report = hx.preflight(hx.graph(steps), target)
    assert [e.verdict.runs for e in report.entries if e.node.op.endswith("quantize")] == [True, True]


# ---- programs made of layers ----


def test_a_segment_runs_from_its_fused_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fusion that is wrong on purpose shows in the numbers: nothing else is executed."""
    graph = hx.graph(hx.relu(hx.conv(hx.input("x", (1, 2, 4, 4), "fp16"), np.ones((3, 2, 1, 1), np.float16))))
    image = -np.ones((1, 2, 4, 4), np.float16)
    assert not hx.compile(graph, target="h13")(image).any()
    monkeypatch.setitem(MODE_OF, "relu", "abs")
    np.testing.assert_array_equal(hx.compile(graph, target="h13")(image), np.full((1, 3, 4, 4), 2, np.float16))


def test_quantised_weights_are_scaled_behind_the_accumulator() -> None:
    """Integers of 8 bits times integers are exact; the scale, in fp16 as MIL stores it, is rounded with the result and
    not before."""
    rng = np.random.default_rng(5)
    weight, scale = rng.integers(-127, 128, (6, 4, 1, 1)).astype(np.int8), np.float32([0.3, 0.1, 0.7, 0.9, 0.011, 0.5])
    image = rng.integers(-3, 4, (1, 4, 5, 5)).astype(np.float16)
    y = hx.conv(hx.input("x", image.shape), hx.dequantize(hx.const(weight), hx.const(scale), axis=0))
    net = hx.compile(y, target="h14", numerics="ieee")
    total = np.einsum("nchw,oc->nohw", image.astype(np.float64), weight[:, :, 0, 0].astype(np.float64))
    want = (total * scale.astype(np.float16).astype(np.float64).reshape(1, -1, 1, 1)).astype(np.float16)
    np.testing.assert_array_equal(net(image.astype(np.float32)), want.astype(np.float32))


# ---- states and params, whole numbers all through ----


def whole_program(rng: np.random.Generator) -> Graph:
    """Matrices of small whole numbers, on both devices (the host has mod), and two states that are written now and
    then."""

    def whole(*shape: int) -> Array:
        return rng.integers(-4, 5, shape).astype(np.float32)

    newest = {name: hx.state(name, init=whole(4, 4)) for name in ("s", "t")}
    pool = [hx.input("x", (4, 4)), hx.param("p", whole(4, 4)), *newest.values()]
    updates = []
    for _ in range(14):
        a, b = (pool[int(rng.integers(len(pool)))] for _ in range(2))
        match int(rng.integers(8)):
            case 0 | 1:
                name, rows = "st"[int(rng.integers(2))], int(rng.integers(1, 5))
                at = hx.const(np.array(rng.integers(0, 5 - rows), np.int32))
                newest[name] = hx.write_state(newest[name], a[4 - rows :], at)
                updates.append(newest[name])
                pool.append(newest[name])
            case 2:
                pool.append(hx.clip(a @ b, alpha=-8, beta=8))
            case 3:
                pool.append(hx.mod(a, hx.const(np.float32(3))))
            case 4:
                pool.append(hx.transpose(a, perm=(1, 0)))
            case 5:
                pool.append(hx.concat(a[:2], b[2:], axis=0))
            case 6:
                pool.append(hx.clip(a + b, alpha=-8, beta=8))
            case 7:
                pool.append(hx.mod(hx.relu(a), hx.const(np.float32(5))))
    return hx.graph([pool[-1], *(pool[int(rng.integers(len(pool)))] for _ in range(3))], updates)


@pytest.mark.parametrize("states_seed", first_quick(range(100), 40))
def test_states_and_params_are_one_for_all_segments(states_seed: int) -> None:
    rng = np.random.default_rng(states_seed)
    graph = whole_program(rng)
    print(f"seed {states_seed}\n{graph}")
    net = hx.compile(graph, target="h13", threads=1)
    states: dict[str, Array] = {}
    for _ in range(3):
        feeds = {name: rng.integers(-4, 5, (4, 4)).astype(np.float32) for name in graph.input_names()}
        want, got = run_reference(graph, feeds, states), net(feeds)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
    for name, array in states.items():
        np.testing.assert_array_equal(net.read_state(name), array)


def test_the_steps_of_a_program_are_those_of_its_segments_in_order() -> None:
    for seed in range(20):
        graph, _ = random_graph(seed, "fp32")
        program = hx.compile(graph, target="h13").program
        assert program is not None
        ends = [s.steps for s in program.segments]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(ends))
        for s in program.segments:
            names = {program.steps[i].numerics.name for i in range(*s.steps)}
            assert names <= (
                {"h13", "h13 engine", "host"} if s.device == "ane" else {"host"}
            )  # casts at ports are the host's
        written = retarget(repair(graph, load_target("h13")), load_target("h13"))
        assert sum(len(s.nodes) for s in program.segments) <= sum(n.op not in LEAVES for n in written.nodes)


@pytest.mark.parametrize("target", TARGETS)
def test_a_param_that_says_where_to_read_can_be_replaced(target: str) -> None:
    table, places = np.arange(12, dtype=np.float32).reshape(4, 3), hx.param("places", np.array([0, 2]), "int32")
    net = hx.compile(hx.relu(hx.input("x", (2, 3))) + hx.gather(hx.const(table), places, axis=0), target=target)
    zero = np.zeros((2, 3), np.float32)
    np.testing.assert_array_equal(net(zero), table[[0, 2]])
    net.update(places=np.array([1, 3], np.int32))
    np.testing.assert_array_equal(net(zero), table[[1, 3]])
