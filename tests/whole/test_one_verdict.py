"""What check says, what compile divides and what emit writes are one verdict, for random graphs, every op and whole
networks."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import hexane as hx
from architectures import ARCHITECTURES
from cases import CASES, IDS, arrays, graph_of
from first_quick import first_quick
from hexane.graph import Graph
from hexane.ops import Op
from hexane.ops.reference import run_reference
from hexane.pipeline import divide
from hexane.runtime.mil import emit_pieces
from hexane.targets.query import load_chip
from random_graphs import KINDS, random_graph

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
CHIPS = ("h13", "h14", "h16", "h17s")
SEEDS = first_quick(range(250), 6)


def assert_one_verdict(graph: Graph, chip: str) -> None:
    report = hx.preflight(graph, chip)
    hosted = [node for s in report.segments if s.device == "host" for node in s.nodes]
    assert report.ok == (not hosted), str(report)
    if report.ok:
        assert all(entry.verdict.runs for entry in report.entries), str(report)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", hx.FallbackWarning)
        assert divided(graph, chip) == [(s.device, [n.op for n in s.nodes]) for s in report.segments]
    assert any(issubclass(w.category, hx.FallbackWarning) for w in caught) == bool(hosted), str(report)
    memory = {node.op for node in graph.nodes} & {"param", "state", "write_state"}
    if memory == {"param"}:  # constants of programs in files, so that what depends on them alone is computed before
        emit_pieces(hx.graph({"computed": hx.relu(hx.input("more", (4,))), **_tensors(graph)}), load_chip(chip))
    if not memory and any(segment.device == "ane" for segment in report.segments):
        _, pieces = emit_pieces(graph, load_chip(chip))
        written = [(p.segment.device, p.mil is not None, [n.op for n in p.segment.nodes]) for p in pieces]
        assert written == [(s.device, s.device == "ane", [n.op for n in s.nodes]) for s in report.segments]


def _tensors(graph: Graph) -> dict[str, hx.Tensor]:
    return {port.name: hx.Tensor(port.value) for port in graph.outputs}


def divided(graph: Graph, chip: str) -> list[tuple[str, list[str]]]:
    """The pieces that compile makes."""
    program = hx.compile(graph, target=chip, numerics="ieee", threads=1).program
    assert program is not None
    return [(s.device, [n.op for n in s.nodes]) for s in program.segments]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed: int, kind: str) -> None:
    graph, _ = random_graph(seed, kind, steps=8)
    for chip in CHIPS:
        assert_one_verdict(graph, chip)


def on_two_chips() -> list[Any]:
    """Every case; quick are those on two of the chips, on the other two for the next case."""
    found = []
    for place, ((op, index), name) in enumerate(zip(CASES, IDS, strict=True)):
        for i, chip in enumerate(CHIPS):
            marks = [] if (place + i) % 2 == 0 else [pytest.mark.slow]
            found.append(pytest.param(op, index, chip, id=f"{name}-{chip}", marks=marks))
    return found


@pytest.mark.parametrize(("op", "index", "chip"), on_two_chips())
def test_every_op(op: Op, index: int, chip: str) -> None:
    for graph in _with_constants(op, index):
        assert_one_verdict(graph, chip)


def _with_constants(op: Op, index: int) -> Iterator[Graph]:
    yield graph_of(op, op.cases[index], arrays(op, op.cases[index]))


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_networks(name: str, chip: str) -> None:
    graph = ARCHITECTURES[name]()
    assert divide(graph, load_chip(chip))
    assert_one_verdict(graph, chip)


@pytest.mark.parametrize("chip", CHIPS)
def test_what_is_made_of_stored_weights_is_computed_when_the_program_is_compiled(chip: str) -> None:
    """The engine pads no channels; no layer has to, where the channels are those of a dequantised constant."""
    stored = hx.dequantize(hx.const(np.arange(102, dtype=np.int8).reshape(2, 3, 17)), np.float32(0.25), np.int8(-3))
    weight = hx.pad(hx.split(stored, axis=1, split_sizes=(1, 2))[0], begin=(1, 0, 0), end=(2, 0, 0))
    graph = hx.graph({"y": hx.input("x", (5, 1, 17)) + weight})
    assert {e.verdict.verdict for e in hx.preflight(graph, chip).entries} == {"native"}
    net = hx.compile(graph, target=chip, device="cpu", threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert [layer.op for layer in net.program.layers] == ["anec.add"]
    x = np.ones((5, 1, 17), np.float32)
    np.testing.assert_array_equal(net(x), run_reference(graph, {"x": x})["y"])


@pytest.mark.parametrize("chip", CHIPS)
def test_a_norm_in_front_of_a_rounding_is_no_scale_of_quantisation(chip: str) -> None:
    y = hx.rms_norm(hx.input("x", (1, 7, 6, 16), "fp16"), axes=(2, 3))
    graph = hx.graph({"codes": hx.cast(hx.round(y), dtype="int64"), "y": hx.relu(y)})
    refused = {e.node.op for e in hx.preflight(graph, chip).entries if not e.verdict.runs}
    net = hx.compile(graph, target=chip, device="cpu", threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    assert refused == {d.node.partition(" at ")[0] for d in net.program.decisions if d.verdict == "host"}
