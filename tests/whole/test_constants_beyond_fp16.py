"""Constants that fp16 does not hold: variances of batch norms behind pixels, large and small factors, slopes and biases.

What chips compute, and the host in fp16, is near the reference interpreter's fp64.
"""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.compression.compress import compress as compressed
from hexane.compression.request import as_compression
from hexane.graph import Array, Graph
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node
from hexane.ops.reference import run_reference
from hexane.pipeline import divide
from hexane.targets.query import load_chip

pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")
PLACES: dict[str, dict[str, Any]] = {
    "host in fp16": {"dtype": "fp16"},
    "h11": {"target": "h11"},
    "h13": {"target": "h13"},
    "h16g ieee": {"target": "h16g", "numerics": "ieee"},
}
NEAR = 2e-3  # relative to the norm of all results: several roundings to fp16


def assert_near(graph: Graph, inputs: dict[str, Array], want: Array | None = None, **options: Any) -> None:
    if want is None:
        (want,) = run_reference(graph, inputs).values()
    for name, place in PLACES.items():
        got = np.asarray(hx.compile(graph, threads=1, **place, **options)(inputs), np.float64)
        assert np.linalg.norm(got - want) <= NEAR * np.linalg.norm(want), name


# ---- a stem of ResNet on pixels ----

CHANNELS = 16
PIXELS = (1, 3, 24, 24)


def pixels() -> dict[str, Array]:
    return {"image": np.random.default_rng(0).integers(0, 256, PIXELS).astype(np.float32)}


def stem_weight() -> Array:
    return (np.random.default_rng(1).standard_normal((CHANNELS, 3, 7, 7)) * 0.5).astype(np.float32)


def normed(y: hx.Tensor, graph: Graph | None = None) -> hx.Tensor:
    """A batch norm with the statistics that y has on these pixels, as training finds them."""
    (data,) = run_reference(hx.graph(y) if graph is None else graph, pixels()).values()
    mean, variance = data.mean((0, 2, 3)), data.var((0, 2, 3))
    assert variance.max() > 100000
    rng = np.random.default_rng(2)
    gamma, beta = rng.uniform(0.2, 1.5, variance.size), rng.standard_normal(variance.size)
    return hx.batch_norm(y, *(a.astype(np.float32) for a in (mean, variance, gamma, beta)))


def conv(weight: Any = None) -> hx.Tensor:
    return hx.conv(hx.input("image", PIXELS), stem_weight() if weight is None else weight, strides=2, pad=3)


def head(y: hx.Tensor) -> hx.Tensor:
    weight = np.random.default_rng(3).standard_normal((8, CHANNELS, 3, 3)).astype(np.float32) * 0.1
    return hx.conv(hx.max_pool(hx.relu(y), kernel_sizes=3, strides=2, pad=1), weight, pad=1)


def upsampled() -> hx.Tensor:
    weight = np.random.default_rng(4).standard_normal((3, CHANNELS, 4, 4)).astype(np.float32)
    return hx.conv_transpose(hx.input("image", PIXELS), weight, strides=2, pad=1)


STEMS: dict[str, Callable[[], hx.Tensor]] = {
    "one reader": lambda: head(normed(conv())),
    "two readers": lambda: (lambda y: hx.concat(normed(y), y * 1e-3, axis=1))(conv()),
    "weights are a param": lambda: head(normed(conv(hx.param("w", stem_weight())), hx.graph(conv()))),
    "a transposed convolution": lambda: head(normed(upsampled())),
    "a transposed convolution of two readers": lambda: (lambda y: normed(y) + y * 1e-3)(upsampled()),
    "behind a relu": lambda: head(normed(hx.relu(conv()))),
    "behind a pool": lambda: head(normed(hx.max_pool(conv(), kernel_sizes=2, strides=2))),
}


@pytest.mark.parametrize("name", STEMS)
def test_a_stem_on_pixels_keeps_its_batch_norm(name: str) -> None:
    assert_near(hx.graph(STEMS[name]()), pixels())


@pytest.mark.parametrize("compress", ["int8", "palette8", "palette4:g4"])
def test_a_compressed_stem_keeps_its_batch_norm(compress: str) -> None:
    graph = hx.graph(head(normed(conv())))
    want = np.asarray(hx.compile(graph, compress=compress, threads=1)(pixels()), np.float64)
    assert_near(graph, pixels(), want, compress=compress)


