"""Products before a small factor, sums of squares by weights and windows, distances and running means, on chips."""

import numpy as np
import pytest

import hexane as hx
from architectures import ARCHITECTURES
from hexane.build import graph
from hexane.cost.estimate import estimate_program
from hexane.passes.repair import repair
from hexane.targets import load_target
from hexane.targets.query import load_chip
from repair_cases import (
    LAST,
    Array,
    Build,
    Case,
    assert_decided,
    assert_holds,
    assert_same_function,
    mean,
    normal,
    rms,
    spiky,
    total,
)

RANDOM = np.random.default_rng(3)
LARGE = normal(10000)
PLANES = normal(300, shape=(1, 16, 8, 8))
COLUMNS = RANDOM.normal(0, 20, (32, 256)).astype(np.float32)
KERNELS = RANDOM.normal(0, 1, (8, 16, 3, 3)).astype(np.float32)
CENTRES = normal(300, shape=(16, 256))
SUMS_OF_CENTRES = (CENTRES.astype(np.float64) ** 2).sum(1)[None].astype(np.float32)
ONES = np.full((256, 1), 1 / 256, np.float32)
PIXELS = np.clip(normal(60, 120, shape=(1, 1, 16, 16)), 0, 255)
WHOLE = {"kernel_sizes": (8, 8), "strides": (8, 8), "pad": (0, 0, 0, 0)}
COUNTS = np.arange(1, 257, dtype=np.float32)[None]


def hard_swish(x: Array) -> Array:
    return x * np.clip(x + 3, 0, 6) / 6


def clipped(x: hx.Tensor) -> hx.Tensor:
    return hx.clip(x + 3.0, alpha=0.0, beta=6.0)


def by_columns(x: Array) -> Array:
    return x @ COLUMNS.astype(np.float64).T * 1e-3


def convolved(x: Array) -> Array:
    x = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    parts = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(2, 3))
    return np.einsum("nchwij,ocij->nohw", parts, KERNELS.astype(np.float64)) * 1e-3


GATES = {
    "hard swish, relu6 over 6": Case(lambda x: x * hx.relu6(x + 3.0) / 6.0, LARGE, hard_swish),
    "hard swish, clip over 6, as Paddle has it": Case(lambda x: x * clipped(x) / 6.0, LARGE, hard_swish),
    "hard swish, clip times 1 / 6": Case(lambda x: x * clipped(x) * (1 / 6), LARGE, hard_swish, "engine"),
    "hard swish, minimum and maximum": Case(
        lambda x: hx.minimum(hx.maximum(3.0 + x, 0.0), 6.0) * x * 0.16666667, LARGE, hard_swish, "engine"
    ),
    "a gate for each channel": Case(
        lambda x: x * hx.relu6(x[:, :1] + 3.0) / 6.0, LARGE, lambda x: x * np.clip(x[:, :1] + 3, 0, 6) / 6
    ),
}
FACTORS = {
    "a product times a factor": Case(
        lambda x: x * x[::-1] * 1e-4, normal(3000), lambda x: x * x[::-1] * 1e-4, "engine"
    ),
    "a product over a number": Case(lambda x: x * x[::-1] / 1000.0, normal(3000), lambda x: x * x[::-1] / 1000),
    "a square over a number": Case(lambda x: hx.square(x) / 4096.0, normal(3000), lambda x: x * x / 4096, "engine"),
    "a square times a tiny factor": Case(
        lambda x: hx.pow(x, 2.0) * 2e-7, normal(9000), lambda x: x * x * 2e-7, "engine ieee"
    ),
    "a square with an end a little beyond fp16, divided twice": Case(
        lambda x: hx.square(hx.clip(x, alpha=-262.0, beta=262.0)) / 262.0 / 262.0,
        normal(300),
        lambda x: (np.clip(x, -262, 262) / 262) ** 2,
    ),
    "a product with ends of 300, times a factor above 1 / 4": Case(
        lambda x: hx.tanh(x) * 300.0 * (hx.tanh(x[::-1]) * 300.0) * 0.3,
        normal(30),
        lambda x: np.tanh(x) * np.tanh(x[::-1]) * 27000,
        "engine",
    ),
    "a product with a sum of products, as focal modulation has it": Case(
        lambda x: x * total(x * hx.tanh(x[::-1] + 9.0)) / (256 * 3000.0**2),
        normal(3000, 3000),
        lambda x: x * (x * np.tanh(x[::-1] + 9)).sum(1, keepdims=True) / (256 * 3000**2),
    ),
    "a mean times a product, divided twice": Case(
        lambda x: mean(x) * x / 300.0 / 300.0,
        normal(300, 600),
        lambda x: x * x.mean(1, keepdims=True) / 300**2,
    ),
    "a product, reshaped, over a number": Case(
        lambda x: hx.reshape(hx.relu(x * x[::-1]), shape=(2, 512)) / 1000.0,
        normal(3000),
        lambda x: np.maximum(x * x[::-1], 0).reshape(2, 512) / 1000,
    ),
    "linear times a factor": Case(lambda x: hx.linear(x, COLUMNS) * 1e-3, normal(300), by_columns, "engine"),
    "linear with a bias, relu, times a factor": Case(
        lambda x: hx.relu(hx.linear(x, COLUMNS, np.full(32, 1000, np.float32))) * 1e-3,
        normal(300),
        lambda x: np.maximum(by_columns(x) + 1, 0),
    ),
    "matmul over a number": Case(lambda x: hx.matmul(x, COLUMNS.T) / 1000.0, normal(300), by_columns),
    "a convolution times a factor": Case(
        lambda x: hx.conv(x, KERNELS, pad=(1, 1, 1, 1)) * 1e-3, normal(3000, shape=(1, 16, 8, 8)), convolved, "engine"
    ),
    "dequantised with a large scale, then brought back": Case(
        lambda x: hx.relu((hx.round(x) - 3.0) * 900.0) * 1e-3,
        normal(40),
        lambda x: np.maximum(np.round(x) - 3, 0) * 0.9,
    ),
}


