"""When a result is right: the one place that names tolerances."""

from typing import Any

import ml_dtypes
import numpy as np

from hexane.graph import Array

RELATIVE = {"float32": 1e-5, "float64": 1e-13}  # of the largest magnitude of the reference
TYPICAL = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}
BF16 = np.dtype(ml_dtypes.bfloat16)


def assert_close(got: Any, want: Array) -> None:
    """fp32 and fp64 within RELATIVE of the largest value, fp16 and bf16 within 1 ulp, everything else exactly."""
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype in (np.float16, BF16):
        assert_within_ulps(got, want, 1)
    elif want.dtype.kind == "f":
        finite = np.isfinite(want)
        np.testing.assert_array_equal(got[~finite], want[~finite])
        if finite.any():
            error = np.abs(got[finite].astype(np.float64) - want[finite].astype(np.float64)).max()
            smallest = float(np.finfo(want.dtype).smallest_subnormal)  # no rounding is finer
            assert error <= max(RELATIVE[want.dtype.name] * np.abs(want[finite]).max(), smallest), f"error {error}"
    else:
        np.testing.assert_array_equal(got, want)


def assert_matches(found: Any, wanted: Any) -> None:
    """Floats within TYPICAL of the largest value, for peers that round elsewhere than ONNX says; everything else
    exactly."""
    wanted = np.asarray(wanted)
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    if wanted.dtype.kind != "f":
        np.testing.assert_array_equal(found, wanted)
        return
    scale = max(np.abs(wanted[np.isfinite(wanted)]).max(initial=0), 1e-30)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=TYPICAL[wanted.dtype.name] * scale)


def assert_within_ulps(got: Any, want: Array, ulps: int) -> None:
    """Asserts a distance of at most `ulps` representable numbers; NaN equals NaN."""
    got = np.asarray(got)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind != "f" and want.dtype != BF16:
        np.testing.assert_array_equal(got, want)
        return
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    distance = np.where(np.isnan(want), 0, np.abs(_ordered(got) - _ordered(want)))
    assert not distance.size or distance.max() <= ulps, f"{distance.max()} ulps"


def _ordered(array: Array) -> Array:
    """Floats as integers whose difference counts the representable numbers between them."""
    bits = array.view(f"i{array.dtype.itemsize}").astype(np.int64)
    return np.where(bits < 0, -(bits & ((1 << (8 * array.dtype.itemsize - 1)) - 1)), bits)
