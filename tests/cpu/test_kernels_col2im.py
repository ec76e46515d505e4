"""col2im against columns added up one by one, bit for bit: small integers, whose sums are exact."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, run_every_cut, same_bits

CASES = [
    # image, kernel, strides, dilations, pad
    ((8, 8), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((9, 6), (3, 2), (3, 2), (1, 1), (0, 0, 0, 0)),
    ((8, 9), (2, 2), (2, 2), (1, 1), (0, 0, 0, 0)),
    ((9, 7), (3, 3), (1, 1), (1, 1), (1, 1, 1, 1)),
    ((9, 17), (3, 4), (2, 3), (1, 1), (1, 0, 2, 1)),
    ((5, 65), (2, 7), (1, 2), (2, 3), (0, 1, 3, 3)),
    ((3, 3), (5, 5), (1, 1), (1, 1), (3, 3, 2, 4)),
    ((17,), (3,), (5,), (2,), (1, 1)),
    ((12,), (4,), (4,), (1,), (0, 0)),
    ((1,), (1,), (7,), (1,), (0, 0)),
    ((4, 5, 6), (2, 3, 2), (2, 1, 2), (1, 2, 1), (1, 0, 1, 1, 0, 1)),
    ((4, 3, 6), (2, 3, 2), (2, 3, 2), (1, 1, 1), (0, 0, 0, 0, 0, 0)),
    ((2, 4, 2, 2), (2, 2, 1, 2), (2, 2, 1, 2), (1, 1, 1, 1), (0,) * 8),
]
NAMES = ("kernel_sizes", "strides", "dilations", "pad")


def windows(image: Any, kernel: Any, strides: Any, dilations: Any, pad: Any) -> tuple[int, ...]:
    return tuple(
        (n + sum(p) - (k - 1) * d - 1) // s + 1
        for n, k, s, d, p in zip(image, kernel, strides, dilations, zip(pad[::2], pad[1::2], strict=True), strict=True)
    )


def columns(case: Any, batch: int, channels: int, dtype: Any) -> Array:
    x = np.random.default_rng(3).integers(-9, 9, (batch, channels * prod(case[1]), prod(windows(*case))))
    return x.astype(dtype)


def added(x: Array, case: Any) -> Array:
    image, kernel, strides, dilations, pad = case
    taps, places = list(product(*map(range, kernel))), list(product(*map(range, windows(*case))))
    y = np.zeros((x.shape[0], x.shape[1] // len(taps), *image), x.dtype)
    for (t, tap), (p, place) in product(enumerate(taps), enumerate(places)):
        at = [w * s + k * d - b for w, s, k, d, b in zip(place, strides, tap, dilations, pad[::2], strict=True)]
        if all(0 <= i < n for i, n in zip(at, image, strict=True)):
            y[(slice(None), slice(None), *at)] += x[:, t :: len(taps), p]
    return y


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", ["float32", "int32", "int64", "uint64"])
def test_col2im_adds_each_column_at_its_place(case: Any, dtype: str) -> None:
    x = columns(case, 2, 3, dtype)
    need = added(x, case)
    for source in (x, np.repeat(np.repeat(x, 2, 2), 2, 1)[:, ::2, ::2], np.asfortranarray(x)):
        out = poisoned(need.shape, dtype)
        run_every_cut("col2im", [source], [out], **dict(zip(NAMES, case[1:], strict=True)))
        assert same_bits(out, need)


def test_the_image_may_have_gaps() -> None:
    for case in CASES[:5]:
        x = columns(case, 1, 2, np.float32)
        need = added(x, case)
        out = poisoned((*need.shape[:-1], 2 * need.shape[-1]), np.float32)[..., ::2]
        run("col2im", [x], [out], dict(zip(NAMES, case[1:], strict=True)))
        np.testing.assert_array_equal(out, need)


def test_integers_wrap() -> None:
    x = np.full((1, 2, 2), 2**31 - 1, np.int32)
    out = poisoned((1, 1, 3), np.int32)
    run("col2im", [x], [out], dict(zip(NAMES, ((2,), (1,), (1,), (0, 0)), strict=True)))
    assert out.tolist() == [[[2**31 - 1, -2, 2**31 - 1]]]


@pytest.mark.parametrize(
    ("x", "out", "changed", "message"),
    [
        ((1, 4, 4), (1, 1, 4, 4), {"strides": (0, 2)}, "strides: got 0"),
        ((1, 4, 4), (1, 1, 4, 4), {"strides": (2,)}, "strides: got 1 values"),
        ((1, 4, 4), (1, 1, 4, 4), {"pad": (0, 0, -1, 0)}, "pad: got -1"),
        ((1, 4, 4), (1, 1, 4, 4), {"kernel_sizes": (2, 3)}, "need batch, channels \\* 6"),
        ((1, 4, 4), (1, 1, 4, 4), {"kernel_sizes": (2, 5)}, "need room for one window"),
        ((1, 4, 5), (1, 1, 4, 4), {}, "channels \\* 4 and 4"),
        ((1, 4, 4), (2, 1, 4, 4), {}, "need batch"),
        ((1, 4), (1, 1, 4, 4), {}, "ranks"),
    ],
)
def test_col2im_refuses_what_does_not_fit(x: Any, out: Any, changed: Any, message: str) -> None:
    attrs = {"kernel_sizes": (2, 2), "strides": (2, 2), "dilations": (1, 1), "pad": (0,) * 4, **changed}
    with pytest.raises(Error, match=message):
        run("col2im", [np.zeros(x, np.float32)], [np.zeros(out, np.float32)], attrs)


def test_no_images_and_no_channels_give_nothing() -> None:
    for batch, channels in ((0, 3), (2, 0)):
        frame = poisoned((2, 3, 4, 4), np.float32)
        x, out = np.zeros((batch, 4 * channels, 4), np.float32), frame[:batch, :channels]
        run("col2im", [x], [out], dict(zip(NAMES, ((2, 2), (2, 2), (1, 1), (0,) * 4), strict=True)))
        assert same_bits(frame, poisoned((2, 3, 4, 4), np.float32))
