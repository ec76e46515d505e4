"""quantized_mean, running_sum and interleave against NumPy, bit for bit."""

from typing import Any

import numpy as np
import pytest
from tests.support.kernels import poisoned, run, run_every_cut, same_bits

from hexane import _core
from hexane.errors import Error
from hexane.ops import OPS

GRIDS = {"x_scale": 0.037, "x_zero": 5, "output_scale": 0.021, "output_zero": 7}


def integers(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape, dtype)


def mean(x: Any, axes: tuple[int, ...], dtype: str) -> Any:
    """In exact fractions until it is rounded to fp32."""
    total = np.sum(x, axis=axes, keepdims=True, dtype=np.int64)
    count = x.size // total.size
    real = np.float32((total - count * 5) * (np.float64(np.float32(0.037)) / count))
    info = np.iinfo(dtype)
    return np.clip(np.rint(real / np.float32(0.021)) + 7, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axes"),
    [((1, 7, 7, 1280), (1, 2)), ((2, 5, 3, 33), (1, 2)), ((3, 4, 600), (2,)), ((6, 5, 4), (0,)), ((5, 9), (0, 1)), ((1, 70, 80, 3), (1, 2))],
)  # fmt: skip
def test_a_mean_is_rounded_once(shape: tuple[int, ...], axes: tuple[int, ...], x_dtype: str, dtype: str) -> None:
    x = integers(shape, x_dtype)
    want = mean(x, axes, dtype)
    out = poisoned(want.shape, dtype)
    attrs = {**GRIDS, "axes": axes, "keep_dims": 1, "count": x.size // want.size}
    run_every_cut("quantized_mean", [x], [out], **attrs)
    assert same_bits(out, want)
    sums = np.sum(x, axis=axes, keepdims=True, dtype=np.int32)
    again = poisoned(want.shape, dtype)
    run_every_cut("quantized_mean", [sums], [again], **attrs)
    assert same_bits(again, want)


@pytest.mark.parametrize(
    ("changed", "message"),
    [({"count": 3}, "count: got 3, need 6"), ({"count": 0}, "count: got 0"), ({"x_scale": 0.0}, "scale: got 0"), ({"output_zero": 300}, "output_zero: got 300"),
     ({"x_zero": -129}, "x_zero: got -129")],
)  # fmt: skip
def test_a_wrong_mean_is_refused(changed: dict[str, Any], message: str) -> None:
    x, out = integers((1, 2, 3, 4), "int8"), np.zeros((1, 1, 1, 4), np.int8)
    attrs = {**GRIDS, "axes": (1, 2), "keep_dims": 1, "count": 6, **changed}
    with pytest.raises(Error, match=message):
        run("quantized_mean", [x], [out], attrs)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_run_on_from_the_row_before_which_may_be_all_that_is_kept(dtype: str) -> None:
    x = integers((1, 9, 5, 700), dtype)
    want = np.cumsum(np.sum(x, axis=2, keepdims=True, dtype=np.int64), axis=1).astype(np.int32)
    whole = poisoned(want.shape, np.int32)
    _core.run_part("running_sum", [x], [whole], b"", b"\0", 1, 0, 9)
    assert same_bits(whole, want)
    for kept in (1, 2, 3):
        ring = poisoned((1, kept, 1, 700), np.int32)
        for begin, end in ((0, 1), (1, 4), (4, 5), (5, 9)):
            _core.run_part("running_sum", [x], [ring], b"", b"\0", 1, begin, end, {1: 9})
            assert same_bits(ring[:, (end - 1) % kept].copy(), want[:, end - 1].copy())


def test_sums_that_could_overflow_are_refused() -> None:
    x = np.lib.stride_tricks.as_strided(np.zeros(1, np.int8), (1, 3000, 3000, 1), (0, 0, 0, 1))
    with pytest.raises(Error, match=r"input: got \(1, 3000, 3000, 1\), need at most 8421504 elements of a channel"):
        _core.run_part("running_sum", [x], [np.zeros((1, 3000, 1, 1), np.int32)], b"", b"\0", 1, 0, 1)


@pytest.mark.parametrize("dtype", ["int8", "float16", "float32", "float64"])
@pytest.mark.parametrize(("block", "begin", "groups"), [((2, 2), (0, 0), 1), ((2, 3), (1, 2), 2), ((1, 4), (0, 0), 3)])
def test_channels_become_pixels(dtype: str, block: tuple[int, int], begin: tuple[int, int], groups: int) -> None:
    channels = groups * block[0] * block[1] * 5
    x = np.arange(2 * 3 * 4 * channels).reshape(2, 3, 4, channels).astype(dtype)
    shape = (3 * block[0] - begin[0], 4 * block[1] - begin[1])
    attrs: dict[str, Any] = {"block": block, "begin": begin, "groups": groups}
    want = np.ascontiguousarray(OPS["interleave"].ref(x, shape=shape, **attrs))
    out = poisoned(want.shape, dtype)
    run_every_cut("interleave", [x], [out], **attrs)
    assert same_bits(out, want)


def test_more_pixels_than_there_are_are_refused() -> None:
    attrs: dict[str, Any] = {"block": (2, 2), "begin": (1, 0), "groups": 1}
    with pytest.raises(Error, match="output axis 1: got 4, need at most 3"):
        run("interleave", [np.zeros((1, 2, 2, 8), "f")], [np.zeros((1, 4, 4, 2), "f")], attrs)
