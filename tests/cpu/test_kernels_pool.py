"""max_pool and avg_pool against every window taken apart in NumPy."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits


def windows(x: Array, out: tuple[int, ...], kernel: Any, strides: Any, dilations: Any, pad: Any) -> Any:
    """For each output position of an [N, spatial..., C] array: (position, elements inside [taps, N, C], all taps)."""
    spatial = x.shape[1:-1]
    for at in product(*map(range, out)):
        inside, padded = [], 0
        for tap in product(*map(range, kernel)):
            i = [a * s - p + t * d for a, s, p, t, d in zip(at, strides, pad[::2], tap, dilations, strict=True)]
            inside += [x[(slice(None), *i)]] if all(0 <= j < n for j, n in zip(i, spatial, strict=True)) else []
            padded += all(j < n + p for j, n, p in zip(i, spatial, pad[1::2], strict=True))
        yield at, np.array(inside), padded


def out_extent(n: int, k: int, s: int, d: int, before: int, after: int, ceil: bool) -> int:
    room = n + before + after - (k - 1) * d - 1
    out = (room + (s - 1 if ceil else 0)) // s + 1
    return out - 1 if ceil and (out - 1) * s >= n + before else out


CASES = [
    # spatial, kernel, strides, dilations, pad, ceil_mode
    ((8, 8), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False),
    ((9, 7), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False),
    ((9, 8), (3, 2), (2, 3), (1, 1), (1, 0, 0, 1), True),
    ((10, 11), (3, 3), (1, 2), (2, 3), (2, 2, 3, 0), True),
    ((7, 7), (7, 7), (1, 1), (1, 1), (0, 0, 0, 0), False),
    ((5, 6), (5, 5), (3, 3), (1, 1), (2, 2, 2, 2), True),
    ((17,), (3,), (2,), (1,), (1, 1), True),
    ((5, 6, 7), (2, 3, 2), (2, 1, 2), (1, 2, 1), (1, 0, 1, 1, 0, 1), True),
]
CHANNELS = [1, 3, 4, 17, 65]


def attributes(case: Any, **more: Any) -> dict[str, Any]:
    _, kernel, strides, dilations, pad, ceil = case
    return {"kernel_sizes": kernel, "strides": strides, "dilations": dilations, "pads": pad, "ceil_mode": ceil, **more}


def empty_output(x: Array, case: Any) -> Array:
    spatial, kernel, strides, dilations, pad, ceil = case
    out = [out_extent(*a, ceil) for a in zip(spatial, kernel, strides, dilations, pad[::2], pad[1::2], strict=True)]
    return poisoned((x.shape[0], *out, x.shape[-1]), x.dtype)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint8"])
def test_max_pool_is_the_maximum_of_the_window(case: Any, channels: int, dtype: str) -> None:
    rng = np.random.default_rng(5)
    x = (rng.standard_normal((2, *case[0], channels)) * 50).astype("int32").astype(dtype)
    out = empty_output(x, case)
    run_every_cut("max_pool", [x], [out], **attributes(case))
    wanted = np.empty_like(out)
    for at, inside, _ in windows(x, out.shape[1:-1], *case[1:5]):
        wanted[(slice(None), *at)] = inside.max(axis=0)
    assert same_bits(out, wanted)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("channels", CHANNELS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("exclude_padding", [False, True])
def test_avg_pool_is_the_mean_of_the_window(case: Any, channels: int, dtype: str, exclude_padding: bool) -> None:
    x = np.random.default_rng(6).integers(-9, 9, (2, *case[0], channels)).astype(dtype)
    out = empty_output(x, case)
    run_every_cut("avg_pool", [x], [out], **attributes(case, exclude_padding=exclude_padding))
    wanted = np.empty_like(out)
    for at, inside, padded in windows(x, out.shape[1:-1], *case[1:5]):
        total = inside.astype(np.float32).sum(axis=0)
        wanted[(slice(None), *at)] = total / np.float32(len(inside) if exclude_padding else padded)
    assert same_bits(out, wanted)


def test_avg_pool_rounds_fp16_once() -> None:
    x = np.random.default_rng(7).standard_normal((1, 14, 14, 37)).astype(np.float16)
    out = poisoned((1, 1, 1, 37), np.float16)
    case = ((14, 14), (14, 14), (1, 1), (1, 1), (0, 0, 0, 0), False)
    run_every_cut("avg_pool", [x], [out], **attributes(case, exclude_padding=True))
    exact = x.astype(np.float64).mean(axis=(1, 2))
    assert np.abs(out[0, 0] - exact).max() <= np.spacing(np.abs(exact).astype(np.float16)).max()


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("channels", [3, 21])
def test_max_pool_passes_nan_and_ignores_padding(dtype: str, channels: int) -> None:
    x = np.full((1, 4, 4, channels), -np.inf, dtype)
    x[0, 1, 1] = np.nan
    x[0, 3, 3] = 7
    out = poisoned((1, 2, 2, channels), dtype)
    case = ((4, 4), (3, 3), (3, 3), (1, 1), (1, 1, 1, 1), False)
    run_every_cut("max_pool", [x], [out], **attributes(case))
    assert np.isnan(out[0, 0, 0]).all()
    assert (out[0, 0, 1] == -np.inf).all()
    assert (out[0, 1, 1] == 7).all()


def test_pooling_reads_strided_rows() -> None:
    whole = np.random.default_rng(8).integers(-9, 9, (2, 9, 9, 40)).astype(np.float32)
    x = whole[:, 1:, 2:, 3:36]
    case = ((8, 7), (3, 3), (2, 2), (1, 1), (1, 1, 1, 1), False)
    out, dense = empty_output(x, case), empty_output(x, case)
    run_every_cut("max_pool", [x], [out], **attributes(case))
    run("max_pool", [x.copy()], [dense], attributes(case))
    assert same_bits(out, dense)


def test_pooling_refuses_what_does_not_fit() -> None:
    x = np.zeros((1, 8, 8, 4), np.float32)
    good = ((8, 8), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0), False)
    out = empty_output(x, good)
    run("max_pool", [x], [out], attributes(good))
    for change, message in [
        ({"kernel_sizes": (2,)}, "window"),
        ({"kernel_sizes": (0, 2)}, "kernel size"),
        ({"strides": (2, 0)}, "stride"),
        ({"dilations": (1 << 40, 1)}, "dilation"),
        ({"pads": (0, 0)}, "pads"),
        ({"pads": (-1, 0, 0, 0)}, "pad"),
        ({"kernel_sizes": (9, 9)}, "output"),
        ({"strides": (1, 1)}, "output"),
    ]:
        with pytest.raises(Error, match=message):
            run("max_pool", [x], [out], {**attributes(good), **change})
    with pytest.raises(Error, match="shape"):
        run("max_pool", [x], [np.zeros((1, 4, 4, 5), np.float32)], attributes(good))
    with pytest.raises(Error, match="channel stride"):
        run("max_pool", [x.transpose(0, 2, 3, 1)], [np.zeros((1, 4, 2, 8), np.float32)], attributes(good))
    run("max_pool", [x[:0]], [out[:0]], attributes(good))
