"""What fp16 does not hold stays on the host, or is written so that fp16 holds it: sums of integers, small scales, many
steps."""

import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static

import hexane as hx
from hexane.graph import Array, Graph
from hexane.pipeline import divide
from hexane.targets.query import load_chip
from onnx_models import onnxruntime_saturates, skipped_where_aged

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
CHIPS = ("h13", "h15", "h17s")
SHAPE = (1, 16, 12, 12)


def network(gain: float = 1.0) -> onnx.ModelProto:
    """A convolution of 16 channels, a mean and a product; gain: of all its numbers."""
    rng = np.random.default_rng(5)
    weights = {
        "w1": rng.standard_normal((32, 16, 3, 3)) * 0.1 * gain,
        "b1": rng.standard_normal(32) * gain,
        "w2": rng.standard_normal((32, 10)) * 0.2,
    }
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("MatMul", ["f", "w2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 10])],
        [numpy_helper.from_array(a.astype(np.float32), name) for name, a in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        rng = np.random.default_rng(6)
        self._samples = iter([{"x": rng.standard_normal(SHAPE).astype(np.float32)} for _ in range(4)])

    def get_next(self) -> dict[str, Array] | None:
        return next(self._samples, None)


def dynamic(kind: Any) -> Callable[[str, str], None]:
    return lambda source, path: quantize_dynamic(
        source, path, op_types_to_quantize=["Conv", "MatMul"], weight_type=kind
    )


def static(activations: Any) -> Callable[[str, str], None]:
    symmetric = {"ActivationSymmetric": activations is QuantType.QInt16}
    return lambda source, path: quantize_static(
        source, path, Samples(), quant_format=QuantFormat.QDQ, activation_type=activations,
        weight_type=QuantType.QInt8, extra_options=symmetric,
    )  # fmt: skip


FORMS = {
    "dynamic uint8": dynamic(QuantType.QUInt8),
    "dynamic int8": dynamic(QuantType.QInt8),
    "int16": static(QuantType.QInt16),
    "uint16": static(QuantType.QUInt16),
    "uint8": static(QuantType.QUInt8),
}


@pytest.mark.parametrize("gain", [1.0, 0.01])
@pytest.mark.parametrize("form", FORMS)
def test_quantised_networks_mean_on_chips_what_onnxruntime_says(form: str, gain: float, tmp_path: Path) -> None:
    """A gain of 0.01 brings scales below the smallest normal number of fp16. The peer runs without optimisations: with
    them it fuses other integer arithmetic."""
    if form == "dynamic int8" and not _peer_sums_all():
        pytest.skip("this CPU's onnxruntime saturates sums of signed weights")
    onnx.save(network(gain), tmp_path / "model.onnx")
    path = str(tmp_path / "quantised.onnx")
    FORMS[form](str(tmp_path / "model.onnx"), path)
    x = np.random.default_rng(7).standard_normal(SHAPE).astype(np.float32)
    with skipped_where_aged():
        want = onnxruntime.InferenceSession(path).run(None, {"x": x})[0]
    for chip in CHIPS:
        got = hx.compile(path, target=chip, threads=1)(x)
        assert np.linalg.norm(got - want) <= 0.02 * np.linalg.norm(want), chip


def _peer_sums_all() -> bool:
    return not onnxruntime_saturates()


def sums(terms: int) -> Graph:
    """quantize -> integer sums -> cast -> scale -> bias, as dynamic quantisation writes it."""
    x = hx.input("x", (4, terms), "uint8")
    weight = hx.const(np.full((terms, 8), 255, np.uint8))
    total = hx.quantized_matmul(x, weight, None, None, None, None, dtype="int32")
    return hx.graph(hx.cast(total, dtype="fp32") * (hx.input("scale", ()) * 0.001) + 1.0)


@pytest.mark.parametrize("terms", [1, 2, 64])
def test_a_sum_beyond_fp16_and_its_scale_are_the_hosts(terms: int) -> None:
    """One product of bytes is at most 65025, which fp16 holds; two may be 130050."""
    graph = sums(terms)
    feeds = {"x": np.full((4, terms), 255, np.uint8), "scale": np.array(2e-4, np.float32)}
    want = hx.compile(graph, threads=1)(feeds)
    for chip in CHIPS:
        found = [(s.device, [n.op for n in s.nodes]) for s in divide(graph, load_chip(chip))[1]]
        on_engine = [op for device, ops in found if device == "ane" for op in ops]
        assert on_engine.count("mul") == (2 if terms == 1 else 0), found
        assert "add" in on_engine
        np.testing.assert_allclose(hx.compile(graph, target=chip, threads=1)(feeds), want, rtol=2e-3)
        report = hx.preflight(graph, chip)
        assert {e.op: e.verdict.verdict for e in report.entries}["mul"] == ("native" if terms == 1 else "host")


SMALL: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "divided": lambda x: x * np.float32(0.02) / np.float32(3.1e-5),
    "divided by a subnormal": lambda x: x * np.float32(1e-3) / np.float32(1.518e-5),
    "divided by a large number": lambda x: x * 1000.0 / np.float32(1e5),
    "multiplied": lambda x: x * np.float32(1.7e-5) * 1000.0,
    "a factor for each channel": lambda x: x * np.linspace(1e-5, 1e-2, 16, dtype=np.float32)[None] * 1000.0,
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("chip", ["h12", *CHIPS])
def test_small_factors_and_reciprocals_keep_their_digits(chip: str, name: str) -> None:
    x = np.random.default_rng(8).uniform(-1, 1, (4, 16)).astype(np.float32)
    graph = hx.graph(SMALL[name](hx.input("x", (4, 16))))
    want = hx.compile(graph, threads=1)(x)
    got = hx.compile(graph, target=chip, threads=1)(x)
    np.testing.assert_allclose(got, want, rtol=4e-3, atol=1e-3 * np.abs(want).max())
    assert hx.preflight(graph, chip).ok


@pytest.mark.parametrize("op", ["quantize", "dequantize"])
@pytest.mark.parametrize("chip", CHIPS)
def test_small_scales_keep_their_digits(chip: str, op: str) -> None:
    rng = np.random.default_rng(9)
    scale, zero = np.float32(1.518e-5), np.int8(3)
    if op == "dequantize":
        feed = rng.integers(-128, 128, (4, 16)).astype(np.int8)
        graph = hx.graph(hx.dequantize(hx.input("x", (4, 16), "int8"), scale, zero) * 1000.0)
    else:
        feed = rng.uniform(-2e-3, 2e-3, (4, 16)).astype(np.float32)
        graph = hx.graph(hx.quantize(hx.input("x", (4, 16)), scale, zero, dtype="int8"))
    want = hx.compile(graph, threads=1)(feed).astype(np.float64)
    got = hx.compile(graph, target=chip, threads=1)(feed).astype(np.float64)
    assert np.abs(got - want).max() <= (1 if op == "quantize" else 2e-3 * np.abs(want).max())


@pytest.mark.parametrize("size", [2.0**-29, 1e-12, 1e-20, 1e-38])
@pytest.mark.parametrize("chip", ["h12", *CHIPS])
def test_what_is_far_below_fp16_is_not_the_smallest_number_of_it(chip: str, size: float) -> None:
    """A single constant that fp16 rounded to 0 became 6e-8: times 65504 that is 0.004."""
    feeds = {"x": np.array([65504, -3e4, 1, 0], np.float32), "q": np.array([32767, -32768, 7, 0], np.int16)}
    x, q = hx.input("x", (4,)), hx.input("q", (4,), "int16")
    graph = hx.graph([x * np.float32(size), x / np.float32(min(1 / size, 3e38)), hx.dequantize(q, np.float32(size))])
    for made, full in zip(hx.compile(graph, target=chip, threads=1)(feeds).values(), ("x", "x", "q"), strict=True):
        assert np.abs(made - feeds[full].astype(np.float64) * size).max() <= 2.0**-21


@pytest.mark.parametrize("chip", CHIPS)
def test_quantizing_by_a_scale_far_below_fp16_gives_the_whole_numbers(chip: str) -> None:
    x = hx.input("x", (4,))
    graph = hx.graph(hx.quantize(x, np.float32(1e-12), np.int8(0), dtype="int8"))
    feed = np.array([1, -1, 0, 2.0**-10], np.float32)
    np.testing.assert_array_equal(hx.compile(graph, target=chip, threads=1)(feed), [127, -128, 0, 127])


def test_whole_numbers_of_16_bits_are_rounded_by_the_host() -> None:
    """The largest, 32767, is no number of fp16, which would make -32768 of it."""
    x = hx.input("x", (8,))
    steps = hx.clip(hx.round(x / np.float32(2e-4)), alpha=-32768.0, beta=32767.0)
    graph = hx.graph(hx.cast(steps, dtype="int16"))
    feed = np.array([7.0, 6.5533, -7.0, 1.23456, 0.1, 0, -1e-4, 3.3], np.float32)
    want = hx.compile(graph, threads=1)(feed)
    for chip in CHIPS:
        np.testing.assert_array_equal(hx.compile(graph, target=chip, threads=1)(feed), want)


@pytest.mark.parametrize("normed", [False, True], ids=["weights", "weights and their batch norm"])
@pytest.mark.parametrize(
    ("size", "says"), [(1e6, "as large as .*, and 65504 in fp16"), (1e-9, "few digits"), (1.0, "")]
)
def test_weights_that_fp16_does_not_hold_are_a_hazard(size: float, says: str, normed: bool) -> None:
    """Folding a batch norm does not take weights out of fp16. `check` says what `compile` warns of."""
    x = hx.input("x", (1, 4, 6, 6))
    weights = np.random.default_rng(3).standard_normal((4, 4, 3, 3)).astype(np.float32)
    y = hx.conv(x, weights if normed else weights * np.float32(size), pad=1)
    if normed:
        zeros, ones = np.zeros(4, np.float32), np.ones(4, np.float32)
        y = hx.batch_norm(y, zeros, ones, ones * np.float32(size), zeros)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hx.compile(hx.graph(y), target="h13")
    found = [str(w.message) for w in told if issubclass(w.category, hx.HazardWarning)]
    assert len(found) == bool(says and not normed)
    assert all(re.search(f"weights of conv at .*{says}", words) for words in found)
    checked = {e.op: e.verdict.reason for e in hx.preflight(hx.graph(y), "h13").entries}["conv"]
    assert bool(found) == bool(says and re.search(says, checked)), checked


def warned_of_weights(graph: hx.Graph, chip: str = "h13") -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hx.compile(graph, target=chip)
    return [str(w.message) for w in told if issubclass(w.category, hx.HazardWarning)]


@pytest.mark.parametrize(("size", "says"), [(7.27e-9, 0), (1.0, 0), (1e6, 0), (1e9, 1)])
def test_a_bias_is_a_hazard_only_where_it_is_too_large(size: float, says: int) -> None:
    """A bias near 0 changes a sum by less than the rounding of the sum to fp16. One that makes a result too large for
    fp16 is the host's, unless it stands for infinity."""
    rng = np.random.default_rng(4)
    x = hx.input("x", (1, 4, 6, 6))
    weights, bias = rng.standard_normal((4, 4, 3, 3)), rng.uniform(0.5, 1, 4) * size
    found = warned_of_weights(hx.graph(hx.conv(x, weights.astype(np.float32), bias=bias.astype(np.float32))))
    assert len(found) == says
    assert all("its bias is as large as" in words for words in found)


def test_small_weights_that_fp16_holds_are_no_hazard() -> None:
    """2^-20 is a number of fp16, though a subnormal one."""
    x = hx.input("x", (1, 4, 6, 6))
    signs = np.sign(np.random.default_rng(5).standard_normal((4, 4, 1, 1))).astype(np.float32)
    assert not warned_of_weights(hx.graph(hx.conv(x, signs * np.float32(2.0**-20))))
    assert warned_of_weights(hx.graph(hx.conv(x, signs * np.float32(1.3e-6))))


def test_an_op_that_is_written_as_several_is_one_hazard() -> None:
    """Nodes of one place, as an importer makes them of one op."""
    x, y = hx.input("x", (1, 4, 6, 6)), []
    for seed in range(8):
        weights = np.random.default_rng(seed).uniform(1e-6, 2e-6, (4, 4, 1, 1)).astype(np.float32)
        y.append(hx.conv(x, weights))
    (words,) = warned_of_weights(hx.graph(hx.concat(*y, axis=1)))
    assert words.count("conv at ") == 1
    assert "more" not in words


def on_chips(graph: Graph, **inputs: Array) -> None:
    """Every chip gives what the host gives, in both arithmetics."""
    want = np.asarray(hx.compile(graph)(**inputs))
    assert np.isfinite(want).all()
    for chip in ("h11", *CHIPS):
        for numerics in ("ieee", "engine"):
            got = np.asarray(hx.compile(graph, target=chip, numerics=numerics)(**inputs))
            np.testing.assert_allclose(got, want, rtol=0.01, atol=0.01)


@pytest.mark.parametrize("tail", [lambda y: y, hx.relu, lambda y: hx.relu(y) * np.float32(1e-5)])
@pytest.mark.parametrize("variance", [1e-10, 1e-8, 1e8])
def test_a_batch_norm_whose_factors_fp16_does_not_hold_is_the_hosts(variance: float, tail: Any) -> None:
    x, zeros, ones = hx.input("x", (1, 4, 6, 6)), np.zeros(4, np.float32), np.ones(4, np.float32)
    graph = hx.graph(tail(hx.batch_norm(x, zeros, ones * np.float32(variance), ones, zeros, epsilon=0.0)))
    on_chips(graph, x=np.random.default_rng(0).standard_normal(x.shape).astype(np.float32))


def test_a_batch_norm_with_a_usual_variance_stays_on_the_engine() -> None:
    x, zeros, ones = hx.input("x", (1, 4, 6, 6)), np.zeros(4, np.float32), np.ones(4, np.float32)
    graph = hx.graph(hx.batch_norm(x, zeros, ones * np.float32(1e-4), ones, zeros, epsilon=1e-5))
    assert [s.device for s in divide(graph, load_chip("h13"))[1]] == ["ane"]


@pytest.mark.parametrize(
    ("kind", "scale", "factor"), [("int16", 0.015, 5e4), ("uint8", 7600, 1.0), ("uint8", 7600, 1e-4)]
)
def test_a_dequantized_value_beyond_fp16_is_the_hosts(kind: str, scale: float, factor: float) -> None:
    q, most = hx.input("q", (2, 8), kind), np.iinfo(kind).max
    y = hx.dequantize(q, np.float32(scale), np.zeros((), kind)) * np.float32(factor)
    on_chips(hx.graph(hx.relu(y)), q=np.full((2, 8), most, kind))


def test_a_product_of_two_dequantized_values_is_wide_without_a_cast() -> None:
    a, b = (hx.dequantize(hx.input(n, (2, 8), "uint8"), np.float32(2), np.uint8(0)) for n in "ab")
    on_chips(hx.graph(hx.relu(a * b)), a=np.full((2, 8), 255, np.uint8), b=np.full((2, 8), 255, np.uint8))


def test_a_score_of_dequantized_values_within_fp16_stays_on_the_engine() -> None:
    a, b = (hx.dequantize(hx.input(n, (2, 8), "uint8"), np.float32(0.1), np.uint8(128)) for n in "ab")
    assert [s.device for s in divide(hx.graph(hx.relu(a * b + a)), load_chip("h13"))[1]] == ["ane"]


@pytest.mark.parametrize("name", ["batch norm", "dequantize"])
def test_check_says_that_the_host_computes_what_fp16_does_not_hold(name: str) -> None:
    x, zeros, ones = hx.input("x", (1, 4, 6, 6)), np.zeros(4, np.float32), np.ones(4, np.float32)
    made = {
        "batch norm": hx.batch_norm(x, zeros, ones * np.float32(1e-10), ones, zeros, epsilon=0.0),
        "dequantize": hx.dequantize(hx.input("q", (2, 8), "uint8"), np.float32(7600), np.uint8(0)),
    }
    graph = hx.graph(hx.relu(made[name]))
    report = hx.preflight(graph, "h13")
    assert [e.verdict.verdict for e in report.entries] == ["host", "host"]
    assert all("fp16 does not hold" in e.verdict.reason for e in report.entries)
    assert [s.device for s in divide(graph, load_chip("h13"))[1]] == ["host"]
