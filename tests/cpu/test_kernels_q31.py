"""Kernels in TFLite's arithmetic against a model of it in Python's whole numbers, bit for bit."""

from typing import Any

import numpy as np
import pytest

import tflite_model as tflite
from hexane.errors import Error
from hexane.ops.records.q31 import double_multiplier, quantize_multiplier, rescale
from kernels import poisoned, run, run_every_cut

BYTES = ("int8", "uint8")
EDGES = (0, 1, -1, 2, -2, 3, 127, -128, 12345, -54321, 2**30, -(2**30), 2**31 - 1, -(2**31), 2**31 - 2, 1 - 2**31)


def values(shape: Any, dtype: str, seed: int) -> np.ndarray:
    low = -128 if dtype == "int8" else 0
    return np.random.default_rng(seed).integers(low, low + 256, shape).astype(dtype)


def bounds(dtype: str) -> tuple[int, int]:
    return (-128, 127) if dtype == "int8" else (0, 255)


def test_a_multiplier_is_a_number_to_31_bits() -> None:
    rng = np.random.default_rng(1)
    numbers = [*np.exp2(rng.uniform(-40, 29, 3000)), 0.5, 1.0, 2.0, 1 - 2.0**-40, 2.0**-32, 2.0**-33, 2.0**29]
    for number in numbers:
        assert quantize_multiplier(float(number)) == tflite.multiplier_of(float(number)), number
    with pytest.raises(Error, match="multiplier"):
        quantize_multiplier(2.0**31)


def test_the_record_rescales_as_tflite_does() -> None:
    rng = np.random.default_rng(2)
    sums = np.array([*EDGES, *rng.integers(-(2**31), 2**31, 500), *rng.integers(-5000, 5000, 500)], np.int64)
    for shift in range(-31, 31):
        for multiplier in (2**30, 2**31 - 1, 0, int(rng.integers(2**30, 2**31))):
            want = [tflite.rescaled(int(x), multiplier, shift) for x in sums]
            assert rescale(sums, np.int64(multiplier), np.int64(shift)).tolist() == want


@pytest.mark.parametrize("shift", [-31, -9, -1, 0, 1, 7, 30])
def test_the_kernel_rescales_every_kind_of_sum(shift: int) -> None:
    """The bias is the sum: a product of one term that is 0."""
    rng = np.random.default_rng(shift + 100)
    bias = np.array([*EDGES, *rng.integers(-(2**31), 2**31, 300)], np.int64).astype(np.int32)
    multipliers = rng.integers(2**30, 2**31, bias.size).astype(np.int32)
    out = poisoned((3, bias.size), "int8")
    operands = [np.zeros((3, 1), "int8"), np.zeros((bias.size, 1), "int8"), multipliers, bias, None, None]
    shifts = np.full(bias.size, shift, np.int8)
    run_every_cut("q31_matmul", [*operands, shifts], [out], transpose_y=1, output_zero=5, low=-100, high=255)
    want = [
        tflite.clamped(tflite.rescaled(int(b), int(m), shift), 5, -100, 127)
        for b, m in zip(bias, multipliers, strict=True)
    ]
    assert out.tolist() == [want] * 3