@pytest.mark.parametrize("chip", ["h12", "h13", "h17s"])
def test_such_a_batch_norm_stays_on_the_engine(chip: str) -> None:
    graph = hx.graph(STEMS["behind a relu"]())
    assert [s.device for s in divide(graph, load_chip(chip))[1]] == ["ane"]
    report = hx.preflight(graph, chip)
    assert report.ok
    assert "its scale and shift" in {e.op: e.verdict for e in report.entries}["batch_norm"].form


@pytest.mark.parametrize(
    ("gamma", "variance", "size"),
    [(1e5, 1e10, 2e3), (1.0, 1e10, 2e3), (3e-3, 1e-8, 1e-3), (1e-3, 1e-9, 1e-3), (7e4, 1e4, 1.0)],
)
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "behind a convolution"])
def test_numbers_of_a_batch_norm_beyond_fp16(gamma: float, variance: float, size: float, alone: bool) -> None:
    """size: of x."""
    rng = np.random.default_rng(5)
    x = hx.input("x", (1, 8, 6, 6))
    y = x if alone else hx.conv(x, rng.standard_normal((8, 8, 1, 1)).astype(np.float32) * 0.3)
    each = rng.uniform(0.5, 2, 8)
    constants = (np.zeros(8), variance * each, gamma * each, each)
    y = hx.batch_norm(y, *(a.astype(np.float32) for a in constants), epsilon=1e-12)
    y = hx.concat(y, y * 0.5, axis=1)
    assert_near(hx.graph(y), {"x": (rng.standard_normal(x.shape) * size).astype(np.float32)})


# ---- other ops ----

ONES, ZEROS = np.ones(16, np.float32), np.zeros(16, np.float32)
EYE = np.eye(16, dtype=np.float32)[:, :, None, None]
LARGE: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "product": lambda x: x * 1e6 * 1e-6,
    "quotient": lambda x: x / 1e-6 * 1e-6,
    "product behind a small one": lambda x: x * 1e-6 * 1e6,
    "sum": lambda x: (x + 1e6) * 1e-6,
    "linear_activation": lambda x: hx.linear_activation(x * 1e-3, alpha=1e5, beta=1e5) * 1e-5,
    "leaky_relu": lambda x: hx.leaky_relu(x * 1e-3, alpha=1e5) * 1e-5,
    "elu": lambda x: hx.elu(x * 1e-3, alpha=1e5) * 1e-5,
    "selu": lambda x: hx.selu(x * 1e-3, alpha=1e5) * 1e-5,
    "scaled_tanh": lambda x: hx.scaled_tanh(x * 1e-3, alpha=1e5) * 1e-5,
    "prelu": lambda x: hx.prelu(x * 1e-3, np.full((16, 1, 1), 1e5, np.float32)) * 1e-5,
    "layer_norm": lambda x: hx.layer_norm(x, np.full(12, 1e5, np.float32), ZEROS[:12]) * 1e-5,
    "instance_norm": lambda x: hx.instance_norm(x, ONES * np.float32(1e5), ZEROS) * 1e-5,
    "group_norm": lambda x: hx.group_norm(x, ONES * np.float32(1e5), ZEROS, num_groups=4) * 1e-5,
    "rms_norm": lambda x: hx.rms_norm(x * 1e-3, np.full(12, 1e5, np.float32)) * 1e-5,
    "bias": lambda x: hx.conv(x, EYE, bias=ONES * np.float32(1e6)) * 1e-6,
    "table": lambda x: hx.gather(hx.const(np.linspace(1, 1e6, 50, dtype=np.float32)), hx.cast(x > 0, dtype="int32") * 49) * 1e-6,
    "read by a sum": lambda x: (x * 1e6 + x) * 1e-6,
    "read by a product": lambda x: hx.conv(x * 1e6, EYE) * 1e-6,
    "read by a pool": lambda x: hx.max_pool(x * 1e6, kernel_sizes=2, strides=2) * 1e-6,
}  # fmt: skip