def root_of_planes(x: Array) -> Array:
    return x / np.sqrt((x**2).mean((2, 3), keepdims=True) + 1e-6)


def response(x: hx.Tensor) -> hx.Tensor:
    """Local response normalisation as AlexNet's exports have it: an average over a window of channels."""
    squares = hx.reshape(hx.square(x), shape=(1, 1, 16, 64))
    padded = hx.pad(squares, begin=(0, 0, 2, 0), end=(0, 0, 2, 0))
    window = hx.avg_pool(padded, kernel_sizes=(5, 1), strides=(1, 1), pad=(0, 0, 0, 0))
    return x / hx.pow(hx.reshape(window, shape=(1, 16, 8, 8)) * 1e-4 + 1.0, 0.75)


def response_array(x: Array) -> Array:
    squares = np.pad(x**2, ((0, 0), (2, 2), (0, 0), (0, 0)))
    return x / (1 + 1e-4 / 5 * sum(squares[:, i : i + 16] for i in range(5))) ** 0.75


def gem(x: Array) -> Array:
    return (np.maximum(x, 1e-6) ** 3).mean((2, 3), keepdims=True) ** (1 / 3)


def positive(x: hx.Tensor) -> hx.Tensor:
    return hx.clip(x, alpha=1e-6, beta=np.inf)


