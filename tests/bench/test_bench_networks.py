"""Networks that are measured: their results by NumPy are right, and a wrong weight shows."""

from collections.abc import Callable
from ctypes import CDLL, c_int64

import numpy as np
import pytest

import hexane as hx
from engines import plan_engine, stand_in_engine, to_plan
from hexane import _core
from hexane.bench.networks import NETWORKS, int32_product
from hexane.bench.probes import PROBES, PUBLISHED, Configuration, configurations
from hexane.bench.worker import FARTHEST, run
from hexane.errors import Error
from hexane.graph import Graph, Node, Port, Value
from hexane.ops import OPS, apply
from hexane.ops.reference import run_reference
from stand_in import FRAMEWORK

CHAIN3 = {"channels": 8, "depth": 3, "height": 4, "width": 5, "kernel": 3}
SMALL = {
    "conv_chain": {"channels": 16, "depth": 5, "height": 2, "width": 3},
    "int8_chain": {"channels": 16, "depth": 5, "height": 2, "width": 3},
    "gemm": {"rows": 5, "inner": 7, "columns": 3},
    "add": {"elements": 128},
    "relu": {"elements": 128},
}


def test_every_network_has_a_small_one() -> None:
    assert set(SMALL) == set(NETWORKS)


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
@pytest.mark.parametrize(("name", "sizes"), [*SMALL.items(), ("conv_chain", CHAIN3)])
def test_the_expected_output_is_the_reference_interpreters(name: str, sizes: dict[str, int], dtype: str) -> None:
    network = NETWORKS[name](dtype, 2, **sizes)
    (got,) = run_reference(network.graph, network.inputs).values()
    scale = np.abs(network.expected).max()
    assert got.dtype == network.inputs["x"].dtype
    np.testing.assert_allclose(got, network.expected, rtol=0, atol=scale * (4e-3 if dtype == "fp16" else 1e-5))