LARGE |= {
    "numerator": lambda x: 1e6 / (hx.abs(x) + 1) * 1e-3,
    "choice": lambda x: hx.select(x > 0, x, 1e5) * 1e-5,
    "choice that is a result": lambda x: hx.select(x > 0, x, 1e5),
    "base of a power": lambda x: hx.pow(1e5, hx.sigmoid(x)) * 1e-3,
    "celu": lambda x: hx.celu(x, alpha=1e5),
    "maximum": lambda x: hx.maximum(x, 1e5) * 1e-5,
    "clip": lambda x: hx.clip(x, alpha=1e5, beta=2e5) * 1e-5,
    "threshold": lambda x: hx.threshold(x, alpha=1e5) * 1e-5,
    "clamped_relu": lambda x: hx.clamped_relu(x * 1e-3, alpha=1e5, beta=2.0) * 1e-5,
    "shrink": lambda x: hx.shrink(x, bias=1e5, lambd=0.5) * 1e-5,
    "inner factor of scaled_tanh": lambda x: hx.scaled_tanh(x * 1e-3, beta=1e6),
    "remainder": lambda x: hx.mod(x, 1e5) * 1e-5,
}


@pytest.mark.parametrize("name", LARGE)
def test_a_constant_beyond_fp16_is_not_its_largest_number(name: str) -> None:
    """With x of some thousands."""
    x = hx.input("x", (1, 16, 12, 12))
    feed = {"x": (np.random.default_rng(6).standard_normal(x.shape) * 1000).astype(np.float32)}
    assert_near(hx.graph(LARGE[name](x)), feed)


@pytest.mark.parametrize("name", [name for name in LARGE if name != "product behind a small one"])
def test_check_and_compile_both_say_what_the_host_computes(name: str) -> None:
    """From one source: the words of the report are those of the warning."""
    graph = hx.graph(LARGE[name](hx.input("x", (1, 16, 12, 12))))
    words = [e.verdict.reason for e in hx.preflight(graph, "h13").entries if "fp16 does not hold" in e.verdict.reason]
    assert words
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        hx.compile(graph, target="h13")
    (warned,) = [str(w.message) for w in told if issubclass(w.category, hx.FallbackWarning)]
    assert all(reason in warned for reason in words)


# ---- constants below fp16 ----

# With x near 1, half of it below 0.
FINE: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "product": lambda x: x * 1e-9 * 1e9,
    "product and quotient": lambda x: x * 1e-9 / 1e-9,
    "quotient": lambda x: hx.relu(x / 1e9) * 1e9,
    "product that is a result": lambda x: x * 1e-9,
    "product behind a relu": lambda x: hx.relu(x * 1e-9) * 1e9,
    "product behind moves": lambda x: hx.transpose(hx.reshape(x * 1e-9, shape=(16, 144)), perm=(1, 0)) * 1e9,
    "product that is summed": lambda x: hx.reduce_sum(x * 1e-8, axes=-1) * 1e8,
    "product behind a matmul": lambda x: hx.matmul(x * 1e-8, np.eye(12, dtype=np.float32)) * 1e8,
    "square": lambda x: hx.square(x * 1e-5) * 1e10,
    "weights": lambda x: hx.conv(x, EYE * np.float32(1e-9)) * 1e9,
    "numerator": lambda x: 1e-8 / (hx.abs(x) + 1) * 1e8,
    "choice": lambda x: hx.select(x > 0, 1e-8, 3e-8) * 1e8,
    "table": lambda x: hx.gather(hx.const(np.linspace(1e-9, 1e-8, 50, dtype=np.float32)), hx.cast(x > 0, dtype="int32") * 49) * 1e8,
    "base of a power": lambda x: hx.pow(1e-6, hx.clip(x, alpha=-0.25, beta=0.25)),
    "limits": lambda x: hx.clip(x, alpha=1e-8, beta=2e-8) * 1e8,
    "threshold": lambda x: hx.threshold(hx.minimum(x, 0.0), alpha=1e-8) * 1e8,
    "leaky_relu": lambda x: hx.leaky_relu(hx.minimum(x, 0.0), alpha=1e-8) * 1e8,
    "prelu": lambda x: hx.prelu(hx.minimum(x, 0.0), np.full((16, 1, 1), 1e-8, np.float32)) * 1e8,
    "elu": lambda x: hx.elu(hx.minimum(x, 0.0), alpha=1e-8) * 1e8,
    "selu": lambda x: hx.selu(hx.minimum(x, 0.0), alpha=1e-8, beta=1.0) * 1e8,
    "celu": lambda x: hx.celu(hx.minimum(x, 0.0), alpha=1e-6) * 1e6,
    "linear_activation": lambda x: hx.linear_activation(x, alpha=1e-8, beta=1e-8) * 1e8,
    "scaled_tanh": lambda x: hx.scaled_tanh(x, alpha=1e-8) * 1e8,
    "layer_norm": lambda x: hx.layer_norm(x, np.full(12, 1e-8, np.float32), ZEROS[:12]) * 1e8,
    "logarithm of a sum": lambda x: hx.log(hx.relu(x) + 1e-8),
    "logarithm of a limit": lambda x: hx.log(hx.maximum(x, 1e-8)),
    "logarithm of a clip": lambda x: hx.log(hx.clip(x, alpha=1e-8)),
    "logarithm of a choice": lambda x: hx.log(hx.select(x > 0, x, 1e-8)),
    "reciprocal": lambda x: 1e-4 / (hx.relu(x) + 1e-6),
    "inverse": lambda x: hx.inverse(hx.relu(x) + 1e-6) * 1e-4,
    "reciprocal root": lambda x: hx.rsqrt(hx.relu(x) + 1e-8),
}  # fmt: skip


