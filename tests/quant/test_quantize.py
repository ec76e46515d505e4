"""`hx.quantize_model`: onnxruntime runs what it writes, Hexane computes it in integers, and both stay near the float
network."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.pipeline import lower
from hexane.quant.grid import activation_grid, round_bias, round_weight
from hexane.quant.ranges import EXCESSES, RANGES, Histogram, unseen
from hexane.targets import load_target
from onnx_models import by_onnxruntime, model, node, onnxruntime_saturates

Array = Any
Feeds = list[dict[str, Array]]
DIGITS = Path(__file__).parents[2] / "examples" / "digits"
STEPS = (
    2  # of the last activation: sums that fall between two steps may be rounded either way, and later layers grow that
)


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def feeds_of(*shape: int, count: int = 8) -> Feeds:
    return [{"x": normal(*shape, seed=10 + i)} for i in range(count)]


def conv_net() -> tuple[onnx.ModelProto, Feeds]:
    nodes = [
        node("Conv", "x w b", "a", name="stem", pads=[1, 1, 1, 1]), node("Relu", "a", "r"),
        node("MaxPool", "r", "m", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "m v", "c", name="body", pads=[1, 1, 1, 1]), node("Add", "c m", "s"), node("Relu", "s", "t"),
        node("AveragePool", "t", "p", kernel_shape=[2, 2], strides=[2, 2]), node("Flatten", "p", "f"),
        node("Gemm", "f u d", "y", name="head", transB=1),
    ]  # fmt: skip
    constants = {
        "w": normal(8, 3, 3, 3, scale=0.3), "b": normal(8, scale=0.1), "v": normal(8, 8, 3, 3, scale=0.15),
        "u": normal(5, 32, scale=0.2), "d": normal(5),
    }  # fmt: skip
    return model(nodes, {"x": normal(1, 3, 8, 8)}, ["y"], constants), feeds_of(1, 3, 8, 8)


def transposed_net() -> tuple[onnx.ModelProto, Feeds]:
    nodes = [
        node("Conv", "x w", "a", name="down", strides=[2, 2]), node("Relu", "a", "r"),
        node("ConvTranspose", "r v b", "y", name="up", strides=[2, 2], group=2),
    ]  # fmt: skip
    constants = {"w": normal(4, 2, 2, 2), "v": normal(4, 3, 2, 2), "b": normal(6)}
    return model(nodes, {"x": normal(1, 2, 8, 8)}, ["y"], constants), feeds_of(1, 2, 8, 8)


def attention_net() -> tuple[onnx.ModelProto, Feeds]:
    nodes = [
        node("MatMul", "x q", "a", name="query"), node("MatMul", "x k", "b", name="key"),
        node("Transpose", "b", "t", perm=[0, 2, 1]), node("MatMul", "a t", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p x", "y", name="mix"),
    ]  # fmt: skip
    constants = {"q": normal(16, 16, scale=0.25), "k": normal(16, 16, scale=0.25, seed=1)}
    return model(nodes, {"x": normal(1, 6, 16)}, ["y"], constants), feeds_of(1, 6, 16)


def joined_net() -> tuple[onnx.ModelProto, Feeds]:
    nodes = [
        node("Conv", "x w", "a", name="left"), node("Conv", "x v", "b", name="right"), node("Relu", "a", "c"),
        node("Concat", "c b", "d", axis=1), node("Conv", "d u", "y", name="last"),
    ]  # fmt: skip
    constants = {"w": normal(4, 3, 1, 1), "v": normal(4, 3, 1, 1, seed=1), "u": normal(2, 8, 3, 3, scale=0.2)}
    return model(nodes, {"x": normal(1, 3, 6, 6)}, ["y"], constants), feeds_of(1, 3, 6, 6)


NETWORKS: dict[str, Callable[[], tuple[onnx.ModelProto, Feeds]]] = {
    f.__name__: f for f in (conv_net, transposed_net, attention_net, joined_net)
}


def unfused(proto: onnx.ModelProto, feed: dict[str, Array]) -> Array:
    """By onnxruntime, each node by itself: in floats between pairs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, feed)[0]


def relative(whole: Array, got: Array) -> float:
    return float(np.linalg.norm(whole.astype(float) - got) / np.linalg.norm(whole))


