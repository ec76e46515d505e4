"""The quantisers, compared with NumPy: exact k-means by dynamic programming, and integers with a scale for each channel or block."""

import subprocess
import sys

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


def vectors(weights: Array, bits: int, threads: int = 1) -> tuple[Array, Array, float]:
    """weights [outer][vectors][size][inner]"""
    outer, count, size, _ = weights.shape
    found = _core.quantise_vectors(weights.view(np.uint16).reshape(-1), outer, count, size, bits, threads)
    return found[0].view(np.float16), found[1], found[2]


def least_of_lloyd(points: Array, most: int) -> float:
    """The least error of Lloyd's steps from three random starts of k-means++. points: [count][size]"""
    errors = []
    for seed in range(3):
        rng = np.random.default_rng(seed)
        entries, squares = points[:1], ((points - points[0]) ** 2).sum(1)
        while len(entries) < most:
            entries = np.vstack([entries, points[rng.choice(len(points), p=squares / squares.sum())]])
            squares = np.minimum(squares, ((points - entries[-1]) ** 2).sum(1))
        for _ in range(60):
            nearest = ((entries**2).sum(1) - 2 * points @ entries.T).argmin(1)  # without the point's own square
            error = ((points - entries[nearest]) ** 2).sum()
            counts = np.bincount(nearest, minlength=most)
            sums = np.stack([np.bincount(nearest, axis, most) for axis in points.T], 1)
            entries = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], entries)
        errors.append(error)
    return float(min(errors))


def large(kind: str, count: int) -> Array:
    rng = np.random.default_rng(9)
    made = {
        "normal": rng.standard_normal(count) * 0.05,
        "uniform": rng.uniform(-1, 1, count),
        "heavy tails": rng.laplace(0, 0.05, count),
        "wide tails": rng.standard_t(3, count) * 0.02,
    }
    return made[kind].astype(np.float16)


KINDS = ["normal", "uniform", "heavy tails", "wide tails"]


