"""Watching a program changes nothing of it, and what is found under the name of a layer is that layer's result."""

from dataclasses import replace

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Graph, Port
from hexane.importers.onnx import import_onnx
from hexane.ops.reference import run_reference
from hexane.runtime.observe import Observation, observe, tapped
from networks import small_networks
from random_graphs import random_graph

TARGETS = ("host", "h13", "h17s")
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def watched(graph: Graph, feeds: dict[str, Array], target: str, numerics: str = "engine") -> Observation:
    """The run of the tapped program, which is the untapped one: same steps in the same places, same results."""
    arithmetic = "ieee" if target == "host" else numerics
    plain, found = (hx.compile(g, target=target, numerics=arithmetic, threads=1) for g in (graph, tapped(graph)))
    assert plain.program is not None
    assert found.program is not None
    assert steps(plain) == steps(found)
    seen, outputs = observe(found._core, found.program, feeds)
    wanted = plain._core.run(feeds)
    assert [a.tobytes() for a in outputs] == [a.tobytes() for a in wanted]
    return seen


def steps(net: hx.Model) -> list[object]:
    assert net.program is not None
    placed = [(s.kernel, s.inputs, s.outputs, str(s.attrs), s.numerics, s.cut) for s in net.program.steps]
    # Without what names nodes: one gets the sources of equal ones made later.
    decided = [(d.stage, d.verdict, d.reason.split(" at ")[0]) for d in net.program.decisions]
    return [*placed, net.program.offsets, decided]


def layer_values(graph: Graph, feeds: dict[str, Array]) -> dict[int, Array]:
    """Every tap by the reference, which knows nothing of passes."""
    taps = tapped(graph).taps
    values = run_reference(replace(graph, outputs=tuple(Port(p.name, p.value) for p in taps)), feeds)
    return {int(name): value for name, value in values.items()}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", small_networks())
def test_layers_of_a_network_are_found_with_their_values(name: str, target: str) -> None:
    graph = import_onnx(small_networks()[name])
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    wanted, seen = layer_values(graph, feeds), watched(graph, feeds, target, "ieee")
    layers = seen.layers()
    assert len(layers) > len(wanted) / 3
    for number, value in layers.items():
        got, want = seen[value].astype(np.float64), wanted[number].astype(np.float64)
        assert got.shape == want.shape
        if want.dtype.kind == "f":
            assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want) + 1e-6, graph.nodes[number].where
    watched(graph, feeds, target)


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 10))])
@pytest.mark.parametrize("kind", ["exact", "fp16", "quantized exact"])
def test_layers_of_a_random_graph_are_found_with_their_values(kind: str, seed: int) -> None:
    graph, feeds = random_graph(seed, kind)
    wanted = layer_values(graph, feeds)
    seen = watched(graph, feeds, "host")
    if kind != "fp16":
        for number, value in seen.layers().items():
            np.testing.assert_array_equal(seen[value], wanted[number], graph.nodes[number].where)
    for target in TARGETS[1:]:
        watched(graph, feeds, target)


def test_observing_leaves_states_as_they_were() -> None:
    state = hx.state("s", (4,), "fp32")
    x = hx.input("x", (4,))
    net = hx.compile({"y": hx.write_state(state, state + x, np.array(0)) * 2})
    assert net.program is not None
    for _ in range(2):
        _, (y,) = observe(net._core, net.program, {"x": np.ones(4, np.float32)})
        np.testing.assert_array_equal(y, np.full(4, 2))
    np.testing.assert_array_equal(net.read_state("s"), np.zeros(4))


def test_a_streamed_program_is_refused() -> None:
    x = hx.input("x", (1, 4, 32, 32))
    weight = np.ones((4, 4, 3, 3), np.float32)
    net = hx.compile(hx.relu(hx.conv(hx.conv(x, weight), weight)), memory=hx.Memory(rows=1))
    assert net.program is not None
    with pytest.raises(hx.Error, match="row by row"):
        observe(net._core, net.program, {"x": np.zeros((1, 4, 32, 32), np.float32)})