@pytest.mark.parametrize("method", ["minmax", "percentile", "entropy", "mse"])
@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_hexane_and_onnx_agree_on_what_is_written(name: str, dtype: str, per_channel: bool, method: str) -> None:
    floats, feeds = NETWORKS[name]()
    made = hx.quantize_model(floats, feeds, hx.Quantization(dtype, method=method, per_channel=per_channel), threads=1)
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made.model), full_check=True)
    net = hx.compile(made.model, threads=1)
    assert all(layer.dtype == dtype for layer in made.layers)
    assert 0 < made.error < 0.06
    for feed in feeds[:3]:
        whole, got, want = unfused(floats, feed), net(feed), unfused(made.model, feed)
        assert relative(whole, want) < 0.08
        assert relative(want, got) < 0.01


@pytest.mark.skipif(onnxruntime_saturates(), reason="onnxruntime's own int8 products saturate on this CPU")
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_with_all_its_fusions_agrees(name: str) -> None:
    floats, feeds = NETWORKS[name]()
    made = hx.quantize_model(floats, feeds, threads=1)
    net = hx.compile(made.model, threads=1)
    for feed in feeds[:3]:
        assert relative(by_onnxruntime(made.model, feed)[0], net(feed)) < 0.01


@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_with_all_its_fusions_agrees_on_unsigned_integers(name: str) -> None:
    """These do not saturate on any CPU."""
    floats, feeds = NETWORKS[name]()
    made = hx.quantize_model(floats, feeds, hx.Quantization("uint8"), threads=1)
    for feed in feeds[:3]:
        assert relative(unfused(made.model, feed), by_onnxruntime(made.model, feed)[0]) < 0.01


@pytest.mark.parametrize("name", NETWORKS)
def test_every_product_is_computed_in_integers(name: str) -> None:
    floats, feeds = NETWORKS[name]()
    made = hx.quantize_model(floats, feeds, threads=1)
    ops = {n.op.removeprefix("cpu.") for n in lower(import_onnx(made.model), load_target("host")).nodes}
    assert ops & {"quantized_conv", "quantized_matmul"}
    assert not ops & {"conv", "matmul", "linear", "conv_transpose", "add"}


def test_names_of_nodes_inputs_and_outputs_stay() -> None:
    floats, feeds = conv_net()
    made = hx.quantize_model(floats, feeds, threads=1).model.graph
    new = [n for n in made.node if n.op_type not in ("QuantizeLinear", "DequantizeLinear")]
    assert [(n.name, n.op_type, n.output) for n in new] == [(n.name, n.op_type, n.output) for n in floats.graph.node]
    assert (made.input, made.output) == (floats.graph.input, floats.graph.output)
    assert not {t.name for t in made.initializer} & {t.name for t in floats.graph.initializer}


def test_a_bias_has_the_scale_of_the_product() -> None:
    floats, feeds = conv_net()
    made = hx.quantize_model(floats, feeds, threads=1).model
    constants = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert constants["b_quantized"].dtype == np.int32
    np.testing.assert_array_equal(constants["b_scale"], constants["x_scale"] * constants["w_scale"])


def test_layers_that_a_pattern_fits_stay_in_floats() -> None:
    floats, feeds = conv_net()
    made = hx.quantize_model(floats, feeds, hx.Quantization(float_layers=["he*", "stem"]), threads=1)
    assert [layer.dtype for layer in made.layers] == ["float", "int8", "float"]
    kept = {t.name: numpy_helper.to_array(t) for t in made.model.graph.initializer}
    np.testing.assert_array_equal(kept["u"], normal(5, 32, scale=0.2))
    assert relative(unfused(floats, feeds[0]), hx.compile(made.model, threads=1)(feeds[0])) < 0.05