@pytest.mark.parametrize("name", FINE)
def test_a_constant_below_fp16_decides_what_it_decides_in_fp32(name: str) -> None:
    x = hx.input("x", (1, 16, 12, 12))
    data = np.random.default_rng(11).standard_normal(x.shape).astype(np.float32)
    assert_near(hx.graph(FINE[name](x)), {"x": data})


@pytest.mark.parametrize("name", FINE)
def test_check_says_what_the_host_computes_of_small_constants(name: str) -> None:
    report = hx.preflight(hx.graph(FINE[name](hx.input("x", (1, 16, 12, 12)))), "h13")
    assert any("fp16 does not hold" in entry.verdict.reason for entry in report.entries)


HARMLESS: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "sum": lambda x: x + 1e-8,
    "divisor of a normalisation": lambda x: x / (hx.reduce_max(hx.abs(x), axes=-1, keep_dims=True) + 1e-8),
    "limit of a divisor": lambda x: x / hx.maximum(hx.abs(x), 1e-12),
    "norm in parts": lambda x: x * hx.rsqrt(hx.reduce_mean(hx.square(x), axes=-1, keep_dims=True) + 1e-6),
    "root": lambda x: hx.sqrt(hx.relu(x) + 1e-12),
    "slope": lambda x: hx.leaky_relu(x, alpha=1e-8),
    "limits beyond fp16": lambda x: hx.clip(x, alpha=-3e5, beta=3e5),
    "epsilon that fp16 has": lambda x: hx.log(hx.relu(x) + 1e-5),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_harmless_small_constant_stays_on_the_engine(name: str) -> None:
    x = hx.input("x", (1, 16, 12, 12))
    graph = hx.graph(HARMLESS[name](x))
    (segment,) = divide(graph, load_chip("h16"))[1]
    assert segment.device == "ane"
    assert_near(graph, {"x": np.random.default_rng(12).standard_normal(x.shape).astype(np.float32)})


# ---- factors that become part of weights ----


def channels(low: float, high: float) -> Array:
    return np.geomspace(low, high, 16, dtype=np.float32).reshape(1, 16, 1, 1)


