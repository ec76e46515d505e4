"""The quantisers, compared with NumPy: exact k-means by dynamic programming, and integers with a scale."""

import numpy as np
import pytest

import hexane as hx
from hexane import _core
from hexane.graph import Array


def least_error(weights: Array, most: int) -> float:
    """The least sum of squared distances to the means of `most` clusters: O(n^2 k), on all pairs at once."""
    values, counts = np.unique(weights.astype(np.float64), return_counts=True)
    n = len(values)
    ends = np.full((n + 1, n + 1), np.inf)
    for i in range(n):
        w, v = counts[i:], values[i:]
        mean = np.cumsum(w * v) / np.cumsum(w)
        # Sums of squares by Welford: no digits are lost by differences.
        ends[i, i + 1 :] = np.cumsum(w * (v - mean) * (v - np.concatenate([v[:1], mean[:-1]])))
    least = np.full(n + 1, np.inf)
    least[0] = 0
    for _ in range(min(most, n)):
        least = (least[:, None] + ends).min(0)
    return float(least[n])


def palette(weights: Array, bits: int) -> tuple[Array, Array, float]:
    entries, indices, error = _core.quantise_palette(weights.view(np.uint16), bits)
    return entries.view(np.float16), indices, error


def samples(kind: str) -> Array:
    rng = np.random.default_rng(11)
    weights = {
        "normal": rng.standard_normal(600),
        "uniform": rng.uniform(-1, 1, 600),
        "heavy tails": rng.laplace(0, 0.05, 600),
        "an outlier": np.append(rng.standard_normal(599) * 1e-3, 6e4),
        "subnormal": rng.integers(-900, 900, 600) * 2.0**-24,
        "of one sign": rng.uniform(3, 4, 600),
    }[kind]
    return weights.astype(np.float16)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy tails", "an outlier", "subnormal", "of one sign"])
def test_a_palette_is_as_good_as_exact_k_means(kind: str, bits: int) -> None:
    weights = samples(kind)
    entries, indices, error = palette(weights, bits)
    assert len(entries) <= 1 << bits
    assert (np.diff(entries.astype(np.float32)) > 0).all()
    wide = weights.astype(np.float64)
    np.testing.assert_allclose(error, np.sum((wide - entries[indices]) ** 2), rtol=1e-12)
    # Each mean is rounded to fp16, which adds its rounding error for each weight.
    rounding = np.sum(np.maximum(np.spacing(np.abs(entries[indices])).astype(np.float64), 2.0**-24) ** 2) / 4
    assert error <= least_error(weights, 1 << bits) * (1 + 1e-9) + rounding


def test_an_index_names_the_nearest_entry() -> None:
    weights = samples("normal")
    entries, indices, _ = palette(weights, 4)
    distances = np.abs(weights.astype(np.float64)[:, None] - entries.astype(np.float64))
    np.testing.assert_array_equal(indices, distances.argmin(1))


@pytest.mark.parametrize("bits", [2, 4])
def test_a_palette_of_few_numbers_loses_nothing(bits: int) -> None:
    few = np.float16([-0.0, 0.5, 2.0**-24, -65504])
    weights = np.tile(few, 99)
    entries, indices, error = palette(weights, bits)
    assert error == 0
    np.testing.assert_array_equal(entries[indices], weights)
    np.testing.assert_array_equal(entries, np.sort(few))


def groups(weights: Array, outer: int, count: int, bits: int, threads: int = 1) -> tuple[Array, Array]:
    entries, indices = _core.quantise_groups(weights.view(np.uint16), outer, count, bits, threads)
    return entries.view(np.float16), indices.reshape(outer, count, -1)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy tails", "an outlier", "subnormal", "of one sign"])
def test_a_small_group_gets_the_palette_of_its_weights_alone(kind: str, bits: int) -> None:
    """Groups [outer][groups][inner]; no group has more than 600 distinct numbers."""
    weights = np.stack([samples(kind), -2 * samples(kind)[::-1] if kind != "an outlier" else samples("normal")])
    parts = np.ascontiguousarray(weights.reshape(2, 3, 200).swapaxes(0, 1))  # [3][2][200]
    entries, indices = groups(parts.reshape(-1), 3, 2, bits, threads=2)
    for g in range(2):
        alone, places, _ = palette(np.ascontiguousarray(weights[g]), bits)
        np.testing.assert_array_equal(entries[g][: len(alone)], alone)
        np.testing.assert_array_equal(entries[g][len(alone) :], alone[-1])
        np.testing.assert_array_equal(indices[:, g].reshape(-1), places)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 6, 8])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy tails", "wide tails", "constant but for one"])