def test_a_corrected_bias_keeps_the_mean_of_a_layer() -> None:
    """One layer, whose weights are rounded coarsely because of one that is large."""
    weight = np.abs(normal(4, 16, scale=0.02))
    weight[:, 0] = 10
    floats = model([node("Gemm", "x w", "y", transB=1)], {"x": normal(1, 16)}, ["y"], {"w": weight})
    feeds = [{"x": np.abs(feed["x"]) * np.float32([0] + [1] * 15)} for feed in feeds_of(1, 16, count=50)]
    made = hx.quantize_model(floats, feeds, hx.Quantization(method="minmax"), threads=1)
    net, whole = hx.compile(made.model, threads=1), hx.compile(floats, threads=1)
    missing = np.mean([whole(feed) - net(feed) for feed in feeds], axis=0)
    assert np.abs(missing).max() < 0.01 * np.abs(np.mean([whole(feed) for feed in feeds], axis=0)).min()


def test_channels_of_zeros_and_constant_inputs_are_exact() -> None:
    weight = normal(4, 2, 1, 1)
    weight[1], weight[2] = 0, 1e-30
    bias = np.float32([1, 2, -3, 0])
    floats = model([node("Conv", "x w b", "y")], {"x": normal(1, 2, 3, 3)}, ["y"], {"w": weight, "b": bias})
    feeds = feeds_of(1, 2, 3, 3)
    y = hx.compile(hx.quantize_model(floats, feeds, threads=1).model, threads=1)(feeds[0])
    np.testing.assert_allclose(y[:, 1:3], np.broadcast_to(bias[1:3, None, None], (1, 2, 3, 3)), rtol=1e-6)
    zeros = [{"x": np.zeros((1, 2, 3, 3), np.float32)}]
    y = hx.compile(hx.quantize_model(floats, zeros, threads=1).model, threads=1)(zeros[0])
    np.testing.assert_allclose(y, unfused(floats, zeros[0]), rtol=1e-3)


def test_the_digits_network_keeps_its_accuracy() -> None:
    with np.load(DIGITS / "held_out.npz") as data:
        images, labels = data["images"][:, None].astype(np.float32) / 16, data["labels"]
    made = hx.quantize_model(DIGITS / "digits.onnx", [{"image": image[None]} for image in images[:64]], threads=1)
    whole, net = hx.compile(DIGITS / "digits.onnx", threads=1), hx.compile(made.model, threads=1)
    accuracy = [
        np.mean([n(i[None]).argmax() == label for i, label in zip(images, labels, strict=True)]) for n in (whole, net)
    ]
    assert accuracy[1] >= accuracy[0] - 0.003


def test_memory_does_not_grow_with_the_inputs() -> None:
    """A folder of many files is gone through again and again; a histogram has one size."""
    histogram = Histogram(-1, 3)
    size = histogram.counts.nbytes
    for i in range(10):
        histogram.add(normal(100, seed=i))
    assert histogram.counts.nbytes == size
    assert histogram.counts.sum() + histogram.zeros == 1000


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("ends", [(0.0, 6.0), (-3.0, 1.0), (2.0, 5.0), (-4.0, -1.0), (0.0, 0.0), (0.0, 1e-44)])
def test_a_grid_has_zero_exactly_and_spans_the_ends(ends: tuple[float, float], kind: str) -> None:
    grid, info = activation_grid(*ends, kind), np.iinfo(kind)
    assert info.min <= int(grid.zero) <= info.max
    scale = float(grid.scale)
    assert (info.min - int(grid.zero)) * scale <= min(ends[0], 0) + scale / 2
    assert (info.max - int(grid.zero)) * scale >= max(ends[1], 0) - scale / 2


@pytest.mark.parametrize(("steps", "gain"), [(255, 1.0), (15, 0.4)])
def test_the_least_squared_error_of_a_range_is_near_that_of_all_ends(steps: int, gain: float) -> None:
    numbers = np.random.default_rng(0).standard_t(3, 20000)
    histogram = Histogram(float(numbers.min()), float(numbers.max()))
    histogram.add(numbers.astype(np.float32))
    more = unseen(histogram)
    numbers, counts = np.append(numbers, more), np.repeat([1, 1 / len(EXCESSES)], [numbers.size, more.size])

    def error(low: float, high: float) -> float:
        step = (high - low) / steps
        zero = np.rint(-low / step)
        rounded = (np.clip(np.rint(numbers / step) + zero, 0, steps) - zero) * step
        return float(np.sum(counts * (rounded - numbers) ** 2))

    ends = np.linspace(0.02, 1.5, 60)
    best = min(error(a * histogram.low, b * histogram.high) for a in ends for b in ends)
    found = error(*RANGES["mse"](histogram, steps, 0))
    assert found <= 1.1 * best
    assert found < gain * error(histogram.low, histogram.high)