@pytest.mark.parametrize("name", ["conv_chain", "int8_chain"])
def test_a_chain_whose_layers_share_one_weight_is_seen_to_be_wrong(name: str) -> None:
    network = NETWORKS[name]("fp32", 4, channels=64, depth=4, height=2, width=2)
    convs = [n for n in network.graph.nodes if n.op == "conv"]
    assert len({n.inputs[1] for n in convs}) == 4

    def share(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        return apply(OPS["conv"], (inputs[0], convs[0].inputs[1], None), node.attrs) if node.op == "conv" else None

    shared = network.graph.rewrite(share)
    got = hx.compile(shared, target="host")(network.inputs)
    assert np.linalg.norm(got - network.expected) / np.linalg.norm(network.expected) > 2 * FARTHEST


@pytest.mark.parametrize(("channels", "depth"), [(256, 8), (384, 32), (512, 8)])
def test_weights_and_activations_of_the_int8_chain_need_8_bits_in_every_layer(channels: int, depth: int) -> None:
    network = NETWORKS["int8_chain"]("fp16", 2, channels=channels, depth=depth, height=4, width=8)
    quantized = [n.values[0] for n in network.graph.nodes if n.op == "quantize"]
    weights = [n.inputs[0] for n in network.graph.nodes if n.op == "dequantize" and n.inputs[0] not in quantized]
    assert len(quantized) == len(weights) == depth
    for value in weights:
        assert value is not None
        assert value.node.data is not None
        assert 64 <= np.abs(value.node.data.astype(int)).max() <= 127
    shown = Graph(network.graph.inputs, tuple(Port(f"q{i}", value) for i, value in enumerate(quantized)))
    for activations in run_reference(shown, network.inputs).values():
        assert activations.dtype == np.int8
        assert activations.astype(int).std() > 30
        assert np.abs(activations.astype(int)).max() > 64
        assert np.isin(activations, (-128, 127)).mean() < 0.1  # few are clipped


@pytest.mark.parametrize("inner", [64, 1023, 1025])
def test_the_product_of_the_int8_reference_is_numpys_int32_product(inner: int) -> None:
    random = np.random.default_rng(0)
    a, b = random.integers(-128, 128, (5, inner)), random.integers(-128, 128, (inner, 6))
    a[0], b[:, 0] = -128, -128
    got = int32_product(a.astype(np.int8), b.astype(np.int8))
    assert got.dtype == np.int32
    np.testing.assert_array_equal(got, a.astype(np.int32) @ b.astype(np.int32))


def test_the_cpu_runs_the_int8_chain_in_integers_without_an_error() -> None:
    sizes = {"channels": 64, "depth": 6, "height": 4, "width": 4}
    found = run(Configuration("int8", "n", "int8_chain", sizes, "fp32"), "cpu", 0.001, 1)
    assert (found["distance"], found["largest_error"]) == (0, 0)
    net = hx.compile(NETWORKS["int8_chain"]("fp32", 4, **sizes).graph, target="host")
    assert sum("quantized" in step.kernel for step in net.program.steps) == 6  # type: ignore[union-attr]


def test_a_wrong_result_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS["relu"]("fp32", 4, elements=64)
    network.expected[0, 0, 0, 3] += 100
    monkeypatch.setitem(NETWORKS, "relu", lambda dtype, stored, elements: network)  # type: ignore[arg-type]
    found = run(Configuration("p", "n", "relu", {"elements": 64}, "fp32"), "cpu", 0.001, 1)
    assert "wrong result" in found["error"]
    assert found["times_us"]["p50"] > 0


def test_a_3x3_convolution_counts_nine_products_for_each_pair_of_channels() -> None:
    found = run(Configuration("peak", "n", "conv_chain", CHAIN3, "fp32"), "cpu", 0.001, 1)
    assert "error" not in found
    assert found["operations"] == 2 * 9 * 8 * 8 * 4 * 5 * 3
    assert found["weight_bytes"] == 9 * 8 * 8 * 3 * 4


@pytest.mark.parametrize("device", ["cpu", "ane"])
def test_peak_has_all_three_kinds(device: str) -> None:
    made = configurations("peak", device)  # type: ignore[arg-type]
    kinds = {(c.network, c.sizes.get("kernel", 1)) for c in made}
    assert kinds == {("conv_chain", 1), ("conv_chain", 3), ("gemm", 1)}


@pytest.mark.parametrize("mode", ["bound", "call", "threads", "idle"])
def test_every_mode_measures_what_it_computes(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hexane.bench.worker.IDLE", 0.001)
    sizes = {"channels": 16, "depth": 2, "height": 1, "width": 4}
    found = run(Configuration("p", "n", "conv_chain", sizes, "fp16", mode, threads=2), "cpu", 0.01, 1)  # type: ignore[arg-type]
    assert "error" not in found
    assert found["distance"] < 1e-2
    assert found["operations"] == 2 * 16 * 16 * 4 * 2
    assert found["weight_bytes"] == 16 * 16 * 2 * 2
    assert ("calls_per_second" in found) == (mode == "threads")
    assert found["times_us"]["min"] <= found["times_us"]["p50"] <= found["times_us"]["p99"]


@pytest.mark.parametrize("made", [plan_engine, stand_in_engine])
def test_an_engine_is_measured_by_the_same_networks(
    made: Callable[[], _core.Device], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = made()
    monkeypatch.setenv("HEXANE_TARGET", "h13")
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda chip: (engine, ""))
    found = run(Configuration("p", "n", "conv_chain", CHAIN3, "fp16"), "ane", 0.01, None)
    assert "error" not in found
    assert found["distance"] < 1e-2
    for network, mode in (("conv_chain", "bound"), ("int8_chain", "bound"), ("gemm", "call"), ("add", "bound")):
        configuration = Configuration("p", "n", network, SMALL[network], "fp16", mode, qos=33)  # type: ignore[arg-type]
        found = run(configuration, "ane", 0.01, None)
        assert "error" not in found
        assert found["distance"] < 1e-2
        assert found["ran_on"].startswith("ane")
    assert (
        run(Configuration("p", "n", "conv_chain", SMALL["conv_chain"], "fp32"), "ane", 0.01, None)["weight_bytes"]
        == 16 * 16 * 5 * 2
    )


def test_what_the_service_keeps_is_purged_before_a_cold_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of a service whose compiler would take what it keeps. Programs that are called at once share one compile."""
    made = stand_in_engine()
    lowered: list[Graph] = []
    monkeypatch.setattr("engines.to_plan", lambda graph: lowered.append(graph) or to_plan(graph))
    monkeypatch.setenv("HEXANE_TARGET", "h13")
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda chip: (made, ""))
    stand_in = CDLL(str(FRAMEWORK))
    stand_in.fake_ane_set(b"compile_again", c_int64(0))
    try:
        for i, mode in enumerate(("bound", "bound", "threads"), 1):
            found = run(Configuration("p", "n", "conv_chain", SMALL["conv_chain"], "fp16", mode, 3), "ane", 0.01, None)  # type: ignore[arg-type]
            assert "error" not in found
            assert found["compiles"] == 1
            assert len(lowered) == i
    finally:
        stand_in.fake_ane_set(b"compile_again", c_int64(1))


def test_a_compile_that_asked_no_compiler_is_not_told_as_cold(monkeypatch: pytest.MonkeyPatch) -> None:
    made = stand_in_engine()
    monkeypatch.setenv("HEXANE_TARGET", "h13")
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda chip: (made, ""))
    monkeypatch.setattr("hexane.bench.worker._compiles", lambda device: 7)
    found = run(Configuration("p", "n", "relu", {"elements": 64}), "ane", 0.01, None)
    assert "compile_ms is not cold" in found["error"]


def test_without_an_engine_nothing_is_measured_in_its_place() -> None:
    with pytest.raises(Error, match="need"):
        run(Configuration("p", "n", "relu", {"elements": 64}), "ane", 0.01, None)


@pytest.mark.parametrize("device", ["cpu", "ane"])
def test_configurations_of_a_device_have_names_of_their_own(device: str) -> None:
    for probe in (*PROBES, *PUBLISHED):
        if device == "cpu" and "qos" in probe:
            with pytest.raises(Error, match="need ane"):
                configurations(probe, "cpu")
            continue
        made = configurations(probe, device)  # type: ignore[arg-type]
        assert made
        assert len({c.name + c.dtype for c in made}) == len(made)
        assert all(c.probe == probe and c.network in NETWORKS for c in made)
        assert json_round_trip(made)


def json_round_trip(made: list[Configuration]) -> bool:
    import json
    from dataclasses import asdict

    return [Configuration(**json.loads(json.dumps(asdict(c)))) for c in made] == made


def test_a_probe_that_is_none_is_named_with_those_that_are() -> None:
    with pytest.raises(Error, match=r"got the probe 'dispach', need one of: dispatch, threads, peak"):
        configurations("dispach", "cpu")