@pytest.mark.parametrize(("size", "bits"), [(2, 2), (2, 4), (2, 6), (4, 4), (4, 6)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_palette_of_vectors_comes_near_what_other_starts_find(kind: str, size: int, bits: int) -> None:
    weights = large(kind, 6000).reshape(3, -1, size, 10)
    entries, indices, error = vectors(weights, bits)
    points = np.moveaxis(weights, 2, 3).reshape(-1, size).astype(np.float64)
    distances = ((points[:, None] - entries.astype(np.float64)) ** 2).sum(2)
    chosen = distances[np.arange(len(points)), indices]
    np.testing.assert_allclose(chosen, distances.min(1), rtol=1e-5, atol=1e-12)
    np.testing.assert_allclose(error, chosen.sum(), rtol=1e-6)
    assert error <= 1.03 * least_of_lloyd(points, 1 << bits)


@pytest.mark.parametrize(("size", "bits"), [(2, 2), (2, 4), (2, 6), (2, 8), (4, 4), (4, 8)])
@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_no_worse_than_numbers_with_as_many_bits(kind: str, size: int, bits: int) -> None:
    """80000 numbers, of which starts see a sample."""
    weights = large(kind, 80000)
    error = vectors(weights.reshape(1, -1, size, 4), bits)[2]
    assert error <= palette(weights, bits // size)[2] * 1.002  # exact k-means, which a start only comes near


@pytest.mark.parametrize("size", [2, 4])
def test_few_vectors_that_differ_lose_nothing(size: int) -> None:
    few = np.float16([[-0.0, 0.5, 2.0**-24, -65504], [1, 2, 3, 4], [65504, 0, 0, 0]])[:, :size]
    weights = np.ascontiguousarray(few[np.arange(600) % 3].reshape(1, 600, size, 1))
    entries, indices, error = vectors(weights, 2)
    assert error == 0
    np.testing.assert_array_equal(entries[indices], weights.reshape(-1, size))
    np.testing.assert_array_equal(entries[3], entries[2])


def test_threads_change_no_vectors() -> None:
    weights = large("normal", 100000).reshape(1, -1, 2, 10)
    for a, b in zip(vectors(weights, 5), vectors(weights, 5, threads=2), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_instruction_set_finds_the_same_vectors() -> None:
    found = set()
    for name in _core.instruction_sets():
        code = (
            f"from hexane import _core; import numpy as np, hashlib; _core.use_instruction_set({name!r});"
            "w = np.random.default_rng(2).standard_normal(40000).astype(np.float16).view(np.uint16);"
            "made = [_core.quantise_vectors(w, 1, len(w) // size, size, 6, 1) for size in (2, 4)];"
            "print(hashlib.sha256(b''.join(a.tobytes() for one in made for a in one[:2])).hexdigest())"
        )
        found.add(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert len(found) == 1


def test_vectors_are_finite_and_of_one_size() -> None:
    weights = np.ones((1, 8, 2, 4), np.float16)
    weights[0, 3, 1, 2] = np.nan
    with pytest.raises(hx.Error, match="not finite"):
        vectors(weights, 4)
    with pytest.raises(hx.Error, match="got 3, need 2 or 4"):
        vectors(np.ones((1, 8, 3, 4), np.float16), 4)
    with pytest.raises(hx.Error, match="need equal parts and 1 to 8 bits"):
        _core.quantise_vectors(np.zeros(64, np.uint16), 1, 7, 2, 4, 1)


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


@pytest.mark.parametrize("less", [1, 3, 14])
@pytest.mark.parametrize("kind", ["normal", "an outlier", "of one sign"])
def test_a_palette_of_fewer_entries_is_the_best_of_so_many(kind: str, less: int) -> None:
    weights = samples(kind)
    entries, indices, error = _core.quantise_palette(weights.view(np.uint16), 4, less)
    assert len(entries) == 16 - less
    named = entries.view(np.float16)[indices]
    rounding = np.sum(np.maximum(np.spacing(np.abs(named)).astype(np.float64), 2.0**-24) ** 2) / 4
    assert error <= least_error(weights, 16 - less) * (1 + 1e-9) + rounding
    for wrong in (-1, 16):
        with pytest.raises(hx.Error, match=f"less: got {wrong} of 16 entries, need fewer"):
            _core.quantise_palette(weights.view(np.uint16), 4, wrong)


@pytest.mark.parametrize("bits", [0, 9])
def test_a_palette_has_one_to_eight_bits(bits: int) -> None:
    with pytest.raises(hx.Error, match=f"got {bits}, need 1 to 8"):
        _core.quantise_palette(np.zeros(4, np.uint16), bits)


def in_blocks(weights: Array, bits: int, threads: int = 1, importance: Array | None = None) -> tuple[Array, Array]:
    """weights [blocks][numbers], importance [rows][channels]"""
    integers, scales = _core.quantise_blocks(weights.reshape(-1), len(weights), bits, threads, importance)
    return integers.reshape(weights.shape), scales


RANGES = {4: (-8, 7), 8: (-127, 127)}


def block_errors(weights: Array, scales: Array, bits: int, importance: Array | float = 1.0) -> Array:
    """The sum of squared errors of each block, times the importance of each number."""
    wide, s = weights.astype(np.float64), scales.astype(np.float64)[:, None]
    found: Array = (importance * (wide - s * np.clip(np.rint(wide / s), *RANGES[bits])) ** 2).sum(1)
    return found


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy tails", "an outlier", "subnormal", "of one sign"])
def test_integers_in_blocks_are_the_nearest_and_no_worse_than_with_the_largest_as_the_scale(
    kind: str, bits: int
) -> None:
    weights = samples(kind).reshape(20, 30).astype(np.float32)
    integers, scales = in_blocks(weights, bits)
    np.testing.assert_array_equal(scales, scales.astype(np.float16))
    np.testing.assert_array_equal(integers, np.clip(np.rint(weights / scales[:, None]), *RANGES[bits]))
    assert np.isfinite((integers * scales[:, None]).astype(np.float16)).all()
    by_largest = (np.abs(weights).max(1) / RANGES[bits][1]).astype(np.float16).astype(np.float32)
    by_largest = np.maximum(by_largest, np.float32(2.0**-24))
    finite = by_largest * RANGES[bits][1] <= 65504
    worse = block_errors(weights, scales, bits) - block_errors(weights, by_largest, bits) * (1 + 1e-4)
    assert (worse[finite] <= 0).all()


@pytest.mark.parametrize("kind", ["normal", "uniform", "heavy tails", "wide tails"])
def test_scales_of_four_bits_come_near_the_best_of_all(kind: str) -> None:
    """All scales from 0.4 to 1.05 of the largest magnitude are tried in 600 steps."""
    rng = np.random.default_rng(8)
    made = {
        "normal": rng.standard_normal((400, 32)),
        "uniform": rng.uniform(-1, 1, (400, 32)),
        "heavy tails": rng.laplace(0, 0.05, (400, 32)),
        "wide tails": rng.standard_t(3, (400, 32)),
    }
    weights = made[kind].astype(np.float32)
    _, scales = in_blocks(weights, 4)
    largest = np.abs(weights).max(1) / 7
    tried = [(largest * part).astype(np.float16).astype(np.float32) for part in np.linspace(0.4, 1.05, 600)]
    best = np.min([block_errors(weights, one, 4) for one in tried], 0)
    by_largest = block_errors(weights, largest.astype(np.float16).astype(np.float32), 4)
    found = block_errors(weights, scales, 4).sum()
    assert found <= 1.01 * best.sum()
    assert found <= 0.95 * by_largest.sum()


def test_a_block_of_zeros_has_the_scale_one() -> None:
    weights = np.zeros((3, 16), np.float32)
    weights[1, 2] = -2.5
    integers, scales = in_blocks(weights, 4)
    assert (scales[0], scales[2]) == (1, 1)
    assert not integers[[0, 2]].any()
    assert np.abs(integers[1] * scales[1] - weights[1]).max() < 2e-3


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_at_the_end_of_fp16_stay_finite(bits: int) -> None:
    weights = np.float32([[65504, -65504, 1, 0], [-65504, 30000, 5, 2], [65504, 65504, 65504, 65504]])
    integers, scales = in_blocks(weights, bits)
    got = (integers * scales[:, None]).astype(np.float16)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got, weights, atol=65504 / 8)


def test_threads_change_no_block() -> None:
    weights = (np.random.default_rng(1).standard_normal((5000, 32)) * 0.1).astype(np.float32)
    for a, b in zip(in_blocks(weights, 4, 1), in_blocks(weights, 4, 2), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("bad", [np.nan, np.inf, 7e4])
def test_a_block_with_a_weight_that_fp16_does_not_hold_is_refused(bad: float, threads: int) -> None:
    weights = np.ones((4, 16), np.float32)
    weights[2, 7] = bad
    with pytest.raises(hx.Error, match=r"need all of them within \+-65504"):
        in_blocks(weights, 4, threads)


@pytest.mark.parametrize(("blocks", "bits"), [(0, 4), (-1, 4), (7, 4), (8, 3)])
def test_blocks_are_of_one_size_and_have_four_or_eight_bits(blocks: int, bits: int) -> None:
    with pytest.raises(hx.Error, match=r"need blocks of one size|need 4 or 8"):
        _core.quantise_blocks(np.ones(64, np.float32), blocks, bits, 1)


def random_blocks(kind: str, blocks: int, numbers: int) -> Array:
    rng = np.random.default_rng(blocks + numbers)
    made = {
        "normal": rng.standard_normal((blocks, numbers)),
        "heavy tails": rng.laplace(0, 0.05, (blocks, numbers)),
        "wide tails": rng.standard_t(3, (blocks, numbers)),
    }
    return made[kind].astype(np.float32)


def importance_of(activations: str, rows: int, channels: int) -> Array:
    """The mean squares of activations in each channel."""
    rng = np.random.default_rng(rows + channels)
    found = rng.chisquare(4, (rows, channels)) / 4
    if activations == "two channels of 100 times the others":
        found[:, [1, channels // 2]] *= 1e4
    elif activations == "half of the channels 0":
        found[:, ::2] = 0
    return found


KINDS = ["normal", "heavy tails", "wide tails"]
ACTIVATIONS = ["alike", "two channels of 100 times the others", "half of the channels 0"]


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("alike", [1.0, 0.0, 7.3, 1e300])
@pytest.mark.parametrize("kind", KINDS)
def test_equal_importance_changes_no_bit(kind: str, alike: float, bits: int) -> None:
    weights = random_blocks(kind, 200, 36)
    plain = in_blocks(weights, bits)
    for a, b in zip(plain, in_blocks(weights, bits, importance=np.full((4, 12), alike)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("taps", [1, 9])
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_no_block_has_a_larger_weighted_error_than_with_scales_without_importance(
    kind: str, activations: str, taps: int, bits: int
) -> None:
    weights = random_blocks(kind, 600, 32 * taps)
    importance = importance_of(activations, 3, 32)
    of_numbers = np.repeat(np.repeat(importance, taps, 1), 200, 0)
    integers, scales = in_blocks(weights, bits, importance=importance)
    np.testing.assert_array_equal(scales, scales.astype(np.float16))
    np.testing.assert_array_equal(integers, np.clip(np.rint(weights / scales[:, None]), *RANGES[bits]))
    found = block_errors(weights, scales, bits, of_numbers)
    plain = block_errors(weights, in_blocks(weights, bits)[1], bits, of_numbers)
    assert (found <= plain * (1 + 1e-4)).all()
    assert found.sum() < plain.sum()


@pytest.mark.parametrize("numbers", [16, 32])
@pytest.mark.parametrize("activations", ACTIVATIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_scales_of_four_bits_with_importance_come_near_the_best_of_all(
    kind: str, activations: str, numbers: int
) -> None:
    """The oracle tries 3000 scales for each block, from a hundredth of the largest magnitude / 7."""
    weights = random_blocks(kind, 400, numbers)
    importance = importance_of(activations, 1, numbers)
    _, scales = in_blocks(weights, 4, importance=importance)
    largest = np.abs(weights).max(1) / 7
    tried = [(largest * part).astype(np.float16).astype(np.float32) for part in np.linspace(0.01, 1.05, 3000)]
    best = np.min([block_errors(weights, one, 4, importance) for one in tried], 0)
    assert block_errors(weights, scales, 4, importance).sum() <= 1.004 * best.sum()


def test_threads_change_no_block_with_importance() -> None:
    weights, importance = random_blocks("normal", 6000, 32), importance_of("alike", 40, 32)
    for a, b in zip(in_blocks(weights, 4, 1, importance), in_blocks(weights, 4, 2, importance), strict=True):
        np.testing.assert_array_equal(a, b)


def test_each_run_of_blocks_has_the_importance_of_its_row() -> None:
    weights, importance = random_blocks("normal", 300, 32), importance_of("alike", 3, 32)
    together = in_blocks(weights, 4, 1, importance)
    for row in range(3):
        part = slice(100 * row, 100 * (row + 1))
        alone = in_blocks(weights[part], 4, 1, importance[row : row + 1])
        for a, b in zip(together, alone, strict=True):
            np.testing.assert_array_equal(a[part], b)


def test_importance_may_be_in_fp32() -> None:
    weights, importance = random_blocks("normal", 30, 32), importance_of("alike", 3, 32).astype(np.float32)
    for a, b in zip(
        in_blocks(weights, 4, 1, importance), in_blocks(weights, 4, 1, importance.astype(np.float64)), strict=True
    ):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("bad", [-1.0, np.nan, np.inf])
def test_importance_that_is_negative_or_not_finite_is_refused(bad: float) -> None:
    importance = np.ones((2, 8))
    importance[1, 3] = bad
    with pytest.raises(hx.Error, match=r"importance: got .* for channel 11, need finite numbers that are not negative"):
        in_blocks(np.ones((4, 16), np.float32), 4, importance=importance)


@pytest.mark.parametrize("shape", [(3, 16), (1, 5), (8, 16), (1, 32)])
def test_importance_of_another_number_of_channels_is_refused(shape: tuple[int, int]) -> None:
    said = rf"importance: got {shape[0] * shape[1]} channels in {shape[0]} rows for 4 blocks of 16 numbers, need rows"
    with pytest.raises(hx.Error, match=said):
        in_blocks(np.ones((4, 16), np.float32), 4, importance=np.ones(shape))


@pytest.mark.parametrize("shape", [(16,), (1, 0), (0, 16), (1, 1, 16)])
def test_importance_has_rows_and_channels(shape: tuple[int, ...]) -> None:
    with pytest.raises(hx.Error, match=r"importance: got .* axes, need \[rows\]\[channels of a block\]"):
        in_blocks(np.ones((4, 16), np.float32), 4, importance=np.ones(shape))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_neighbours_change_no_block(rows: int) -> None:
    """Blocks are quantised many at a time: each alone gets the same scale and integers, in runs of any length."""
    weights = random_blocks("heavy tails", 57, 20)
    weights[11], weights[12, 3:] = 0, 0
    importance = None if rows == 0 else np.random.default_rng(3).random((rows, 10)) ** 4
    for bits in (4, 8):
        integers, scales = in_blocks(weights, bits, importance=importance)
        for b in range(57):
            own = None if importance is None else importance[b * rows // 57][None]
            alone = in_blocks(weights[b : b + 1], bits, importance=own)
            np.testing.assert_array_equal(alone[0], integers[b : b + 1])
            np.testing.assert_array_equal(alone[1], scales[b : b + 1])


def test_every_instruction_set_finds_the_same_blocks() -> None:
    found = set()
    for name in _core.instruction_sets():
        code = (
            f"from hexane import _core; import numpy as np, hashlib; _core.use_instruction_set({name!r});"
            "r = np.random.default_rng(2); w = r.standard_normal(40 * 33).astype(np.float32);"
            "made = [_core.quantise_blocks(w, 40, bits, 1, i) for bits in (4, 8) for i in (None, r.random((2, 11)))];"
            "print(hashlib.sha256(b''.join(a.tobytes() for one in made for a in one)).hexdigest())"
        )
        found.add(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)
    assert len(found) == 1