SQUARES = {
    "rms_norm by matmul": Case(lambda x: x * hx.rsqrt(hx.matmul(x * x, ONES) + 1e-6), spiky(300), rms),
    "rms_norm by matmul with ones, over n": Case(
        lambda x: x / hx.sqrt(hx.matmul(x * x, np.ones((256, 1), np.float32)) / 256.0 + 1e-6), spiky(300), rms
    ),
    "rms_norm by a square matrix": Case(
        lambda x: x * hx.rsqrt(hx.linear(hx.square(x), np.repeat(ONES.T, 256, 0)) + 1e-6), spiky(300), rms
    ),
    "rms_norm by einsum with a vector": Case(
        lambda x: x * hx.rsqrt(hx.expand_dims(hx.einsum(x * x, ONES[:, 0], equation="ij,j->i"), axes=(1,)) + 1e-6),
        spiky(300),
        rms,
    ),
    "rms_norm by a convolution": Case(
        lambda x: x * hx.rsqrt(hx.conv(hx.square(x), np.full((1, 16, 1, 1), 1 / 16, np.float32)) + 1e-6),
        PLANES,
        lambda x: x / np.sqrt((x**2).mean(1, keepdims=True) + 1e-6),
    ),
    "rms_norm by a pool over the plane": Case(
        lambda x: x * hx.rsqrt(hx.avg_pool(hx.square(x), **WHOLE) + 1e-6), PLANES, root_of_planes
    ),
    "rms_norm of squares that are reshaped": Case(
        lambda x: (
            x
            * hx.reshape(
                hx.rsqrt(hx.reduce_mean(hx.reshape(hx.square(x), shape=(4, 1, 256)), axes=(2,), keep_dims=True) + 1e-6),
                shape=(4, 1),
            )
        ),
        spiky(300),
        rms,
    ),
    "the root of windows of squares": Case(
        lambda x: hx.sqrt(hx.avg_pool(hx.square(x), kernel_sizes=(2, 2), strides=(2, 2), pad=(0, 0, 0, 0)) + 1e-6),
        PLANES,
        lambda x: np.sqrt((x**2).reshape(1, 16, 4, 2, 4, 2).mean((3, 5)) + 1e-6),
    ),
    "local response normalisation in parts": Case(response, PLANES, response_array),
    "gem pooling": Case(
        lambda x: hx.pow(hx.reduce_mean(hx.pow(positive(x), 3.0), axes=(2, 3), keep_dims=True), 1 / 3), PLANES, gem
    ),
    "gem pooling by a pool": Case(lambda x: hx.pow(hx.avg_pool(hx.pow(positive(x), 3.0), **WHOLE), 1 / 3), PLANES, gem),
    "a sum of squares times a tiny factor": Case(
        lambda x: hx.exp(total(hx.square(x - CENTRES[:4])) * -1e-8),
        normal(500),
        lambda x: np.exp(-1e-8 * ((x - CENTRES[:4]) ** 2).sum(1, keepdims=True)),
    ),
    "a covariance": Case(
        lambda x: mean((x - mean(x)) * (x[::-1] * 0.25 + x)),
        normal(180),
        lambda x: ((x - x.mean(1, keepdims=True)) * (x[::-1] / 4 + x)).mean(1, keepdims=True),
        "engine ieee",
    ),
}


BEHIND = {
    "a cube times a factor": Case(lambda x: x * x * x * 1e-9, normal(9000), lambda x: x**3 * 1e-9),
    "a product of three, divided": Case(
        lambda x: hx.relu(x * x[::-1] * (x + 1.0)) / 1e9,
        normal(9000),
        lambda x: np.maximum(x * x[::-1] * (x + 1), 0) / 1e9,
    ),
    "a factor before a quotient": Case(
        lambda x: x * 16.0 / (hx.reduce_l2_norm(x, **LAST) + 1e-6),
        normal(9000),
        lambda x: 16 * x / np.linalg.norm(x, axis=1, keepdims=True),
    ),
    "a norm beyond fp16 times a factor": Case(
        lambda x: hx.sqrt(total(hx.square(x)) + 1e-6) * 1e-3,
        normal(12000),
        lambda x: np.linalg.norm(x, axis=1, keepdims=True) * 1e-3,
    ),
    "a norm beyond fp16 over a number": Case(
        lambda x: hx.reduce_l2_norm(x, **LAST) / 16.0,
        normal(12000),
        lambda x: np.linalg.norm(x, axis=1, keepdims=True) / 16,
    ),
    "a variance beyond fp16 times a factor": Case(
        lambda x: mean(hx.square(x - mean(x))) * 1e-5, normal(9000), lambda x: x.var(1, keepdims=True) * 1e-5
    ),
    "a covariance beyond fp16 over a number": Case(
        lambda x: mean(x * (x[::-1] + x)) / 1e6,
        normal(9000),
        lambda x: (x * (x[::-1] + x)).mean(1, keepdims=True) / 1e6,
    ),
    "scores of numbers of 9,000": Case(
        lambda x: hx.matmul(x, x, transpose_y=True) * 1e-8, normal(9000), lambda x: x @ x.T * 1e-8
    ),
    "a running mean above the accumulator's end": Case(
        lambda x: hx.cumsum(x, axis=1) / COUNTS, normal(3000, 42000), lambda x: np.cumsum(x, 1) / COUNTS
    ),
    "local response normalisation of numbers of 60,000": Case(
        response, normal(15000, shape=(1, 16, 8, 8)), response_array
    ),
}


def apart(x: Array, y: Array) -> Array:
    return ((x[:, None] - y[None]) ** 2).sum(-1)


def to_centres(x: hx.Tensor) -> hx.Tensor:
    return total(x * x) + SUMS_OF_CENTRES - hx.matmul(x, CENTRES.T) * 2.0


