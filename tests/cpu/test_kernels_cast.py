"""The cast kernel against NumPy, between all dtypes of whole bytes: one rounding, saturating to integers, NaN to 0."""

import warnings

import ml_dtypes
import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, integers, poisoned, run, run_every_cut, same_bits

SEED = 11


CASTS = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "bfloat16", "float32", "float64"),
]


def values_of(dtype: np.dtype) -> Array:
    if dtype.kind == "b":
        return np.array([True, False] * 20)
    if dtype.kind in "iu":
        return integers((515,), str(dtype))
    raw = np.random.default_rng(SEED).integers(0, 256, 1024 * dtype.itemsize, np.uint8).view(dtype)
    exact = np.arange(-300, 300, 0.5).astype(dtype)
    with np.errstate(over="ignore"):
        edges = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 65519, 65520, 1e30]).astype(dtype)
    return np.concatenate([raw, exact, edges])


def numpy_cast(x: Array, dtype: np.dtype) -> Array:
    kinds = x.dtype.kind.replace("V", "f"), dtype.kind.replace("V", "f")
    if kinds[0] == "f" and kinds[1] in "iu":
        limits = np.iinfo(dtype)
        return np.array([saturated(float(v), limits.min, limits.max) for v in x], dtype)
    return x.astype(dtype)


def saturated(value: float, low: int, high: int) -> int:
    if np.isnan(value):
        return 0
    return high if value >= high else low if value <= low else int(value)


def dtype_of(name: str) -> np.dtype:
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("source", CASTS)
@pytest.mark.parametrize("target", CASTS)
def test_cast_rounds_once_saturates_and_wraps(source: str, target: str) -> None:
    x = values_of(dtype_of(source))
    out = poisoned(x.shape, dtype_of(target))
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = numpy_cast(x, out.dtype)
        run_every_cut("cast", [x], [out])
        numbers = ~np.isnan(expected) if target.startswith(("float", "bfloat")) else np.ones(x.shape, bool)
        assert np.array_equal(numbers, ~np.isnan(out) if target.startswith(("float", "bfloat")) else numbers)
    assert same_bits(out[numbers], expected[numbers])


@pytest.mark.parametrize("source", ["int64", "uint64", "float64"])
@pytest.mark.parametrize("target", ["float16", "bfloat16"])
def test_cast_to_half_never_rounds_twice(source: str, target: str) -> None:
    tie = 2049 if target == "float16" else 257  # the middle of two values, plus what the middle step would lose
    if source == "float64":
        x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, tie + 2 - 2.0**-40])
        step = 2
    else:
        x = np.array([tie << 40, (tie << 40) + 1, (tie << 40) - 1, (tie + 2 << 40) - 1]).astype(source)
        step = 2 << 40
    if target == "float16" and source != "float64":
        x, step = x[:0], step  # beyond the range of fp16
    out = poisoned(x.shape, dtype_of(target))
    run("cast", [x], [out], {})
    down, up = (tie - 1) * step // 2, (tie + 1) * step // 2
    assert out.astype(np.float64).tolist() == [down, up, down, up][: x.size]


def test_cast_reads_any_strides() -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5).transpose(2, 0, 1)[::2]
    out = poisoned(x.shape, "int16")
    run_every_cut("cast", [x], [out])
    assert np.array_equal(out, x)


def test_cast_refuses_dtypes_of_broken_bytes() -> None:
    with pytest.raises(Error):
        run("cast", [np.zeros(3, ml_dtypes.int4)], [np.zeros(3, np.float32)], {})