def test_a_large_group_comes_near_the_least_error(kind: str, bits: int) -> None:
    rng = np.random.default_rng(5)
    made = {
        "normal": rng.standard_normal(9000) * 0.02,
        "uniform": rng.uniform(-1, 1, 9000),
        "heavy tails": rng.laplace(0, 0.05, 9000),
        "wide tails": rng.standard_t(3, 9000) * 0.02,
        "constant but for one": np.append(np.full(8999, 0.5), -3),
    }
    weights = made[kind].astype(np.float16)
    entries, indices = groups(weights, 1, 1, bits)
    wide = weights.astype(np.float64)
    np.testing.assert_array_equal(
        indices.reshape(-1), np.abs(wide[:, None] - np.unique(entries[0]).astype(np.float64)).argmin(1)
    )
    error = np.sum((wide - entries[0][indices.reshape(-1)]) ** 2)
    assert error <= palette(weights, bits)[2] * 1.005


def test_threads_change_no_palette() -> None:
    weights = (np.random.default_rng(1).standard_normal(40 * 2000) * 0.1).astype(np.float16)
    one, two = (groups(weights, 1, 40, 4, threads) for threads in (1, 2))
    for a, b in zip(one, two, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_group_with_a_weight_that_is_not_finite_is_refused(threads: int) -> None:
    weights = np.ones(64, np.float16)
    weights[7] = np.nan
    with pytest.raises(hx.Error, match="not finite"):
        groups(weights, 1, 4, 4, threads)


def test_groups_have_as_many_weights_each() -> None:
    with pytest.raises(hx.Error, match="got 64 weights in 1 x 7 parts of 4 bits, need equal parts"):
        groups(np.ones(64, np.float16), 1, 7, 4)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_weights_that_are_not_finite_are_refused(bad: float) -> None:
    weights = np.ones(64, np.float32)
    weights[7] = bad
    with pytest.raises(hx.Error, match="not finite"):
        _core.quantise_palette(weights.astype(np.float16).view(np.uint16), 4)
    with pytest.raises(hx.Error, match="not finite"):
        _core.quantise_int8(weights, 1, 4, 16)


def int8(weights: Array, axis: int | None) -> tuple[Array, Array]:
    count = 1 if axis is None else weights.shape[axis]
    outer = 1 if axis is None else int(np.prod(weights.shape[:axis]))
    integers, scales = _core.quantise_int8(weights, outer, count, weights.size // (outer * count))
    return integers.reshape(weights.shape), scales


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("size", [1.0, 1e-7, 3e-5, 1e6], ids=str)
def test_integers_and_scales_are_those_of_numpy(axis: int | None, size: float) -> None:
    weights = (np.random.default_rng(3).standard_normal((7, 5, 12)) * size).astype(np.float32)
    if axis is not None:
        weights[(slice(None),) * axis + (2,)] = 0
    integers, scales = int8(weights, axis)
    others = tuple(i for i in range(3) if i != axis)
    largest = np.abs(weights).max(axis=others, keepdims=True)
    want = np.maximum((largest / np.float32(127)).astype(np.float16), np.float16(2.0**-24)).astype(np.float32)
    want[largest == 0] = 1
    np.testing.assert_array_equal(scales, want.reshape(-1))
    np.testing.assert_array_equal(integers, np.rint(np.clip(weights / want, -127, 127)))


def test_a_scale_beyond_fp16_is_refused() -> None:
    with pytest.raises(hx.Error, match="need a scale that fp16 holds"):
        _core.quantise_int8(np.full(8, 1e30, np.float32), 1, 1, 8)


@pytest.mark.parametrize("bits", [0, 9])
def test_a_palette_has_one_to_eight_bits(bits: int) -> None:
    with pytest.raises(hx.Error, match=f"got {bits}, need 1 to 8"):
        _core.quantise_palette(np.zeros(4, np.uint16), bits)