def to_itself(x: hx.Tensor) -> hx.Tensor:
    """torch.cdist by a product: the second norm is transposed."""
    other = x[::-1, ::-1]
    norms = total(x * x) + hx.transpose(total(hx.square(other)), perm=(1, 0))
    return hx.sqrt(hx.maximum(norms - 2.0 * hx.matmul(x, hx.transpose(other, perm=(1, 0))), 0.0))


def similarity(x: Array, average: Build) -> Array:
    """SSIM of x and 0.75 x + 10."""
    y = x * 0.75 + 10.0
    a, b = average(x), average(y)
    spread = average(x * x) - a * a + (average(y * y) - b * b)
    both = average(x * y) - a * b
    return (2.0 * a * b + 6.5025) * (2.0 * both + 58.5225) / ((a * a + b * b + 6.5025) * (spread + 58.5225))


def windows(x: hx.Tensor) -> hx.Tensor:
    return hx.avg_pool(x, kernel_sizes=(4, 4), strides=(4, 4), pad=(0, 0, 0, 0))


def nearest(x: Array) -> Array:
    """softmax(-|x - c|^2 / (16 * 300^2))"""
    scores = -apart(x, CENTRES.astype(np.float64)) / (16 * 300**2)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


PARTS = {
    "a softmax of distances, negated before their factor": Case(
        lambda x: hx.softmax(-to_centres(x) / (16 * 300.0**2), axis=1), normal(300), nearest, "engine"
    ),
    "distances beyond fp16, brought back": Case(
        lambda x: to_itself(x) * 0.001, normal(12000), lambda x: np.sqrt(apart(x, x[::-1, ::-1])) * 0.001
    ),
    "distances to centres": Case(
        lambda x: hx.sqrt(hx.relu(to_centres(x))), normal(300), lambda x: np.sqrt(apart(x, CENTRES.astype(np.float64)))
    ),
    "distances of two tensors": Case(to_itself, normal(300), lambda x: np.sqrt(apart(x, x[::-1, ::-1]))),
    "a radial basis function": Case(
        lambda x: hx.exp(to_centres(x) * -1e-8),
        normal(300),
        lambda x: np.exp(-1e-8 * apart(x, CENTRES.astype(np.float64))),
        "engine",
    ),
    "structural similarity": Case(
        lambda x: similarity(x, windows),
        PIXELS,
        lambda x: similarity(x, lambda v: v.reshape(1, 1, 4, 4, 4, 4).mean((3, 5))),
    ),
    "a running mean": Case(lambda x: hx.cumsum(x, axis=1) / COUNTS, normal(100, 900), lambda x: x.cumsum(1) / COUNTS),
    "a running mean of rows, from the end": Case(
        lambda x: hx.cumsum(x, axis=0, reverse=True) * (1 / COUNTS[:, ::-1].T),
        normal(100, 900).T.copy(),
        lambda x: x[::-1].cumsum(0)[::-1] / COUNTS[:, ::-1].T,
    ),
    "log of two exponentials": Case(
        lambda x: hx.log(hx.exp(x) + hx.exp(x[::-1])), normal(12), lambda x: np.logaddexp(x, x[::-1])
    ),
    "log of exponentials and a number": Case(
        lambda x: hx.log(hx.exp(x) + 0.5 * hx.exp(x[:, ::-1]) + 1e-6),
        normal(12),
        lambda x: np.log(np.exp(x) + 0.5 * np.exp(x[:, ::-1]) + 1e-6),
    ),
    "log of an exponential and a sum of them": Case(
        lambda x: hx.log(hx.exp(x) + total(hx.exp(x * 0.5))),
        normal(12),
        lambda x: np.log(np.exp(x) + np.exp(x / 2).sum(1, keepdims=True)),
    ),
}
CASES = BEHIND | GATES | FACTORS | SQUARES | PARTS