FACTORS: dict[str, Callable[[hx.Tensor], hx.Tensor]] = {
    "divided by millions": lambda y: y / channels(1e6, 2e6),
    "two small factors": lambda y: y * channels(1e-3, 2e-3) * channels(1e-3, 2e-3),
    "some channels are small": lambda y: y * channels(1e-7, 1.0),
    "a factor and its inverse": lambda y: y * channels(1e-6, 1e-2) * (1 / channels(1e-6, 1e-2)),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_factor_joins_weights_only_where_fp16_keeps_the_digits(name: str) -> None:
    """In every channel. x is large, so that fp16 has the results with all digits."""
    rng = np.random.default_rng(7)
    x = hx.input("x", (1, 16, 8, 8))
    y = hx.conv(x, (rng.standard_normal((16, 16, 3, 3)) / 5).astype(np.float32))
    graph = hx.graph(FACTORS[name](y))
    feed = {"x": (rng.standard_normal(x.shape) * 1000).astype(np.float32)}
    (want,) = run_reference(graph, feed).values()
    for place in PLACES:
        got = np.asarray(hx.compile(graph, threads=1, **PLACES[place])(feed), np.float64)
        off = np.linalg.norm((got - want).reshape(16, -1), axis=1) / np.linalg.norm(want.reshape(16, -1), axis=1)
        assert off.max() <= 4e-3, place


def test_a_usual_batch_norm_with_dead_channels_still_joins_the_weights() -> None:
    """Pruned networks have channels with a gamma of 1e-20, whose weights may vanish."""
    rng = np.random.default_rng(8)
    gamma = np.where(np.arange(16) % 5 == 0, 1e-20, rng.uniform(0.5, 1.5, 16)).astype(np.float32)
    y = hx.conv(hx.input("x", (1, 16, 8, 8)), rng.standard_normal((16, 16, 3, 3)).astype(np.float32) / 10)
    y = hx.batch_norm(y, ZEROS, ONES, gamma, ONES)
    program = hx.compile(hx.graph(y), target="h13").program
    assert [layer.op for layer in program.layers] == ["anec.convolution"]


# ---- compressed weights that a factor follows ----


def scaled_products(weight: Array, factors: Array) -> dict[str, hx.Tensor]:
    """A product of 128 numbers with 64 columns, and a factor for each column, in four spellings."""
    rows, image = hx.input("x", (7, 128)), hx.input("x", (1, 128, 1, 7))
    kernel, zeros = weight.T.reshape(64, 128, 1, 1).copy(), np.zeros(64, np.float32)
    return {
        "matmul": hx.matmul(rows, weight) * factors,
        "linear": hx.linear(rows, weight.T.copy()) * factors,
        "conv": hx.conv(image, kernel) * factors.reshape(1, 64, 1, 1),
        "batch_norm": hx.batch_norm(hx.conv(image, kernel), zeros, zeros + 4, factors * 2, factors, epsilon=0.0),
    }


@pytest.mark.parametrize("name", ["matmul", "linear", "conv", "batch_norm"])
@pytest.mark.parametrize("compress", ["palette4", "palette4:g16", "int8", "blockwise4:b32", "sparse:0.5"])
def test_a_factor_behind_compressed_weights_costs_roundings_only(name: str, compress: str) -> None:
    """docs/compression/chips.md bounds the distance from decoded weights, into which the factor is folded."""
    rng = np.random.default_rng(9)
    weight = (rng.standard_normal((128, 64)) * 0.1).astype(np.float32)
    graph = hx.graph(scaled_products(weight, rng.uniform(0.5, 1.5, 64).astype(np.float32))[name])
    feed = rng.standard_normal((7, 128)).astype(np.float32)
    feed = feed if name in ("matmul", "linear") else feed.T.reshape(1, 128, 1, 7).copy()
    for options in ({"target": "h13"}, {"target": "h16g"}, {"target": "h16g", "numerics": "ieee"}):
        stored = compressed(graph, as_compression(compress), load_chip(options["target"]))
        decoded = stored.rewrite(lambda node, inputs: fold_node(node) if is_encoded(node) else None)
        a, b = (np.asarray(hx.compile(g, threads=1, **options)(feed), np.float64) for g in (stored, decoded))
        assert np.abs(a - b).max() <= 2.0**-9 * np.abs(b).max(), options


@pytest.mark.parametrize("name", ["matmul", "linear", "conv", "batch_norm"])
def test_integers_whose_weights_are_at_the_end_of_fp16_keep_the_factor_that_follows(name: str) -> None:
    """The host computes such products, and the sums do not cross to the engine before they are scaled down."""
    rng = np.random.default_rng(10)
    weight = (rng.uniform(-1, 1, (128, 64)) * 60000).astype(np.float32)
    weight[0] = 65504
    graph = hx.graph(scaled_products(weight, rng.uniform(0.5e-5, 1.5e-5, 64).astype(np.float32))[name])
    feed = rng.standard_normal((7, 128)).astype(np.float32)
    feed = feed if name in ("matmul", "linear") else feed.T.reshape(1, 128, 1, 7).copy()
    want = np.asarray(hx.compile(graph, compress="int8", threads=1)(feed), np.float64)
    for name, place in PLACES.items():
        got = np.asarray(hx.compile(graph, compress="int8", threads=1, **place)(feed), np.float64)
        assert np.linalg.norm(got - want) <= NEAR * np.linalg.norm(want), name
