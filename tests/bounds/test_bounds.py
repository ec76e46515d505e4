"""Bounds are never too small: what any target computes is inside; and what is said to overflow does."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from cases import arrays, graph_of
from cases import feeds as feeds_of
from engine_model import half_away, products, winograd
from hexane.bounds import Bound, analyse
from hexane.bounds.analyse import walk
from hexane.bounds.interval import Interval
from hexane.bounds.rules import PRODUCTS, RULES
from hexane.graph import Array, Graph
from hexane.importers.onnx import import_onnx
from hexane.ops import USER_OPS
from networks import small_networks
from observed import observed
from random_graphs import random_graph
from turns import share

TARGETS = (("host", "ieee"), ("h13", "engine"), ("h17s", "engine"))
pytestmark = pytest.mark.filterwarnings("ignore::hexane.FallbackWarning", "ignore::hexane.HazardWarning")


def check_inside(graph: Graph, feeds: dict[str, Array], *hows: str) -> int:
    """Every number of every layer on every target lies within its bound. How many finite bounds that were."""
    count = 0
    analysed = [(how, list(walk(graph, ranges_of(feeds, how), winograd=True))) for how in hows]
    for target, numerics in TARGETS:
        layers = observed(graph, feeds, target, numerics)
        for how, bounds in analysed:
            for bound, interval in bounds:
                if bound.number in layers and layers[bound.number].size:
                    assert_inside(layers[bound.number], interval, f"{bound.node.where} on {target}, {how}: {bound}")
                    assert (bound.low, bound.high) == (interval.low.min(), interval.high.max())
                    count += bound.high < np.inf
    return count


def assert_inside(values: Array, interval: Interval, where: str) -> None:
    """Element by element; NaN only where anything may be."""
    numbers = values.astype(np.float64)
    inside = (numbers >= interval.low) & (numbers <= interval.high)
    anything = np.isinf(interval.low) & np.isinf(interval.high)
    bad = np.argwhere(~(inside | (np.isnan(numbers) & anything)))
    assert not bad.size, f"{where}, {bad[:3].tolist()}: {[numbers[tuple(b)] for b in bad[:3]]}"


def ranges_of(feeds: dict[str, Array], how: str) -> dict[str, object]:
    if how == "none":
        return {}
    if how == "input":
        return dict(feeds)
    if how == "samples":
        return {name: np.stack([a, -a]) if a.dtype.kind == "f" else a for name, a in feeds.items()}
    return {n: (float(a.min()), float(a.max())) for n, a in feeds.items() if a.size and a.dtype.kind != "b"}


@pytest.mark.parametrize("name", small_networks())
def test_a_network_stays_within_its_bounds(name: str) -> None:
    graph = import_onnx(small_networks()[name])
    rng = np.random.default_rng(1)
    feeds = {str(v.node.attrs["name"]): rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs}
    assert check_inside(graph, feeds, "none", "input", "samples", "range") > 5, "every bound is infinite"


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("kind", ["fp32", "fp16", "quantized"])
def test_a_random_graph_stays_within_its_bounds(kind: str, seed: int) -> None:
    graph, feeds = random_graph(seed, kind)
    feeds = {n: np.nan_to_num(a, nan=1, posinf=2, neginf=-2) if a.dtype.kind == "f" else a for n, a in feeds.items()}
    check_inside(graph, feeds, "input", "range")


def test_what_is_computed_of_stored_integers_is_rounded_at_each_step() -> None:
    test_a_random_graph_stays_within_its_bounds("quantized", 668)  # a product of constants, quantised next to a half


def test_norms_of_constants_are_rounded_at_each_step_where_they_are_folded() -> None:
    test_a_random_graph_stays_within_its_bounds("fp16", 1039)  # a log_softmax of a group_norm, near zero


@pytest.mark.slow
@pytest.mark.parametrize("first", range(100, 1100, 100))
def test_a_thousand_random_graphs_stay_within_their_bounds(first: int) -> None:
    for seed in share(range(first, first + 100)):
        test_a_random_graph_stays_within_its_bounds(("fp32", "fp16", "quantized")[seed % 3], seed)


@pytest.mark.parametrize("name", [*RULES, *PRODUCTS])
def test_an_op_with_a_rule_stays_within_its_bounds(name: str) -> None:
    """Each example of its record, on whole numbers and on small ones, large ones and zeros."""
    checked = 0
    for case in USER_OPS[name].cases:
        given = arrays(USER_OPS[name], case)
        if any(a is not None and a.dtype.kind not in "fiu" for a in given) or len(given) > 5:
            continue
        graph = graph_of(USER_OPS[name], case, given)
        for scale in (1.0, 0.01, 300.0):
            scaled = [a if a is None or a.dtype.kind != "f" else (a * np.float32(scale)).astype(a.dtype) for a in given]
            checked += check_inside(graph, feeds_of(graph, scaled), "input", "range")
    assert checked > 0 or name in ("cast", "batch_norm", "dequantize"), "every bound is infinite"


def test_winograd_s_transforms_stay_within_bounds() -> None:
    """d0 = ((d0 - d2) + (d1 + d2) / 2) + (d2 - d1) / 2 for the taps 1, 0, 0: what rounding large neighbours leaves of a
    small pixel."""
    x = hx.input("x", (1, 1, 6, 8), "fp16")
    weight = np.zeros((1, 1, 3, 3), np.float16)
    weight[0, 0, :, 0] = 1
    rng = np.random.default_rng(0)
    image = rng.standard_normal((1, 1, 6, 8)) * np.where(np.arange(8) % 2, 200, 0.01)
    assert check_inside(hx.graph(hx.conv(x, weight, pad=1)), {"x": image.astype(np.float16)}, "input", "range") == 6


def test_elements_that_a_chip_moves_by_products_stay_within_bounds() -> None:
    """A13 has no maximum pool of stride 3: it takes every third pixel by products with 1, rounded to 2^-16."""
    x = hx.input("x", (1, 2, 1, 9, 3))
    numbers = (np.random.default_rng(0).standard_normal((1, 2, 1, 9, 3)) * 1e-3).astype(np.float32)
    y = hx.max_pool(x, kernel_sizes=(1, 1, 3), strides=(1, 1, 3))
    assert check_inside(hx.graph(y), {"x": numbers}, "input", "range") > 0


@pytest.mark.parametrize("scaled", ["batch_norm", "mul", "real_div"])
def test_products_are_rounded_as_coarsely_where_a_small_scale_is_folded_into_their_weights(scaled: str) -> None:
    """Products of weights of 0.005 lose as much as those of 1: up to 2^-16 each, which no scale after them makes
    less."""
    rng = np.random.default_rng(0)
    x, weight = hx.input("x", (8, 3)), rng.standard_normal((3, 64)).astype(np.float32)
    small, ones = rng.uniform(0.002, 0.01, 64).astype(np.float32), np.ones(64, np.float32)
    y = hx.matmul(x, weight)
    match scaled:
        case "batch_norm":
            y = hx.batch_norm(y, rng.uniform(0.5, 1, 64).astype(np.float32), ones, small, epsilon=1e-5, axis=1)
        case "mul":
            y = y * small
        case "real_div":
            y = y / (1 / small)
    feeds = {"x": rng.uniform(-1, 1, (8, 3)).astype(np.float32)}
    assert check_inside(hx.graph(y), feeds, "input", "range") > 0


def bound_of(y: hx.Tensor, **ranges: object) -> Bound:
    return analyse(hx.graph(y), ranges)[-1]


def test_bounds_of_a_product_are_those_of_its_weights() -> None:
    """Rows of 3 and -2: at most 3 * 4 + 2 * 1 for x from -1 to 4."""
    x, weight = hx.input("x", (1, 2)), np.float32([[3], [-2]])
    found = bound_of(hx.matmul(x, weight), x=(-1, 4))
    assert found.overflow == "cannot"
    assert found.high == pytest.approx(14, rel=0.02)
    assert found.low == pytest.approx(-11, rel=0.02)
    assert found.peak == pytest.approx(20, rel=0.02)


def test_this_input_overflows_where_its_range_only_may() -> None:
    x = hx.input("x", (2, 8))
    y = hx.matmul(x, np.full((8, 3), 100, np.float32))
    assert bound_of(y, x=np.full((2, 8), 50, np.float32)).overflow == "will"
    assert bound_of(y, x=(-50, 50)).overflow == "may"
    assert bound_of(y, x=(-40, 40)).overflow == "cannot"
    assert bound_of(y, x=np.float32([[[50] * 8] * 2, [[-50] * 8] * 2])).overflow == "may", "samples of both signs"
    assert bound_of(y).overflow == "may"


def test_partial_sums_that_cancel_may_overflow() -> None:
    """+20000, +20000, -40000: 0 at last, and beyond 32768 on the way."""
    x = hx.input("x", (1, 3))
    assert bound_of(hx.matmul(x, np.float32([[1], [1], [-2]])), x=np.full((1, 3), 20000, np.float32)).overflow == "may"
    assert (
        bound_of(hx.matmul(x, np.float32([[1], [1], [-2]])), x=np.full((1, 3), 8000, np.float32)).overflow == "cannot"
    )


def test_a_scale_that_is_folded_into_weights_counts_in_partial_sums() -> None:
    x = hx.input("x", (1, 3))
    y = hx.matmul(x, np.float32([[1], [1], [-2]]))
    assert bound_of(y * np.float32([100]), x=np.full((1, 3), 20, np.float32)).overflow == "cannot"
    assert bound_of(y * np.float32([1000]), x=np.full((1, 3), 20, np.float32)).overflow == "may"


def test_what_does_not_overflow_by_itself_is_bounded_again() -> None:
    x = hx.input("x", (4, 8))
    big = hx.matmul(x, np.full((8, 8), 1000, np.float32))
    kinds = [b.overflow for b in analyse(hx.graph(hx.softmax(hx.clip(big, alpha=-6.0, beta=6.0))), {"x": (-9, 9)})]
    assert kinds == ["may", "cannot", "cannot"]
    kinds = [b.overflow for b in analyse(hx.graph(hx.softmax(big - big)), {"x": (-9, 9)})]
    assert kinds == ["may", "may", "may"], "an infinity less another may be anything"


@pytest.mark.parametrize(
    ("ranges", "words"),
    [
        ({"z": (0, 1)}, "got 'z', need inputs of the model: x"),
        ({"x": (1, 0)}, "got numbers from 1 to 0, need finite ones that rise"),
        ({"x": (0, np.inf)}, "finite ones that rise"),
        ({"x": np.zeros((3, 3))}, "got the shape"),
        ({"x": np.full((1, 2), np.nan)}, "finite ones that rise"),
    ],
)
def test_ranges_that_do_not_fit_are_refused(ranges: dict[str, object], words: str) -> None:
    with pytest.raises(hx.Error, match=words):
        analyse(hx.graph(hx.relu(hx.input("x", (1, 2)))), ranges)


def sizes_of_winograd_s_products(x: Array, w: Array) -> Array:
    """The sum of the sizes of each output's products in units of 2^-16: x [N, H, W, C] without a margin, w [O, C, 3,
    3]."""
    d, g = x.astype(np.float64), w.astype(np.float64)
    d = np.pad(d, ((0, 0), (0, 0), (0, 1), (0, 0)))
    u = [half_away(v) for v in (g[..., 0], g.sum(-1) / 2, (g[..., 0] - g[..., 1] + g[..., 2]) / 2, g[..., 2])]
    out = np.empty((len(x), x.shape[1] - 2, x.shape[2] - 2, len(w)))
    for n, y, column in np.ndindex(*out.shape[:3]):
        first = column // 2 * 2
        p = d[n, y : y + 3, first : first + 4].transpose(1, 2, 0)
        v = [half_away(q) for q in (p[0] - p[2], p[1] + p[2], p[2] - p[1], p[1] - p[3])]
        met = range(1, 4) if column % 2 else range(3)
        out[n, y, column] = sum(np.abs(products(v[i], u[i])).sum((1, 2)) for i in met)
    return out


@pytest.mark.parametrize("trials", [6, pytest.param(12, marks=pytest.mark.slow)])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("pad", [0, 1])
def test_sums_by_winograd_stay_within_bounds_at_the_corners_of_an_interval(layout: str, pad: int, trials: int) -> None:
    """Corners at random, and those that a weight's signs make the worst for its output."""
    rng = np.random.default_rng(5 + pad)
    reached = 0.0
    for trial in range(trials):
        w = (rng.standard_normal((3, 4, 3, 3)) * rng.choice([1e-4, 0.3, 40])).astype(np.float16)
        low, high = np.sort(rng.standard_normal((2, 1, 4, 5, 6)) * rng.choice([0.01, 1, 60]), 0).astype(np.float16)
        if trial % 3 == 0:
            low = np.zeros_like(low)
            high = np.abs(high)
        corners = [np.where(rng.random(low.shape) < 0.5, low, high) for _ in range(4)]
        corners += [np.where(np.arange(6) // 2 % 2 == i, low, high) for i in range(2)]
        corners += [np.where(np.arange(6) % 2 == i, low, high) for i in range(2)]
        bounds = np.stack([low, high])
        perm = (0, 2, 3, 1) if layout == "nhwc" else (0, 1, 2, 3)
        image = low.transpose(perm)
        y = hx.conv(hx.input("x", image.shape, "fp16"), w, pad=pad, layout=layout)
        given = {"x": bounds.transpose(0, *(p + 1 for p in perm))}
        (_, interval) = list(walk(hx.graph(y), given, winograd=True))[-1]
        assert interval.sums is not None
        back = np.argsort(perm)
        partial, least, most = (v.transpose(back) for v in (interval.sums.partial, interval.low, interval.high))
        for corner in corners:
            last = np.ascontiguousarray(corner.transpose(0, 2, 3, 1))
            padded = np.pad(last, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
            sizes = sizes_of_winograd_s_products(padded, w).transpose(0, 3, 1, 2) * 2.0**-16
            assert (sizes <= partial).all()
            reached = max(reached, float((sizes / partial).max()))
            got = winograd(last, w, np.zeros(3, np.float16), 1, (pad,) * 4).transpose(0, 3, 1, 2).astype(np.float64)
            finite = np.isfinite(got)
            assert ((got >= least) & (got <= most))[finite].all()
    assert reached > 0.8  # or the bound says little


def test_a_pixel_that_winograd_s_transform_takes_beyond_fp16_has_no_bound() -> None:
    weight = np.full((1, 1, 3, 3), 1e-4, np.float16)
    y = hx.conv(hx.input("x", (1, 1, 6, 6), "fp16"), weight, pad=1)
    assert bound_of(y, x=(-30000, 30000)).overflow == "cannot"
    clamped = bound_of(y, x=(-40000, 40000))
    assert (clamped.overflow, clamped.limit) == ("may", 32768)  # it is the accumulator that may overflow
    assert clamped.peak == np.inf


@pytest.mark.parametrize(
    ("build", "low", "high"),
    [
        (lambda x: hx.mish(x), -0.31, 2.99),
        (lambda x: hx.shrink(x, lambd=0.5), -3, 3),
        (lambda x: hx.celu(x, alpha=0.5), -0.5, 3),
        (lambda x: hx.log_softmax(x, axis=1), -8.1, 0),
    ],
    ids=["mish", "shrink", "celu", "log_softmax"],
)
def test_an_op_without_a_rule_has_the_bounds_of_what_it_is_written_as(
    build: Callable[[hx.Tensor], hx.Tensor], low: float, high: float
) -> None:
    """They were "may overflow" for any input."""
    *_, bound = analyse(hx.graph(build(hx.input("x", (1, 8, 4, 4)))), {"x": (-3.0, 3.0)})
    assert bound.overflow == "cannot"
    assert bound.low <= low < high <= bound.high
    assert bound.high - bound.low < 1.5 * (high - low)


def test_dequantized_integers_of_16_bits_have_bounds() -> None:
    q = hx.input("q", (2, 8), "int16")
    (bound,) = analyse(hx.graph(hx.dequantize(q, np.float32(0.015), np.int16(0))))
    assert bound.overflow == "cannot"
    assert (bound.low, bound.high) == pytest.approx((-491.52, 491.5), rel=0.01)
