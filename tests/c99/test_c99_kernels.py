"""The kernels of the C99 runtime beside the host's of the same names, on plans of one step, whole and through rings."""

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hexane import _core
from hexane.emit.plan_view import supported
from hexane.errors import Error
from hexane.ops import OPS
from hexane.runtime.c99 import C99Model
from plans import PlanBuilder
from tflite_model import near_halves

Array = NDArray[Any]
ULP = 2  # of one function of one number, in which only roundings differ
SUM = 1e-5  # of the largest number, where terms are added in another order


def one_step(
    kernel: str,
    inputs: Sequence[Array | None],
    output: tuple[Sequence[int], str],
    weights: Sequence[int] = (),
    **attrs: Any,
) -> tuple[PlanBuilder, list[Array]]:
    """A plan of that step; inputs numbered in `weights` are constants of it, the others ports, which come second."""
    plan = PlanBuilder()
    constants = [inputs[i] for i in weights]
    space, at = plan.space("weights", sum(-(-a.nbytes // 8) * 8 for a in constants)) if constants else 0, 0
    ids: list[int | None] = []
    fed = []
    for i, array in enumerate(inputs):
        if array is None:
            ids.append(None)
        elif i in weights:
            ids.append(plan.tensor(space, array.shape, NAMES[array.dtype], offset=at))
            plan.weights += array.tobytes() + bytes(-array.nbytes % 8)
            at += array.nbytes + -array.nbytes % 8
        else:
            ids.append(plan.port("inputs", f"x{i}", array.shape, NAMES[array.dtype]))
            fed.append(array)
    y = plan.port("outputs", "y", output[0], output[1])
    plan.step(kernel, ids, [y], **attrs)
    return plan, fed


NAMES = {
    np.dtype(n): h
    for n, h in {"i1": "int8", "u1": "uint8", "i4": "int32", "f4": "fp32", "i2": "int16", "i8": "int64"}.items()
}


def both(plan: PlanBuilder, fed: Sequence[Array], runtime: ctypes.CDLL) -> tuple[Array, Array]:
    """The output by the C99 runtime and by the host."""
    data = bytes(plan.tobytes())
    model = C99Model(data, runtime)
    got = model({port.name: array for port, array in zip(model.inputs, fed, strict=True)})["y"]
    program = _core.Program(np.frombuffer(data, np.uint8).copy(), threads=1)
    return got, np.asarray(program.run(list(fed))[0])


def assert_same_bits(got: Array, need: Array) -> None:
    assert got.dtype == need.dtype
    assert got.tobytes() == need.tobytes(), f"{np.count_nonzero(got != need)} of {got.size} differ"


def assert_within_ulp(got: Array, need: Array, most: int = ULP) -> None:
    assert np.array_equal(np.isnan(got), np.isnan(need))
    bits = [np.where(b < 0, -(b & 0x7FFFFFFF), b).astype(np.int64) for b in (got.view(np.int32), need.view(np.int32))]
    apart = np.abs(bits[0] - bits[1])[~np.isnan(need)]
    assert apart.max(initial=0) <= most, f"{apart.max()} ulp apart"


def assert_near(got: Array, need: Array) -> None:
    assert np.abs(got - need).max(initial=0) <= SUM * max(np.abs(need).max(initial=0), 1e-30)


def bytes_of(rng: np.random.Generator, shape: Sequence[int], dtype: str) -> Array:
    low = -128 if dtype == "int8" else 0
    return rng.integers(low, low + 256, shape).astype(dtype)


def test_every_kernel_and_activation_has_a_name_of_the_hosts():
    kernels, activations = supported()
    host = {row["name"] for row in _core.kernels()}
    assert {*kernels, *activations} - host == {"unary"}


WINDOWS = {
    "3x3": ((1, 7, 6, 5), 9, (3, 3), [1, 1], [1, 1], [1, 1, 1, 1], 1),
    "strided": ((2, 9, 8, 4), 6, (3, 2), [2, 3], [1, 1], [1, 0, 0, 1], 1),
    "dilated": ((1, 9, 9, 3), 5, (3, 3), [1, 1], [2, 3], [2, 2, 3, 3], 1),
    "1x1": ((1, 4, 5, 8), 12, (1, 1), [1, 1], [1, 1], [0, 0, 0, 0], 1),
    "groups": ((1, 6, 6, 8), 4, (3, 3), [1, 1], [1, 1], [1, 1, 1, 1], 2),
    "depthwise": ((1, 6, 7, 5), 5, (3, 3), [2, 1], [1, 1], [1, 1, 1, 1], 5),
    "multiplier": ((1, 6, 7, 3), 6, (3, 3), [1, 1], [1, 1], [1, 1, 1, 1], 3),
    "one axis": ((2, 11, 4), 6, (5,), [2], [1], [2, 2], 1),
    "large pad": ((1, 3, 3, 2), 3, (3, 3), [1, 1], [1, 1], [4, 4, 4, 4], 1),
}


def window(name: str) -> tuple[Any, ...]:
    shape, out_c, kernel, strides, dilations, pads, groups = WINDOWS[name]
    extents = [
        (shape[1 + i] + pads[2 * i] + pads[2 * i + 1] - (kernel[i] - 1) * dilations[i] - 1) // strides[i] + 1
        for i in range(len(kernel))
    ]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    return shape, (out_c, shape[-1] // groups, *kernel), (shape[0], *extents, out_c), attrs


EPILOGUES: dict[str, list[tuple[str, float, float, int]]] = {
    "none": [],
    "relu": [("relu", 0, 0, -1)],
    "clip": [("clip", -0.5, 1.25, -1)],
    "sigmoid": [("sigmoid", 0, 0, -1)],
}


@pytest.mark.parametrize("out", ["int8", "uint8", "fp32", "int32"])
@pytest.mark.parametrize(("x", "w"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int8", "uint8")])
@pytest.mark.parametrize("name", WINDOWS)
def test_quantized_conv_has_the_hosts_bits(c99, name, x, w, out):
    rng = np.random.default_rng([*f"{name}{x}{w}{out}".encode()])
    shape, weight, result, attrs = window(name)
    scale = None if out == "int32" else rng.uniform(0.001, 0.02, weight[0]).astype(np.float32)
    zeros = [bytes_of(rng, (), x), bytes_of(rng, (weight[0],), w)]
    bias = rng.integers(-2000, 2000, weight[0]).astype(np.int32)
    inputs = [bytes_of(rng, shape, x), bytes_of(rng, weight, w), scale, bias, *zeros]
    epilogue = [] if out == "int32" else EPILOGUES["clip"]
    zero = 7 if out in ("int8", "uint8") else 0
    plan, fed = one_step(
        "quantized_conv",
        inputs,
        (result, out),
        [i for i in range(1, 6) if inputs[i] is not None],
        **attrs,
        output_scale=0.03,
        output_zero=zero,
        epilogue=epilogue,
    )
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("out", ["int8", "uint8"])
@pytest.mark.parametrize(("x", "w"), [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8")])
@pytest.mark.parametrize("name", WINDOWS)
def test_q31_conv_has_the_hosts_bits(c99, name, x, w, out):
    rng = np.random.default_rng([*f"{name}{x}{w}{out}".encode()])
    shape, weight, result, attrs = window(name)
    channels = weight[0]
    zeros = [bytes_of(rng, (), x), bytes_of(rng, (channels,), w) if w == "uint8" else None]
    bias = rng.integers(-2000, 2000, channels).astype(np.int32)
    multiplier = rng.integers(1 << 30, 1 << 31, channels).astype(np.int32)
    shift = rng.integers(-12, 3, channels).astype(np.int8)
    inputs = [bytes_of(rng, shape, x), bytes_of(rng, weight, w), multiplier, bias, *zeros, shift]
    plan, fed = one_step(
        "q31_conv",
        inputs,
        (result, out),
        [i for i in range(1, 7) if inputs[i] is not None],
        **attrs,
        output_zero=7,
        low=5,
        high=120,
    )
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("transpose", [0, 1])
@pytest.mark.parametrize("k", [1, 37, 128, 300])
def test_q31_matmul_has_the_hosts_bits(c99, k, transpose):
    rng = np.random.default_rng(k)
    y = bytes_of(rng, (35, k) if transpose else (k, 35), "int8")
    inputs = [
        bytes_of(rng, (2, 3, k), "int8"),
        y,
        np.array(1 << 30, np.int32),
        None,
        np.array(-3, np.int8),
        None,
        np.array(-9, np.int8),
    ]
    attrs = {"transpose_y": transpose, "output_zero": -5, "low": -128, "high": 255}
    plan, fed = one_step("q31_matmul", inputs, ((2, 3, 35), "int8"), [1, 2, 4, 6], **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("seed", range(4))
def test_q31_matmul_scales_once_with_the_hosts_bits(c99, seed):
    """4 million sums: products of any size, and a few units in the last place beside a half. The host multiplies
    doubles, the device whole numbers."""
    rng, count = np.random.default_rng(seed), 500_000
    bias, reals = near_halves(rng, count)
    any_bias = np.trunc(np.exp2(rng.uniform(0, 31, count))) * rng.choice([-1, 1], count)
    any_reals = np.exp2(rng.uniform(-34, 32, count))
    bias, reals = np.concatenate([bias, any_bias.astype(np.int32)]), np.concatenate([reals, any_reals])
    fractions, shifts = np.frexp(reals)
    digits = np.where(shifts < -31, 0, (fractions * 2**53)).astype(np.int64)
    inputs = [
        np.zeros((1, 1), np.int8),
        np.zeros((2 * count, 1), np.int8),
        digits,
        bias,
        None,
        None,
        np.clip(shifts, -31, 30).astype(np.int8),
    ]
    attrs = {"transpose_y": 1, "output_zero": int(rng.integers(-128, 128)), "low": -128, "high": 127}
    plan, fed = one_step("q31_matmul", inputs, ((1, 2 * count), "int8"), [1, 2, 3, 6], **attrs)
    got, want = both(plan, fed, c99)
    assert_same_bits(got, want)
    assert len(np.unique(want)) == 256


@pytest.mark.parametrize(("x", "y", "out"), [("int8", "int8", "int8"), ("uint8", "int8", "uint8")])
def test_q31_add_mul_and_mean_have_the_hosts_bits(c99, x, y, out):
    rng = np.random.default_rng(11)
    a, b = bytes_of(rng, (2, 3, 4, 7), x), bytes_of(rng, (4, 7), y)
    zeros = {"x_zero": 3, "y_zero": 5, "output_zero": 9, "low": 0, "high": 200}
    first = {"x_multiplier": 1999999999, "x_shift": -1, "y_multiplier": 1 << 30, "y_shift": 0}
    last = {"output_multiplier": 1500000000, "output_shift": -18}
    plan, fed = one_step("q31_add", [a, b], (a.shape, out), **zeros, **first, **last)
    assert_same_bits(*both(plan, fed, c99))
    plan, fed = one_step("q31_mul", [a, b], (a.shape, out), **zeros, multiplier=1987654321, shift=-7)
    assert_same_bits(*both(plan, fed, c99))
    mean = {"axes": [1, 2], "keep_dims": 1, "count": 12, "x_zero": 3, "multiplier": 1431655765, "shift": -3}
    plan, fed = one_step("q31_mean", [a], ((2, 1, 1, 7), out), **mean, output_zero=4)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("out", ["int8", "uint8", "int16"])
@pytest.mark.parametrize(("axis", "n"), [(1, 9), (2, 700), (-1, 256)])
def test_q31_softmax_has_the_hosts_bits(c99, axis, n, out):
    rng = np.random.default_rng(n)
    powers = np.floor(np.exp(-np.arange(256) * 0.04) * (2**31 - 1)).astype(np.int32)
    for dtype in ("int8", "uint8"):
        x = bytes_of(rng, (3, n, 5) if axis == 1 else (3, 5, n), dtype)
        x[0] = 7
        plan, fed = one_step("q31_softmax", [x, powers], (x.shape, out), [1], axis=axis)
        assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("symmetric", [0, 1])
@pytest.mark.parametrize(("axis", "shape"), [(0, (33,)), (1, (5, 2, 3, 19)), (-1, (2, 40, 7))])
def test_quantize_by_range_has_the_hosts_bits(c99, axis, shape, symmetric):
    rng = np.random.default_rng(axis + 5)
    grid = [d if i < axis % len(shape) else 1 for i, d in enumerate(shape)]
    plan = PlanBuilder()
    x = plan.port("inputs", "x", shape, "fp32")
    outputs = [plan.port("outputs", name, s, t) for name, s, t in
               (("q", shape, "int8"), ("scale", grid, "fp32"), ("zero", grid, "fp32"))]  # fmt: skip
    plan.step("quantize_by_range", [x], outputs, axis=axis, symmetric=symmetric)
    data = bytes(plan.tobytes())
    host, device = _core.Program(np.frombuffer(data, np.uint8).copy(), threads=1), C99Model(data, c99)
    for fed in (
        rng.standard_normal(shape) * 10.0 ** rng.integers(-38, 38, grid),
        rng.integers(-254, 255, shape) * 0.5,
        rng.integers(3, 9, shape) * 0.25 * rng.choice([0, 1, -1], grid),
        np.where(rng.random(shape) < 0.1, rng.choice([np.nan, np.inf, -np.inf], shape), 1),
    ):
        there = device({"x": fed.astype(np.float32)})
        for name, want in zip(("q", "scale", "zero"), host.run([fed.astype(np.float32)]), strict=True):
            assert np.array_equal(there[name], np.asarray(want), equal_nan=name != "q")


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_q31_avg_pool_has_the_hosts_bits(c99, dtype):
    x = bytes_of(np.random.default_rng(12), (2, 9, 8, 5), dtype)
    attrs = {"kernel_sizes": [3, 2], "strides": [2, 3], "dilations": [1, 2], "pads": [1, 1, 0, 1], "ceil_mode": 0}
    plan, fed = one_step("q31_avg_pool", [x], ((2, 5, 3, 5), dtype), **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("bias", [None, np.int32, np.float32])
def test_quantized_products_with_every_epilogue_and_bias(c99, bias, epilogue):
    rng = np.random.default_rng(3)
    inputs = [
        bytes_of(rng, (2, 3, 37), "int8"),
        bytes_of(rng, (10, 37), "int8"),
        np.array(0.0037, np.float32),
        None if bias is None else rng.integers(-500, 500, 10).astype(bias),
        np.array(-3, np.int8),
    ]
    constants = [i for i in range(1, 5) if inputs[i] is not None]
    attrs = {"transpose_y": 1, "output_scale": 0.011, "output_zero": -5, "epilogue": EPILOGUES[epilogue]}
    plan, fed = one_step("quantized_matmul", inputs, ((2, 3, 10), "int8"), constants, **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("scale", [0.5, 0.125, 0.0371, 1e-6, 3e-39, 1.0, 1e30], ids=str)
@pytest.mark.parametrize("bias", [0.0, 0.5, -7.25, 3e4, -1e9])
def test_the_bits_are_the_same_where_multiply_adds_do_not_fuse(c99_baseline, scale, bias):
    """Many sums lie on halves of a step, or as near to them as floats can."""
    rng = np.random.default_rng(6)
    scales = np.float32(scale) * np.where(np.arange(40) % 3, 1, 1 + rng.integers(-4, 5, 40) * 2.0**-23).astype(
        np.float32
    )
    inputs = [bytes_of(rng, (300, 5), "int8"), bytes_of(rng, (40, 5), "int8"), scales, np.full(40, bias, np.float32)]
    attrs = {"transpose_y": 1, "output_scale": 1.0, "output_zero": -5, "epilogue": []}
    plan, fed = one_step("quantized_matmul", inputs, ((300, 40), "int8"), [1, 2, 3], **attrs)
    assert_same_bits(*both(plan, fed, c99_baseline))


def test_sums_near_a_half_are_rounded_once_where_multiply_adds_do_not_fuse(c99_baseline):
    """Each column has a bias with which one of its sums is a half of a step, but for what floats lose."""
    rng = np.random.default_rng(7)
    x, y = bytes_of(rng, (400, 40), "int8"), bytes_of(rng, (400, 40), "int8")
    scales = rng.uniform(1e-3, 2e-3, 400).astype(np.float32)
    real = np.diagonal(x.astype(np.float64) @ y.T.astype(np.float64)) * scales
    bias = (rng.integers(-90, 90, 400) + 0.5 - real).astype(np.float32)
    attrs = {"transpose_y": 1, "output_scale": 1.0, "output_zero": 0, "epilogue": []}
    plan, fed = one_step("quantized_matmul", [x, y, scales, bias], ((400, 400), "int8"), [1, 2, 3], **attrs)
    assert_same_bits(*both(plan, fed, c99_baseline))


def test_quantized_matmul_broadcasts_leading_axes(c99):
    rng = np.random.default_rng(4)
    inputs = [bytes_of(rng, (2, 1, 5, 6), "uint8"), bytes_of(rng, (3, 6, 4), "int8"), np.array(0.01, np.float32)]
    attrs = {"transpose_y": 0, "output_scale": 0.05, "output_zero": 100, "epilogue": []}
    plan, fed = one_step("quantized_matmul", inputs, ((2, 3, 5, 4), "uint8"), [2], **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("epilogue", [[], [("relu", 0, 0, -1)], [("sigmoid", 0, 0, -1)]])
@pytest.mark.parametrize(
    ("x", "y", "out"), [("int8", "int8", "int8"), ("uint8", "int8", "uint8"), ("int8", "uint8", "int8")]
)
def test_quantized_add_has_the_hosts_bits(c99, x, y, out, epilogue):
    rng = np.random.default_rng(5)
    attrs = {"x_scale": 0.013, "x_zero": 3, "y_scale": 0.0071, "y_zero": 5, "output_scale": 0.017, "output_zero": 9}
    plan, fed = one_step(
        "quantized_add",
        [bytes_of(rng, (2, 3, 4, 7), x), bytes_of(rng, (4, 7), y)],
        ((2, 3, 4, 7), out),
        epilogue=epilogue,
        **attrs,
    )
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("axis", [None, 1, -1])
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_quantize_and_dequantize_have_the_hosts_bits(c99, dtype, axis):
    rng = np.random.default_rng(6)
    x = (rng.standard_normal((3, 4, 5)) * 40).astype(np.float32)
    x[0, 0, :4] = [np.nan, np.inf, -np.inf, 1e30]
    size = () if axis is None else (x.shape[axis],)
    scale = np.asarray(rng.uniform(0.1, 0.5, size), np.float32)
    zero = np.asarray(rng.integers(0, 100, size), dtype)
    plan, fed = one_step("quantize", [x, scale, zero], (x.shape, dtype), [1, 2], axis=axis or 0)
    got, need = both(plan, fed, c99)
    assert_same_bits(got, need)
    plan, fed = one_step("dequantize", [need, scale, zero], (x.shape, "fp32"), [1, 2], axis=axis or 0)
    assert_same_bits(*both(plan, fed, c99))


def test_quantize_rounds_halves_to_even_and_saturates(c99):
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 127.5, 128.5, -129, 1e20, -1e20, 8388609.0], np.float32)
    plan, fed = one_step("quantize", [x, np.array(1, np.float32), None], (x.shape, "int8"), [1], axis=0)
    got, need = both(plan, fed, c99)
    assert_same_bits(got, need)
    assert got.tolist() == [0, 2, 2, 0, -2, 127, 127, -128, 127, -128, 127]


def test_lookup_and_copies_have_the_hosts_bits(c99):
    rng = np.random.default_rng(7)
    x = bytes_of(rng, (3, 5, 7), "int8")
    plan, fed = one_step("lookup", [x, bytes_of(rng, (256,), "int8")], (x.shape, "int8"), [1])
    assert_same_bits(*both(plan, fed, c99))
    plan = PlanBuilder()
    plan.port("inputs", "x", x.shape, "int8")
    plan.port("outputs", "y", (7, 3, 5), "int8")
    turned = plan.tensor(0, (7, 3, 5), "int8", strides=(1, 35, 7))
    plan.step("copy", [turned], [1])
    got, need = both(plan, [x], c99)
    assert_same_bits(got, need)
    assert_same_bits(got, np.ascontiguousarray(x.transpose(2, 0, 1)))


@pytest.mark.parametrize("dtype", ["int8", "uint8", "fp32"])
@pytest.mark.parametrize("ceil", [0, 1])
def test_max_pool_has_the_hosts_bits(c99, dtype, ceil):
    rng = np.random.default_rng(8)
    x = rng.standard_normal((2, 9, 8, 5)).astype(np.float32) if dtype == "fp32" else bytes_of(rng, (2, 9, 8, 5), dtype)
    attrs = {"kernel_sizes": [3, 2], "strides": [2, 3], "dilations": [1, 2], "pads": [1, 1, 0, 1], "ceil_mode": ceil}
    plan, fed = one_step("max_pool", [x], ((2, 5, 3 + ceil * 0, 5), dtype), **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("exclude", [0, 1])
def test_avg_pool_is_the_hosts(c99, exclude):
    x = np.random.default_rng(9).standard_normal((1, 30, 31, 3)).astype(np.float32)
    for kernel in ([3, 3], [25, 26]):
        out = [30 + 2 - kernel[0] + 1, 31 + 2 - kernel[1] + 1]
        attrs = {"kernel_sizes": kernel, "strides": [1, 1], "dilations": [1, 1], "pads": [1, 1, 1, 1], "ceil_mode": 0}
        plan, fed = one_step("avg_pool", [x], ((1, *out, 3), "fp32"), **attrs, exclude_padding=exclude)
        assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("keep", [0, 1])
def test_reductions_of_images_have_the_hosts_bits(c99, op, keep):
    x = np.random.default_rng(10).standard_normal((2, 33, 21, 5)).astype(np.float32)
    shape = (2, 1, 1, 5) if keep else (2, 5)
    plan, fed = one_step(f"reduce_{op}", [x], (shape, "fp32"), axes=[1, 2], keep_dims=keep)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("axes", [[-1], [0], [], [0, 2]])
def test_other_reductions_are_near_the_hosts(c99, axes):
    x = np.random.default_rng(11).standard_normal((4, 50, 300)).astype(np.float32)
    reduced = [a % 3 for a in axes] or [0, 1, 2]
    shape = [1 if i in reduced else n for i, n in enumerate(x.shape)]
    plan, fed = one_step("reduce_mean", [x], (shape, "fp32"), axes=axes, keep_dims=1)
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize("mode", ["floor", "ceil", "round_prefer_floor", "round_prefer_ceil"])
@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_resize_nearest_has_the_hosts_bits(c99, mode, dtype):
    rng = np.random.default_rng(12)
    x = rng.standard_normal((1, 5, 7, 3)).astype(np.float32) if dtype == "fp32" else bytes_of(rng, (1, 5, 7, 3), dtype)
    attrs = {"scale_h": 5, "scale_w": 14, "offset_h": -3, "offset_w": 1, "unit_h": 9, "unit_w": 8, "mode": mode}
    plan, fed = one_step("resize_nearest", [x], ((1, 9, 4, 3), dtype), **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("axis", [-1, 1])
def test_softmax_is_near_the_hosts(c99, axis):
    x = (np.random.default_rng(13).standard_normal((3, 40, 33)) * 9).astype(np.float32)
    plan, fed = one_step("softmax", [x], (x.shape, "fp32"), axis=axis)
    got, need = both(plan, fed, c99)
    np.testing.assert_allclose(got, need, rtol=2e-6, atol=1e-37)


@pytest.mark.parametrize("name", WINDOWS)
def test_conv_is_near_the_hosts(c99, name):
    rng = np.random.default_rng([*name.encode()])
    shape, weight, result, attrs = window(name)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (shape, weight, (weight[0],), result)]
    epilogue = [("silu", 0, 0, -1), ("add", 0, 0, 3), ("relu6", 0, 0, -1)]
    plan, fed = one_step("conv", inputs, (result, "fp32"), [1, 2], **attrs, epilogue=epilogue)
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize(("tx", "ty"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_matmul_is_near_the_hosts(c99, tx, ty):
    rng = np.random.default_rng(14)
    x = rng.standard_normal((3, 700, 6) if tx else (3, 6, 700)).astype(np.float32)
    y = rng.standard_normal((9, 700) if ty else (700, 9)).astype(np.float32)
    bias, extra = (rng.standard_normal(s).astype(np.float32) for s in ((9,), (3, 6, 9)))
    attrs = {"transpose_x": tx, "transpose_y": ty, "epilogue": [("add", 0, 0, 3), ("leaky_relu", 0.1, 0, -1)]}
    plan, fed = one_step("matmul", [x, y, bias, extra], ((3, 6, 9), "fp32"), [1, 2], **attrs)
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize("tx", [0, 1])
@pytest.mark.parametrize(("bits", "palette"), [(4, 0), (4, 1), (8, 0)])
def test_encoded_matmul_is_near_the_hosts(c99, bits, palette, tx):
    rng = np.random.default_rng(15)
    x = rng.standard_normal((3, 700, 6) if tx else (3, 6, 700)).astype(np.float32)
    weight = rng.integers(0, 256, (24, 700 * bits // 8), np.uint8)
    numbers = rng.standard_normal((3, 2**bits - 1) if palette else (14, 24)).astype(np.float32)
    bias, extra = (rng.standard_normal(s).astype(np.float32) for s in ((24,), (3, 6, 24)))
    attrs = {"bits": bits, "palette": palette, "transpose_x": tx, "epilogue": [("add", 0, 0, 4), ("relu", 0, 0, -1)]}
    inputs = [x, weight, numbers, bias, extra]
    plan, fed = one_step("encoded_matmul", inputs, ((3, 6, 24), "fp32"), [1, 2, 3], **attrs)
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize("name", ["3x3", "line"])
@pytest.mark.parametrize(("bits", "palette"), [(4, 0), (4, 1), (8, 0)])
def test_encoded_conv_is_near_the_hosts(c99, bits, palette, name):
    rng = np.random.default_rng(16)
    shape, kernel, result, strides, dilations, pads = {
        "3x3": ((2, 9, 8, 12), [3, 3], (2, 5, 6, 16), [2, 1], [1, 1], [1, 1, 0, 0]),
        "line": ((1, 30, 12), [4], (1, 29, 16), [1], [2], [3, 2]),
    }[name]
    terms = math.prod(kernel) * 12
    x = rng.standard_normal(shape).astype(np.float32)
    weight = rng.integers(0, 256, (16, terms * bits // 8), np.uint8)
    numbers = rng.standard_normal((2, 2**bits - 1) if palette else (terms // 4, 16)).astype(np.float32)
    bias, extra = (rng.standard_normal(s).astype(np.float32) for s in ((16,), result))
    attrs = {"bits": bits, "palette": palette, "kernel_sizes": kernel, "strides": strides, "dilations": dilations, "pads": pads,
             "epilogue": [("add", 0, 0, 4), ("relu", 0, 0, -1)]}  # fmt: skip
    plan, fed = one_step("encoded_conv", [x, weight, numbers, bias, extra], (result, "fp32"), [1, 2, 3], **attrs)
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
@pytest.mark.parametrize("dtype", ["int8", "fp32"])
def test_pad_has_the_hosts_bits(c99, dtype, mode):
    rng = np.random.default_rng(17)
    x = rng.standard_normal((2, 5, 4, 3)).astype(np.float32) if dtype == "fp32" else bytes_of(rng, (2, 5, 4, 3), dtype)
    attrs = {"begin": [0, 2, -1, 1], "end": [0, 4, 3, -1], "mode": mode, "value": -3}
    plan, fed = one_step("pad", [x], ((2, 11, 6, 3), dtype), **attrs)
    assert_same_bits(*both(plan, fed, c99))


TRANSPOSED = {
    "2x2": ((1, 4, 5, 6), (6, 8, 2, 2), (1, 8, 10, 8), [2, 2], [1, 1], [0, 0, 0, 0], [0, 0], 1),
    "overlapping": ((2, 4, 3, 4), (4, 3, 4, 3), (2, 7, 7, 6), [2, 3], [1, 1], [1, 2, 1, 1], [0, 0], 2),
    "dilated": ((1, 5, 4, 3), (3, 2, 3, 2), (1, 14, 7, 2), [2, 1], [2, 3], [0, 0, 0, 0], [1, 0], 1),
}


@pytest.mark.parametrize("name", TRANSPOSED)
def test_conv_transpose_is_near_the_hosts(c99, name):
    x, w, out, strides, dilations, pads, more, groups = TRANSPOSED[name]
    rng = np.random.default_rng(18)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in (x, w, (out[-1],))]
    attrs = {"strides": strides, "dilations": dilations, "pads": pads, "output_padding": more, "groups": groups}
    plan, fed = one_step("conv_transpose", inputs, (out, "fp32"), [1, 2], **attrs, epilogue=[("relu", 0, 0, -1)])
    assert_near(*both(plan, fed, c99))


@pytest.mark.parametrize("op", ["layer_norm", "rms_norm"])
def test_norms_are_near_the_hosts(c99, op):
    rng = np.random.default_rng(19)
    inputs = [rng.standard_normal(s).astype(np.float32) for s in ((3, 4, 700), (700,), (700,))][: 3 - (op[0] == "r")]
    plan, fed = one_step(op, inputs, ((3, 4, 700), "fp32"), [*range(1, len(inputs))], axes=[-1], epsilon=1e-5)
    assert_near(*both(plan, fed, c99))


EXACT = ("add", "sub", "mul", "real_div", "maximum", "minimum", "prelu")


@pytest.mark.parametrize("op", EXACT)
def test_binary_ops_have_the_hosts_bits(c99, op):
    rng = np.random.default_rng(15)
    a, b = rng.standard_normal((4, 1, 9)).astype(np.float32), rng.standard_normal((3, 9)).astype(np.float32)
    attrs = {"epilogue": [("relu", 0, 0, -1)]} if op in EXACT[:4] else {}
    plan, fed = one_step(op, [a, b], ((4, 3, 9), "fp32"), **attrs)
    assert_same_bits(*both(plan, fed, c99))


NUMBERS = {"celu": (0.7,), "clip": (-1, 2.5), "elu": (0.9,), "leaky_relu": (0.2,), "linear_activation": (1.5, -0.25)}
NUMBERS |= {"scaled_tanh": (1.7, 0.6), "selu": (1.67, 1.05), "sigmoid_hard": (0.2, 0.5), "threshold": (0.3,)}
NUMBERS |= {"thresholded_relu": (0.4,)}


@pytest.mark.parametrize("op", [op for op in supported()[1] if op != "tan"])  # the host's is 3 ulp from the tangent
def test_activations_are_within_two_ulp_of_the_hosts(c99, op):
    rng = np.random.default_rng(16)
    edges = [
        0.0,
        -0.0,
        np.inf,
        -np.inf,
        np.nan,
        1e-40,
        -1e-40,
        0.5,
        -0.5,
        1.5,
        2.5,
        88.8,
        -103.5,
        1e30,
        -1e30,
        3,
        -3,
        6,
    ]
    x = np.concatenate(
        [edges, rng.standard_normal(4000) * 3, rng.standard_normal(2000) * 60, np.geomspace(1e-30, 1e30, 500)]
    )
    x = x.astype(np.float32)
    attrs = dict(zip(("alpha", "beta"), NUMBERS.get(op, ()), strict=False))
    plan, fed = one_step(op, [x], (x.shape, "fp32"), **attrs)
    got, need = both(plan, fed, c99)
    if op == "log":
        got, need = got[x >= 0], need[x >= 0]  # the sign of NaN is nobody's
    assert_within_ulp(got, need)


@pytest.mark.parametrize("op", ["sin", "cos", "tan", "sinh", "cosh", "exp2"])
def test_trigonometry_is_within_an_ulp_of_fp64(c99, op):
    rng = np.random.default_rng(20)
    x = np.concatenate([rng.uniform(-9, 9, 3000), rng.standard_normal(300) * 1e-3, [0.0, -0.0, 1e-30]])
    if op in ("sin", "cos", "tan"):
        x = np.concatenate([x, rng.standard_normal(3000) * 1e6, 10.0 ** rng.uniform(8, 38, 3000), [2.0**30, 3e38]])
    x = x.astype(np.float32)
    plan, fed = one_step(op, [x], (x.shape, "fp32"))
    need = getattr(np, op)(x.astype(np.float64)).astype(np.float32)
    assert_within_ulp(both(plan, fed, c99)[0], need, 1)


def test_a_kernel_that_is_not_there_is_refused_by_name(c99):
    plan, _ = one_step("atan", [np.zeros(4, np.float32)], ((4,), "fp32"))
    with pytest.raises(Error, match=r"atan"):
        C99Model(bytes(plan.tobytes()), c99)


def test_a_row_passes_through_a_ring(c99):
    """y = quantize(dequantize(x)) row by row, through a ring of one row, and one of two that it goes round in."""
    x = np.arange(5 * 6, dtype=np.int8).reshape(1, 5, 6)
    for ring, rows in ((1, 1), (2, 2)):
        plan = PlanBuilder()
        source, result = plan.port("inputs", "x", x.shape, "int8"), plan.port("outputs", "y", x.shape, "int8")
        weights = plan.space("weights", 8)
        plan.weights = np.array([0.5, 0], np.float32).tobytes()
        scale = plan.tensor(weights, (), "fp32")
        middle = plan.tensor(plan.space("arena", 4 * 6 * ring), x.shape, "fp32", ring=ring)
        plan.step("dequantize", [source, scale, None], [middle], (1, 0, rows), axis=0)
        plan.step("quantize", [middle, scale, None], [result], (1, 0, rows), axis=0)
        plan.loop(0, -(-5 // rows), [rows, rows])
        got, need = both(plan, [x], c99)
        assert_same_bits(got, need)
        assert_same_bits(got, x)


@pytest.mark.parametrize("x_dtype", ["int8", "uint8", "int32"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("axes", [(1, 2), (2,), (3,), (0, 1, 2, 3)])
def test_means_of_bytes_have_the_hosts_bits(c99, x_dtype, dtype, axes):
    rng = np.random.default_rng(0)
    x = rng.integers(-9999, 9999, (2, 5, 6, 7)).astype("i4") if x_dtype == "int32" else bytes_of(rng, (2, 5, 6, 7), x_dtype)  # fmt: skip
    shape = tuple(1 if axis in axes else n for axis, n in enumerate(x.shape))
    count = 100 if x_dtype == "int32" else x.size // int(np.prod(shape))
    attrs = {"x_scale": 0.37, "x_zero": 5, "output_scale": 0.11, "output_zero": 9}
    plan, fed = one_step("quantized_mean", [x], (shape, dtype), axes=axes, keep_dims=1, count=count, **attrs)
    assert_same_bits(*both(plan, fed, c99))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_sums_run_on_from_row_to_row(c99, dtype):
    x = bytes_of(np.random.default_rng(0), (1, 9, 4, 5), dtype)
    assert_same_bits(*both(*one_step("running_sum", [x], ((1, 9, 1, 5), "int32")), c99))


@pytest.mark.parametrize("kind", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("shape", [(1, 9, 4, 5), (1, 40, 30, 3), (1, 130, 129, 2), (1, 300, 7)])
def test_reductions_from_row_to_row_have_the_hosts_bits(c99, shape, kind):
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    state = OPS["cpu.running_reduce"].shape(shape, kind=kind)
    assert_same_bits(*both(*one_step("running_reduce", [x], (state, "fp32"), kind=kind), c99))


@pytest.mark.parametrize(("block", "begin", "groups"), [((2, 2), (0, 0), 1), ((2, 3), (1, 2), 2), ((1, 4), (0, 0), 3)])
def test_channels_become_pixels(c99, block, begin, groups):
    x = bytes_of(np.random.default_rng(0), (2, 3, 4, groups * block[0] * block[1] * 5), "int8")
    shape = (2, 3 * block[0] - begin[0], 4 * block[1] - begin[1], groups * 5)
    plan, fed = one_step("interleave", [x], (shape, "int8"), block=block, begin=begin, groups=groups)
    assert_same_bits(*both(plan, fed, c99))


def test_wrong_means_and_pixels_are_refused(c99):
    x = bytes_of(np.random.default_rng(0), (1, 2, 3, 8), "int8")
    grid = {"x_scale": 0.37, "x_zero": 5, "output_scale": 0.11, "output_zero": 9}
    plan, _ = one_step("quantized_mean", [x], ((1, 1, 1, 8), "int8"), axes=(1, 2), keep_dims=1, count=5, **grid)
    with pytest.raises(Error, match="count: need the elements of each result"):
        C99Model(bytes(plan.tobytes()), c99)
    plan, _ = one_step("interleave", [x], ((1, 5, 6, 2), "int8"), block=(2, 2), begin=(0, 0), groups=1)
    with pytest.raises(Error, match="output: got more pixels"):
        C99Model(bytes(plan.tobytes()), c99)
