"""quantize_by_range against TFLite's formulas, one number at a time in fp32."""

import math

import numpy as np
import pytest

from hexane.errors import Error
from kernels import poisoned, run, run_every_cut

F = np.float32


def rounded(x: float) -> int:
    """TfLiteRound of an fp32 number, which is exact in a double."""
    return int(math.copysign(math.floor(abs(float(x)) + 0.5), x))


def symmetric(row: np.ndarray) -> tuple[list[int], float, float]:
    """SymmetricQuantizeFloats."""
    largest = max(F(0), *(abs(v) for v in row))
    if largest == 0:
        return [0] * len(row), 1, 0
    inverse = F(127) / largest
    return [max(-127, min(127, rounded(v * inverse))) for v in row], largest / F(127), 0


def asymmetric(row: np.ndarray) -> tuple[list[int], float, float]:
    """AsymmetricQuantizeFloats."""
    low, high = min(F(0), *row), max(F(0), *row)
    if low == high:
        return [0] * len(row), 1, 0
    scale = (high - low) / F(255)
    from_low, from_high = F(-128) - low / scale, F(127) - high / scale
    low_error, high_error = F(128) + abs(low / scale), F(127) + abs(high / scale)
    zero = rounded(max(F(-128), min(F(127), from_low if low_error < high_error else from_high)))
    inverse = F(1) / scale
    return [max(-128, min(127, zero + rounded(v * inverse))) for v in row], scale, zero


def rows(kind: str, count: int, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    if kind == "halves":  # products at a half, and of fp32's last bits next to it
        x = rng.integers(-254, 255, (count, n)) * 0.5
        x[:, 0] = rng.choice([127, -127, 127.5], count)
        return np.nextafter(x.astype(F), rng.choice(F([-999, 999]), (count, n)), dtype=F)
    x = rng.standard_normal((count, n)) + rng.choice([0, 3, -9], (count, 1))
    sizes = rng.integers(-35, 36, (count, 1)) if kind == "sizes" else np.zeros((count, 1))
    x = x * 10.0**sizes * rng.choice([1, 1, 1, 0], (count, 1))
    return x.astype(F)


@pytest.mark.parametrize("n", [1, 7, 16, 67, 300])
@pytest.mark.parametrize("kind", ["halves", "sizes", "usual"])
@pytest.mark.parametrize("is_symmetric", [False, True])
def test_quantize_by_range_is_tflites(is_symmetric: bool, kind: str, n: int) -> None:
    x = rows(kind, 40, n)
    q, scale, zero = poisoned(x.shape, "int8"), poisoned((40, 1), "float32"), poisoned((40, 1), "float32")
    run_every_cut("quantize_by_range", [x], [q, scale, zero], axis=1, symmetric=int(is_symmetric))
    for i, row in enumerate(x):
        want = (symmetric if is_symmetric else asymmetric)(row)
        assert (q[i].tolist(), scale[i, 0], zero[i, 0]) == want, row


def test_numbers_whose_range_is_infinite_have_a_scale_that_says_so() -> None:
    x = np.array([[1, np.nan, 2], [np.inf, 1, 2], [-np.inf, np.nan, 0]], F)
    for is_symmetric in (0, 1):
        q, scale, zero = poisoned(x.shape, "int8"), poisoned((3, 1), "float32"), poisoned((3, 1), "float32")
        run("quantize_by_range", [x], [q, scale, zero], {"axis": 1, "symmetric": is_symmetric})
        assert not np.isfinite(scale).any()
        with np.errstate(invalid="ignore"):
            assert np.isnan((q - zero) * scale).any(axis=1).all()
        assert not zero.any()


@pytest.mark.parametrize(("axis", "scales"), [(2, (3, 1)), (1, (3, 4)), (0, (3, 1)), (1, (3,))])
def test_what_does_not_fit_is_refused(axis: int, scales: tuple[int, ...]) -> None:
    outputs = [np.zeros((3, 4), np.int8), np.zeros(scales, F), np.zeros(scales, F)]
    with pytest.raises(Error, match=r"\[quantize_by_range\]"):
        run("quantize_by_range", [np.zeros((3, 4), F)], outputs, {"axis": axis, "symmetric": 0})
