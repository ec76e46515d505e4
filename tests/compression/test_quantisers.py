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
