"""The pass that writes a network for a chip: what it records, what it leaves alone, and random graphs for every
chip."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from cases import CASES, IDS, arrays, graph_of
from cases import feeds as feeds_of
from compare import assert_close
from hexane.graph import Graph
from hexane.ops import LEAVES, Op
from hexane.ops.reference import run_reference
from hexane.ops.verify import verify
from hexane.passes.retarget import becomes, retarget
from hexane.passes.retarget.borders import is_border
from hexane.passes.retarget.writer import Writer
from hexane.targets import Chip
from hexane.targets.legality import op_status
from hexane.targets.query import load_chip
from hexane.targets.tables import target_names
from hexane.validate import judge
from random_graphs import random_graph
from retargeted import HOST, assert_decided, small, w, x
from turns import share

CHIPS = [name for name in target_names() if name != "host"]
# Every extent that a random graph's tensors exceed.
CRAMPED = {"width": 6, "height": 5, "depth": 3, "channels": 4, "batch": 2, "transpose_elements": 20, "kernel_width": 2,
           "kernel_height": 2, "small_kernel_width": 1, "small_kernel_height": 1, "pool_window": 2, "arg_extent": 4}  # fmt: skip


def network() -> Graph:
    y = hx.conv(x(1, 3, 32, 32), w(8, 3, 16, 16), strides=16)
    y = hx.sin(hx.pad(hx.mish(y), begin=(0, 1, 0, 0), end=(0, 0, 0, 0)))
    return hx.graph({"y": hx.tan(y), "z": hx.relu(x(2, 20000, name="long"))})


def test_other_targets_are_left_alone() -> None:
    graph = network()
    assert retarget(graph, HOST) is graph


def test_every_rewrite_hazard_refusal_and_border_is_a_decision() -> None:
    decisions = retarget(network(), load_chip("m1")).decisions
    told = {(d.node.split(" ")[0], d.verdict): d for d in decisions}
    assert set(told) == {
        ("conv", "decomposed"), ("conv", "hazard"), ("mish", "decomposed"), ("pad", "decomposed"), ("sin", "decomposed"),
        ("sin", "hazard"), ("tan", "kept"), ("relu", "tiled"), ("slice_by_size", "outside"), ("concat", "outside"),
    }  # fmt: skip
    assert all(d.stage == "retarget" and " at test_retarget.py:" in d.node for d in decisions)
    assert "space to depth: 16 x 16 pixels" in told["conv", "decomposed"].reason
    assert told["conv", "decomposed"].source == "guide ch22, decoded"
    assert told["tan", "kept"].reason == "no form of it runs on the chip: no chip has a path for it"
    assert "spatial, 2 pieces" in told["relu", "tiled"].reason


def test_what_the_engines_compiler_writes_out_itself_is_left_to_it() -> None:
    graph = hx.graph(hx.gather_nd(x(4, 5, 6), np.zeros((2, 3), np.int64)))
    node = graph.outputs[0].value.node
    verdict = becomes(node, load_chip("h13"))
    if judge(node, load_chip("h13")).verdict == "decomposed":
        assert verdict.runs
        assert [d.verdict for d in retarget(graph, load_chip("h13")).decisions] == ["left"]


def test_sources_stay_with_what_stands_for_a_node() -> None:
    after = retarget(network(), load_chip("m1"))
    assert all(node.source.startswith("test_retarget.py:") for node in after.nodes if node.op not in LEAVES)


def test_states_and_updates_stay() -> None:
    state = hx.state("s", (4, 8))
    written = hx.write_state(state, hx.sin(x(1, 8)), hx.const(np.array(2)))
    graph = hx.graph({"y": hx.sin(written)}, updates=(written,))
    after = retarget(graph, load_chip("m1"))
    assert [v.node.op for v in after.updates] == ["write_state"]
    feeds = {"x": np.ones((1, 8), np.float32)}
    assert_close(run_reference(after, feeds)["y"], run_reference(graph, feeds)["y"])


def chain(length: int) -> Graph:
    y = x(1, 4, 4, 4)
    for i in range(length):
        y = hx.mish(y) if i % 3 == 0 else hx.relu(y) if i % 3 == 1 else y * float(i)
    return hx.graph(y)


def test_work_is_linear_in_the_size_of_the_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    plain = Writer.apply
    monkeypatch.setattr(Writer, "apply", lambda self, name, *a, **k: calls.append(name) or plain(self, name, *a, **k))

    def work(length: int) -> int:
        calls.clear()
        retarget(chain(length), load_chip("m1"))
        return len(calls)

    work(300)  # what becomes of each kind of node is remembered
    assert work(600) == 2 * work(300) == 600


def assert_same(graph: Graph, feeds: Any, chip: Chip, kind: str) -> None:
    after = retarget(graph, chip)
    verify(after, "user", chip)
    want, got = run_reference(graph, feeds), run_reference(after, feeds)
    for name, array in want.items():
        if kind == "exact":
            np.testing.assert_array_equal(got[name], array)
        else:
            assert_close(got[name], array)
    assert str(retarget(after, chip)) == str(after)
    assert_decided(after, chip)
    for node in after.nodes:
        if node.op not in LEAVES and judge(node, chip).verdict in ("oversize", "decomposed"):
            assert is_border(node, chip) or not becomes(node, chip).form, node


@pytest.mark.parametrize("chip", ["h11", "h13", "h17s"])
@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_a_case_of_the_catalogue_is_right(op: Op, index: int, chip: str) -> None:
    inputs = arrays(op, op.cases[index])
    graph = graph_of(op, op.cases[index], inputs)
    assert_same(graph, feeds_of(graph, inputs), load_chip(chip), "")


@pytest.mark.parametrize("chip", [small("h13", **CRAMPED), small("h17s", **{**CRAMPED, "rank": 4}), small("h12", **CRAMPED)], ids=["h13", "h17s", "h12"])  # fmt: skip
@pytest.mark.parametrize("kind", ["exact", "fp32"])
@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 8))])
def test_a_random_graph_of_tensors_that_are_too_large_is_right(seed: int, kind: str, chip: Chip) -> None:
    graph, feeds = random_graph(seed, kind, steps=12)
    assert_same(graph, feeds, chip, kind)


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", ["exact", "fp32"])
def test_a_random_graph_is_right_for_every_chip(kind: str, chip: str) -> None:
    graph, feeds = random_graph(CHIPS.index(chip), kind)
    assert_same(graph, feeds, load_chip(chip), kind)


@pytest.mark.slow
@pytest.mark.parametrize("chip", [small("h13", **CRAMPED), small("h18", **CRAMPED), load_chip("h13"), load_chip("h11")], ids=["h13", "h18", "m1", "h11"])  # fmt: skip
@pytest.mark.parametrize("seed", share(range(100, 250)))
def test_many_random_graphs_are_right(seed: int, chip: Chip) -> None:
    for kind in ("exact", "fp32"):
        graph, feeds = random_graph(seed, kind)
        assert_same(graph, feeds, chip, kind)


@pytest.mark.parametrize(("op", "index"), CASES, ids=IDS)
def test_op_status_agrees_with_what_becomes_of_an_op(op: Op, index: int) -> None:
    """An op that no shape runs of is never called native or decomposed, and one on the host never runs."""
    graph = graph_of(op, op.cases[index], arrays(op, op.cases[index]))
    for name in ("h13", "h14", "h17s"):
        chip = load_chip(name)
        for node in graph.nodes:
            if node.op == op.name and op_status(op.name, chip).verdict == "host":
                assert not becomes(node, chip).runs, (name, becomes(node, chip))
