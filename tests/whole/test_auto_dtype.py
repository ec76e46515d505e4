"""The dtype "auto": products that are faster in bf16, as far as the outputs stay near those in fp32."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.runtime import auto_dtype

IN_BF16 = ("cpu.bf16_matmul", "cpu.bf16_conv")


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> hx.Tensor:
    return hx.const((rng.standard_normal(shape) * scale).astype(np.float32))


def image_network() -> hx.Graph:
    """Pixels of 0..255, three convolutions, of which the second has weights of 1e-5, and classes."""
    rng = np.random.default_rng(0)
    x = hx.input("x", (1, 3, 16, 16))
    y = hx.relu(hx.conv(x, normal(rng, 16, 3, 3, 3, scale=27**-0.5), normal(rng, 16), pad=1))
    y = hx.relu(hx.conv(y, normal(rng, 32, 16, 3, 3, scale=1e-5), strides=2, pad=1)) * 1e5
    y = hx.relu(hx.conv(y, normal(rng, 16, 32, 1, 1, scale=32**-0.5)))
    pooled = hx.reshape(hx.reduce_mean(y, axes=(2, 3)), shape=(1, 16))
    return hx.graph({"y": hx.linear(pooled, normal(rng, 10, 16, scale=1 / 4), normal(rng, 10))})


def deep_network(layers: int, bad: int = -1) -> hx.Graph:
    """Residual products of activations of about 20,000. bad: the number of a layer that subtracts numbers near each
    other, whose roundings are large."""
    rng = np.random.default_rng(1)
    y = hx.input("x", (8, 32)) * 20000.0
    for i in range(layers):
        if i == bad:
            pair = np.ones((32, 32), np.float32)
            pair[:, ::2] = -1.0
            y = y + hx.linear(y + 3e6, hx.const(pair))
        else:
            y = y + hx.linear(hx.relu(y), normal(rng, 32, 32, scale=0.02))
    return hx.graph({"y": y})


def pixels(seed: int = 2) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).uniform(0, 255, (1, 3, 16, 16)).astype(np.float32)}


def rows(seed: int = 3) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(seed).standard_normal((8, 32)).astype(np.float32)}


def error_of(graph: hx.Graph, net: Any, feed: dict[str, np.ndarray]) -> float:
    want, got = (np.asarray(one(feed)).astype(np.float64) for one in (hx.compile(graph), net))
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def number_in_bf16(net: Any) -> int:
    return sum(step.node.op in IN_BF16 for step in net.program.steps)


def decisions_of(net: Any) -> list[hx.Decision]:
    return [d for d in net.program.graph.decisions if d.stage == "use_bf16"]


@pytest.fixture
def all_faster(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """As if bf16 were faster, but for the products whose numbers stand in this list, whatever the CPU."""
    slow: list[int] = []

    def times(products: Sequence[Any], *others: Any) -> list[tuple[float, float]]:
        return [(10.0, 10.0 if i in slow else 4.0) for i in range(len(products))]

    monkeypatch.setattr(_core, "bf16_forms", lambda: ["amx", "plain"])
    monkeypatch.setattr(auto_dtype, "_times", times)
    return slow


def test_all_products_are_in_bf16_where_the_error_allows_it(all_faster: list[int]) -> None:
    net = hx.compile(image_network(), dtype="auto")
    assert number_in_bf16(net) == 4
    first, *others = decisions_of(net)
    assert first.reason.startswith("4 of 4 products in bf16: outputs off by 0.0")
    assert first.reason.endswith(" in relative L2 (limit 0.01), on 2 random inputs of the seed 0")
    assert [d.verdict for d in others] == ["bf16"] * 4
    assert all("10.0 us in fp32, 4.0 us in bf16; outputs off by 0.0" in d.reason for d in others)
    assert 1e-6 < error_of(image_network(), net, pixels()) < 0.01


def test_a_product_that_is_no_faster_stays_in_fp32(all_faster: list[int]) -> None:
    all_faster.append(1)
    net = hx.compile(image_network(), dtype="auto")
    verdicts = [d.verdict for d in decisions_of(net)[1:]]
    assert verdicts == ["bf16", "fp32", "bf16", "bf16"]
    assert decisions_of(net)[2].reason == "10.0 us in fp32, 10.0 us in bf16: no faster on this CPU"
    assert number_in_bf16(net) == 3


def test_times_are_measured_for_every_product() -> None:
    """Whatever this CPU prefers, no product is without a time."""
    if _core.bf16_forms()[0] == "plain":
        pytest.skip("needs a CPU that multiplies in bf16")
    found = decisions_of(hx.compile(image_network(), dtype="auto"))
    assert len(found) == 5
    assert not any("not measured" in d.reason or "inf" in d.reason for d in found)


@pytest.mark.parametrize("part", [0.9, 0.6, 0.4])
def test_the_error_stays_within_a_tolerance(all_faster: list[int], part: float) -> None:
    graph, feed = deep_network(12), rows()
    whole = error_of(graph, hx.compile(graph, dtype="bf16"), feed)
    net = hx.compile(graph, dtype=hx.AutoDtype(part * whole, calibration=feed))
    assert 0 < number_in_bf16(net) < 12
    assert error_of(graph, net, feed) <= part * whole


def test_one_bad_product_does_not_keep_the_others_in_fp32(all_faster: list[int]) -> None:
    graph, feed = deep_network(24, bad=9), rows()
    whole = error_of(graph, hx.compile(graph, dtype="bf16"), feed)
    without = error_of(deep_network(24), hx.compile(deep_network(24), dtype="bf16"), feed)
    assert without < 0.3 * whole
    net = hx.compile(graph, dtype=hx.AutoDtype(0.4 * whole, calibration=feed))
    assert number_in_bf16(net) >= 20
    assert error_of(graph, net, feed) <= 0.4 * whole


def test_a_tolerance_that_bf16_cannot_keep_leaves_the_bits_of_fp32(all_faster: list[int]) -> None:
    net = hx.compile(image_network(), dtype=hx.AutoDtype(1e-9))
    assert number_in_bf16(net) == 0
    assert np.array_equal(np.asarray(net(pixels())), np.asarray(hx.compile(image_network())(pixels())))


def test_a_cpu_without_instructions_keeps_fp32_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "bf16_forms", lambda: ["plain"])
    net = hx.compile(image_network(), dtype="auto")
    assert number_in_bf16(net) == 0
    (said,) = decisions_of(net)
    assert said[1:4] == (
        "network", "fp32", "this CPU has no instruction that multiplies in bf16 faster than fp32",
    )  # fmt: skip


def test_a_network_without_products_says_so(all_faster: list[int]) -> None:
    (said,) = decisions_of(hx.compile(hx.graph(hx.relu(hx.input("x", (4,)))), dtype="auto"))
    assert said.reason == "the network has no product in fp32 that kernels of bf16 take"


def test_a_saved_plan_keeps_the_choice(all_faster: list[int], tmp_path: Path) -> None:
    all_faster.append(0)
    net = hx.compile(image_network(), dtype="auto")
    net.save(tmp_path / "net.hxp")
    saved = hx.load(tmp_path / "net.hxp")
    assert [s["kernel"] for s in saved.steps] == [s["kernel"] for s in net.steps]
    assert np.array_equal(np.asarray(saved(pixels())), np.asarray(net(pixels())))


def test_few_programs_are_compiled_for_many_layers(all_faster: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = []
    module = import_module("hexane.runtime.compiler")
    whole = module.choose_products

    def counting(graph: hx.Graph, asked: hx.AutoDtype, trial: Any, **how: bool) -> Any:
        return whole(graph, asked, lambda *given: compiled.append(given[0]) or trial(*given), **how)

    monkeypatch.setattr(module, "choose_products", counting)
    hx.compile(deep_network(60), dtype=hx.AutoDtype(2e-4, calibration=rows()))
    assert len(compiled) <= auto_dtype.MOST_TRIALS + 1


def test_rows_and_threads_do_not_change_the_choice_or_the_bits(all_faster: list[int]) -> None:
    all_faster.append(3)
    nets = [
        hx.compile(image_network(), dtype="auto", threads=n, memory=hx.Memory(rows=r))
        for n, r in ((1, 0), (2, 0), (1, 1))
    ]
    results = [np.asarray(net(pixels())).tobytes() for net in nets]
    assert results[1:] == results[:1] * 2


def test_open_shapes_choose_for_each_shape(all_faster: list[int]) -> None:
    onnx = pytest.importorskip("onnx")
    rng = np.random.default_rng(5)
    weight = onnx.numpy_helper.from_array(rng.standard_normal((32, 16)).astype(np.float32), "w")
    ports = [onnx.helper.make_tensor_value_info(n, 1, s) for n, s in (("x", ["n", 32]), ("y", ["n", 16]))]
    nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", ports[:1], ports[1:], [weight]))
    net = hx.compile(model, dtype=hx.AutoDtype(calibration=rows()))
    for count in (8, 5):
        x = rng.standard_normal((count, 32)).astype(np.float32)
        exact = x.astype(np.float64) @ onnx.numpy_helper.to_array(weight).astype(np.float64)
        error = np.linalg.norm(np.asarray(net(x)) - exact) / np.linalg.norm(exact)
        assert 1e-5 < error < 1e-2


def test_a_state_starts_anew_for_each_measurement(all_faster: list[int]) -> None:
    x, s = hx.input("x", (8, 32)), hx.state("s", np.zeros((8, 32), np.float32))
    y = hx.linear(x + s, normal(np.random.default_rng(0), 32, 32, scale=0.1))
    graph = hx.graph({"y": y}, updates=[hx.write_state(s, y)])
    net = hx.compile(graph, dtype="auto")
    assert number_in_bf16(net) == 1
    assert not net.read_state("s").any()


def test_a_model_for_small_devices_stays_in_fp32(all_faster: list[int]) -> None:
    net = hx.compile(image_network(), dtype="auto", memory=hx.Memory(runtime="c99"))
    (said,) = decisions_of(net)
    assert said.reason == "the runtime for small devices has no bf16"


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        ({"z": np.zeros(3, np.float32)}, "calibration: got the name 'z', need one of x"),
        ({"x": np.zeros((2, 3), np.float32)}, r"calibration input 'x': got the shape \[2, 3\], need \[1, 3, 16, 16\]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(all_faster: list[int], feed: dict[str, Any], words: str) -> None:
    with pytest.raises(hx.Error, match=rf"\[compile\] dtype: {words}"):
        hx.compile(image_network(), dtype=hx.AutoDtype(calibration=feed))


@pytest.mark.parametrize("tolerance", [0, -1.0, float("nan"), float("inf"), True, "0.1"])
def test_a_tolerance_is_a_number_above_0(tolerance: Any) -> None:
    with pytest.raises(hx.Error, match=r"\[compile\] dtype: got the tolerance .*, need a number above 0"):
        hx.AutoDtype(tolerance)


@pytest.mark.parametrize("kind", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_products_with_weights_in_16_bits_are_timed(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_core, "bf16_forms", lambda: ["amx", "plain"])
    weights = np.random.default_rng(4).standard_normal((2, 256, 256)) / 16
    y = hx.input("x", (40, 256))
    for weight in weights.astype(kind):
        y = hx.relu(hx.linear(y, hx.cast(hx.const(weight), dtype="fp32")))
    _, *each = decisions_of(hx.compile(hx.graph([y]), dtype="auto"))
    assert len(each) == 2
    assert all(" us in fp32, " in d.reason for d in each)