def digits_of(reals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    digits, shifts = zip(*(double_multiplier(float(real)) for real in reals), strict=True)
    return np.array(digits, np.int64), np.array(shifts, np.int8)


@pytest.mark.parametrize(("dtype", "zero", "low", "high"), [("int8", 5, -100, 255), ("uint8", 250, 3, 255)])
def test_q31_matmul_scales_once_as_doubles_do(dtype: str, zero: int, low: int, high: int) -> None:
    """Every kind of sum times factors of every size, and products a few units in the last place beside a half."""
    rng = np.random.default_rng(3)
    bias, reals = tflite.near_halves(rng, 20_000)
    edges = np.array([*EDGES, *rng.integers(-(2**31), 2**31, 200)], np.int64).astype(np.int32)
    for real in (2.0**-33, 2.0**-32, 2.0**-31, 0.5, 1.0, 2.0**29, 2.0**31, *np.exp2(rng.uniform(-34, 32, 40))):
        bias, reals = np.concatenate([bias, edges]), np.concatenate([reals, np.full(edges.size, real)])
    digits, shifts = digits_of(reals)
    out = poisoned((2, bias.size), dtype)
    operands = [np.zeros((2, 1), "int8"), np.zeros((bias.size, 1), "int8"), digits, bias, None, None, shifts]
    run("q31_matmul", operands, [out], {"transpose_y": 1, "output_zero": zero, "low": low, "high": high})
    most = min(high, bounds(dtype)[1])
    want = [
        tflite.clamped(tflite.scaled_once(int(b), float(real)), zero, low, most)
        for b, real in zip(bias, reals, strict=True)
    ]
    assert out.tolist() == [want] * 2


@pytest.mark.parametrize("by_column", [False, True])
@pytest.mark.parametrize("x_dtype", BYTES)
def test_q31_matmul_with_the_digits_of_doubles_cuts(x_dtype: str, by_column: bool) -> None:
    rng = np.random.default_rng(4)
    x, y = values((5, 37), x_dtype, 1), values((35, 37), "int8", 2)
    bias = rng.integers(-5000, 5000, 35).astype(np.int32)
    reals = rng.uniform(0.0002, 0.004, 35 if by_column else 1)
    digits, shifts = digits_of(reals)
    if not by_column:
        digits, shifts = digits.reshape(()), shifts.reshape(())
    out = poisoned((5, 35), "int8")
    zeros = [np.array(7, x_dtype), np.array(-2, "int8")]
    attrs = {"transpose_y": 1, "output_zero": -3, "low": -128, "high": 100}
    run_every_cut("q31_matmul", [x, y, digits, bias, *zeros, shifts], [out], **attrs)
    sums = (x.astype(np.int64) - 7) @ (y.T.astype(np.int64) + 2) + bias
    factors = np.broadcast_to(reals, 35)
    want = [
        [tflite.clamped(tflite.scaled_once(int(s), float(r)), -3, -128, 100) for s, r in zip(row, factors, strict=True)]
        for row in sums
    ]
    assert out.tolist() == want
    assert len(np.unique(out)) > 50


CONVS = {
    "3x3": ((1, 6, 5, 5), 9, (3, 3), (1, 1), (1, 1), 1),
    "strided": ((2, 7, 6, 4), 6, (3, 2), (2, 3), (1, 0), 1),
    "1x1": ((1, 3, 4, 8), 33, (1, 1), (1, 1), (0, 0), 1),
    "groups": ((1, 4, 4, 8), 4, (3, 3), (1, 1), (1, 1), 2),
    "depthwise": ((1, 6, 5, 19), 19, (3, 3), (1, 1), (1, 1), 19),
    "depthwise strided": ((1, 7, 7, 8), 8, (3, 3), (2, 2), (1, 1), 8),
    "one channel": ((1, 9, 7, 1), 10, (4, 3), (2, 2), (1, 1), 1),
}


@pytest.mark.parametrize("out", BYTES)
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("name", CONVS)
def test_q31_conv_is_tflites(name: str, dtype: str, out: str) -> None:
    shape, channels, kernel, strides, pads, groups = CONVS[name]
    x, weight = values(shape, dtype, 1), values((channels, shape[3] // groups, *kernel), "int8", 2)
    rng = np.random.default_rng(3)
    bias, zero = rng.integers(-3000, 3000, channels).astype(np.int32), 7
    pairs = [tflite.multiplier_of(float(real)) for real in np.exp2(rng.uniform(-12, -5, channels))]
    multiplier, shift = (np.array(column) for column in zip(*pairs, strict=True))
    extents = [(shape[1 + i] + 2 * pads[i] - kernel[i]) // strides[i] + 1 for i in range(2)]
    got, want = poisoned((shape[0], *extents, channels), out), np.zeros((shape[0], *extents, channels), out)
    attrs = {"strides": strides, "dilations": (1, 1), "pads": (pads[0], pads[0], pads[1], pads[1]), "groups": groups}
    operands = [x, weight, multiplier.astype("int32"), bias, np.array(zero, dtype), None, shift.astype("int8")]
    run_every_cut("q31_conv", operands, [got], **attrs, output_zero=3, low=3, high=120)
    tflite.conv(x, weight, bias, zero, pairs, strides, pads, groups, want, 3, 3, 120)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("dtype", BYTES)
def test_q31_add_and_mul_are_tflites(dtype: str) -> None:
    x, y = (a.reshape(16, 4096) for a in np.meshgrid(np.arange(256), np.arange(256)))
    low, high = bounds(dtype)
    x, y = (x + low).astype(dtype), (y + low).astype(dtype)
    rng = np.random.default_rng(5)
    at = rng.choice(x.size, 3000, replace=False)
    for grids in (
        [(0.013, low + 3), (0.0071, low + 131), (0.017, low + 9)],
        [(0.5, low), (0.5, low), (1.0, low + 128)],
    ):
        (x_scale, x_zero), (y_scale, y_zero), (scale, zero) = grids
        twice = 2 * max(x_scale, y_scale)
        attrs = {"x_zero": x_zero, "y_zero": y_zero, "output_zero": zero, "low": low, "high": high - 20}
        added, scaled = poisoned(x.shape, dtype), poisoned(x.shape, dtype)
        multipliers = {}
        numbers = {"x": x_scale / twice, "y": y_scale / twice, "output": twice / (2**20 * scale)}
        for name, number in numbers.items():
            multipliers[f"{name}_multiplier"], multipliers[f"{name}_shift"] = tflite.multiplier_of(number)
        run_every_cut("q31_add", [x, y], [added], **attrs, **multipliers)
        multiplier, shift = tflite.multiplier_of(x_scale * y_scale / scale)
        run_every_cut("q31_mul", [x, y], [scaled], **attrs, multiplier=multiplier, shift=shift)
        for i in at:
            a, b = int(x.flat[i]), int(y.flat[i])
            assert added.flat[i] == tflite.add(a, b, grids, low, high - 20)
            assert scaled.flat[i] == tflite.mul(a, b, grids, low, high - 20)


@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize("pixels", [1, 3, 35, 49])
def test_q31_mean_is_tflites(pixels: int, dtype: str) -> None:
    x, (low, high) = values((1, pixels, 1, 37), dtype, pixels), bounds(dtype)
    grids = [(0.02, low + 9), (0.013, low + 100)]
    multiplier, shift = tflite.multiplier_of(grids[0][0] / grids[1][0])
    room = pixels.bit_length() - 1
    out = poisoned((1, 1, 1, 37), dtype)
    attrs = {"axes": (1, 2), "keep_dims": 1, "count": pixels, "x_zero": low + 9, "output_zero": low + 100}
    run_every_cut("q31_mean", [x], [out], **attrs, multiplier=(multiplier << room) // pixels, shift=shift - room)
    assert out.reshape(-1).tolist() == [tflite.mean(x[0, :, 0, c].tolist(), grids, low, high) for c in range(37)]


@pytest.mark.parametrize("dtype", BYTES)
def test_q31_avg_pool_is_tflites(dtype: str) -> None:
    x = values((2, 7, 6, 21), dtype, 4)
    out = poisoned((2, 4, 3, 21), dtype)
    attrs = {"kernel_sizes": (3, 2), "strides": (2, 2), "dilations": (1, 1), "pads": (1, 1, 0, 0), "ceil_mode": 0}
    run_every_cut("q31_avg_pool", [x], [out], **attrs)
    for n, oy, ox, c in np.ndindex(*out.shape):
        taps = [int(pixel[c]) for _, pixel in tflite.window(x[n], (oy, ox), (3, 2), (2, 2), (1, 0))]
        assert out[n, oy, ox, c] == tflite.average(taps)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
@pytest.mark.parametrize("n", [1, 17, 256, 700])
def test_q31_softmax_is_tflites(n: int, dtype: str) -> None:
    """All bytes are in a row of 256."""
    powers = np.floor(np.exp(-np.arange(256) * 0.031) * (2**31 - 1)).astype(np.int32)
    powers[200:] = 0
    x = values((4, 5, n), "int8", n)
    x[0, 0] = np.arange(n) % 256 - 128
    x[0, 1] = 3
    out, turned = poisoned(x.shape, dtype), poisoned((4, n, 5), dtype)
    run_every_cut("q31_softmax", [x, powers], [out], axis=2)
    run_every_cut("q31_softmax", [np.ascontiguousarray(x.swapaxes(1, 2)), powers], [turned], axis=-2)
    assert np.array_equal(turned.swapaxes(1, 2), out)
    info = np.iinfo(dtype)
    for i in np.ndindex(4, 5):
        steps = tflite.softmax(x[i].tolist(), powers.tolist(), info.bits)
        assert (out[i].astype(np.int64) - info.min).tolist() == steps


def test_q31_softmax_of_a_long_row_is_a_share() -> None:
    """A sum beyond 32 bits: each share is less than half a step."""
    powers, out = np.full(256, 2**31 - 1, np.int32), poisoned((1, 9000), "uint8")
    run_every_cut("q31_softmax", [np.zeros((1, 9000), np.uint8), powers], [out], axis=1)
    assert not out.any()


@pytest.mark.parametrize(("axis", "entries"), [(2, 256), (0, 255)])
def test_q31_softmax_refuses_what_does_not_fit(axis: int, entries: int) -> None:
    with pytest.raises(Error, match=r"\[q31_softmax\]"):
        run(
            "q31_softmax",
            [np.zeros((2, 3), "int8"), np.zeros(entries, "int32")],
            [np.zeros((2, 3), "int8")],
            {"axis": axis},
        )


@pytest.mark.parametrize(
    "change", [{"shift": 31}, {"shift": -32}, {"multiplier": -1}, {"output_zero": 128}, {"low": 128}]
)
def test_q31_mul_refuses_what_does_not_fit(change: dict[str, int]) -> None:
    attrs = {"x_zero": 0, "y_zero": 0, "multiplier": 1 << 30, "shift": 0, "output_zero": 0, "low": -128, "high": 255}
    with pytest.raises(Error, match=r"\[q31_mul\]"):
        run("q31_mul", [np.ones(3, "int8")] * 2, [np.ones(3, "int8")], {**attrs, **change})