@pytest.mark.parametrize("name", CASES)
def test_a_form_holds_on_every_chip_and_the_risky_one_does_not(name: str) -> None:
    assert_holds(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_a_form_is_the_same_function(name: str) -> None:
    assert_same_function(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_each_change_is_a_decision_and_a_second_run_changes_nothing(name: str) -> None:
    assert_decided(CASES[name])


@pytest.mark.parametrize(
    "build",
    [
        lambda x: x * hx.sigmoid(x) * 0.125,
        lambda x: 0.5 * x * (1.0 + hx.erf(x * 0.70710678)),
        lambda x: hx.linear(x, COLUMNS) * 0.0625,
        lambda x: hx.linear(x, COLUMNS * np.float32(1e-3)) * 1e-3,
        lambda x: x * x[::-1] * 0.5,
        lambda x: x * hx.cast(x > 0.0, dtype="fp32") * 0.01,
        lambda x: hx.linear(hx.sigmoid(x) * hx.sigmoid(x), ONES.T),
        lambda x: hx.cumsum(x, axis=1) * 0.5,
        lambda x: hx.log(hx.exp(hx.minimum(x, 1.0)) + 0.5),
        lambda x: hx.pow(mean(hx.pow(hx.sigmoid(x), 3.0)), 1 / 3),
        lambda x: hx.reduce_sum(x * hx.softmax(x, axis=1), **LAST),
    ],
)
def test_what_holds_stays_as_it_is(build: Build) -> None:
    """Bounded operands, factors of scores, and weights that fp16 would hold with fewer digits."""
    model = graph(build(hx.input("x", (4, 256))))
    assert repair(model, load_target("h13")).nodes == model.nodes


def test_a_gate_s_factor_adds_no_layer() -> None:
    model = graph(GATES["hard swish, relu6 over 6"].build(hx.input("x", (4, 256))))
    assert len(repair(model, load_target("h13")).nodes) == len(model.nodes)


def test_a_product_that_is_read_elsewhere_is_not_computed_twice() -> None:
    x = hx.input("x", (4, 256))
    product = x * hx.relu6(x + 3.0)
    model = graph({"scaled": product / 6.0, "product": product})
    assert repair(model, load_target("h13")).nodes == model.nodes


@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
@pytest.mark.parametrize("factor", [0.1, 1e-3, 1e-4, 1e-5, 1e-7])
@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_products_of_small_numbers_keep_the_digits_that_they_had(factor: float, numerics: str) -> None:
    """Neither operand's range is known: results that are normal numbers of fp16 are as right as in the risky form."""
    rng = np.random.default_rng(0)
    x, y = hx.input("x", (64,)), hx.input("y", (64,))
    nets = [hx.compile(x * y * factor, target="h13", numerics=numerics, repair=on) for on in (True, False)]
    for size in (1e-3, 1e-2, 1.0, 100.0, 1e4):
        for other in (1e-3, 1.0, 1e3):
            a, b = (rng.normal(0, s, 64).astype(np.float16).astype(np.float32) for s in (size, other))
            want = a.astype(np.float64) * b * factor
            if abs(want).max() < 65504 and (abs(want).max() > 1e-3 or factor < 2**-16):
                here, before = (np.linalg.norm(net(a, b) - want) / np.linalg.norm(want) for net in nets)
                assert here < 3e-3 or here <= 1.5 * before, (size, other)
                assert factor >= 2**-16 or here < 1e-6, "the host computes what is as small as this"


def test_no_more_of_a_factor_moves_than_bounded_operands_need() -> None:
    """65504 * 6 is below 2^19: a sixteenth of it is within the accumulator."""
    x, gate = hx.input("x", (4, 256)), hx.input("gate", (4, 256))
    made = repair(graph(hx.relu6(gate) * x * 1e-4), load_target("h13"))
    factors = [float(v.node.data) for n in made.nodes for v in n.inputs if v is not None and v.node.data is not None]
    assert sorted(factors) == pytest.approx([1e-4 * 16, 1 / 16])
    bounded = graph(hx.relu6(gate) * hx.relu6(x) * 1e-4)
    assert repair(bounded, load_target("h13")).nodes == bounded.nodes


@pytest.mark.parametrize("name", ["mobilenet_v3", "vit", "swin", "gpt2"])
@pytest.mark.filterwarnings("ignore::hexane.FallbackWarning")
def test_repairs_cost_two_percent_at_most_by_the_estimate(name: str) -> None:
    chip = load_chip("h13")
    with_it, without = (
        estimate_program(hx.compile(ARCHITECTURES[name](), target="h13", repair=on).program, chip).latency_us
        for on in (True, False)
    )
    assert with_it <= 1.02 * without


def test_a_long_chain_of_products_is_repaired() -> None:
    """The search for the operands of a product ends, however deep products are nested."""
    x = hx.input("x", (4, 64))
    y = x
    for i in range(2000):
        y = y * x * 1e-3 if i % 10 == 0 else y * x
    made = repair(graph(y), load_target("h13"))
    assert len(made.nodes) < 3 * 2000