def test_entropy_cuts_a_few_far_numbers_and_keeps_an_even_distribution() -> None:
    rng = np.random.default_rng(0)
    even, far = rng.uniform(-1, 3, 50000), np.append(rng.standard_normal(50000), [60.0, -60.0])
    ends = []
    for numbers in (even, far):
        histogram = Histogram(float(numbers.min()), float(numbers.max()))
        histogram.add(numbers.astype(np.float32))
        ends.append(RANGES["entropy"](histogram, 255, 0))
    np.testing.assert_allclose(ends[0], (-1, 3), rtol=0.05)
    assert 3 < ends[1][1] < 20


def histogram_of(numbers: Array) -> Histogram:
    histogram = Histogram(float(numbers.min()), float(numbers.max()))
    histogram.add(numbers.astype(np.float32))
    return histogram


def widened(numbers: Array) -> float:
    """The high end over the largest number."""
    histogram = histogram_of(numbers)
    return RANGES["mse"](histogram, 255, 0)[1] / histogram.high


def test_few_numbers_get_a_range_wider_than_theirs_and_many_do_not() -> None:
    rng = np.random.default_rng(0)
    assert 1.03 < widened(rng.uniform(-1, 1, 100)) < 1.2
    assert widened(rng.uniform(-1, 1, 1_000_000)) < 1.02


def test_a_number_that_was_not_shown_is_as_far_out_as_the_tail_is_long() -> None:
    for numbers in np.random.default_rng(0).exponential(3, (20, 10_000)):
        beyond = unseen(histogram_of(numbers)) - numbers.max()
        assert np.all(beyond > 0)
        assert beyond.mean() == pytest.approx(3, rel=0.4)  # of 100 numbers


def test_no_number_is_beyond_an_end_where_many_are_cut() -> None:
    numbers = np.clip(np.random.default_rng(0).standard_normal(1000), -1, 1)
    assert set(unseen(histogram_of(numbers))) == {-1.0, 1.0}


@pytest.mark.parametrize("numbers", [[2.0], [2.0, 2.0], [-1.0, 2.0], [0.0, 1e-30]])
def test_a_range_of_very_few_numbers_holds_them(numbers: list[float]) -> None:
    assert widened(np.array(numbers)) >= 0.99


def test_a_percentile_is_that_of_the_numbers() -> None:
    numbers = np.random.default_rng(0).uniform(-1, 3, 50000).astype(np.float32)
    histogram = Histogram(float(numbers.min()), float(numbers.max()))
    histogram.add(numbers)
    width = 4 / 2048
    want = np.percentile(numbers, [10, 90])
    np.testing.assert_allclose(RANGES["percentile"](histogram, 255, 90), want, atol=2 * width)
    assert RANGES["percentile"](histogram, 255, 100) == (histogram.low, histogram.high)


def test_weights_are_within_half_a_step_and_a_bias_fits_int32() -> None:
    weight = normal(4, 3, 2, 2)
    made = round_weight(weight, 0, "uint8", least_squares=False)
    back = (made.integers.astype(float) - 128) * made.grid.scale.reshape(4, 1, 1, 1)
    assert (np.abs(back - weight) <= made.grid.scale.reshape(4, 1, 1, 1) * 0.5001).all()
    bias = round_bias(np.float32([1e30, -1]), np.float32(0.1), np.float32(0.1))
    assert bias.integers.tolist() == [2**30, -100]


def test_a_bias_of_one_number_serves_all_channels() -> None:
    constants = {"w": normal(16, 24, scale=0.25), "b": np.float32([0.75])}
    floats = model([node("Gemm", "x w b", "y", name="classes")], {"x": normal(4, 16)}, ["y"], constants)
    feeds = feeds_of(4, 16)
    made = hx.quantize_model(floats, feeds, threads=1)
    want, got = (np.asarray(by_onnxruntime(m, feeds[0])[0]) for m in (floats, made.model))
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)
