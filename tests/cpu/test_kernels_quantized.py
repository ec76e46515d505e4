"""Products of 8-bit integers against int32 arithmetic of NumPy, and the way from sums to results, bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from test_kernels_conv import CASES as CONVS
from test_kernels_conv import reference as convolved
from test_kernels_quantize import values

from hexane.errors import Error
from kernels import Array, poisoned, poisoned_like, run, run_every_cut, same_bits

BYTES = ["int8", "uint8"]
MIXED = pytest.mark.parametrize(("x_dtype", "y_dtype"), [(x, y) for x in BYTES for y in BYTES])


def centred(x: Array, zero: Array | None) -> Array:
    """x - zero, for channels last."""
    return x.astype("int64") - (0 if zero is None else zero.astype("int64"))


def wrapped(sums: Array) -> Array:
    return np.asarray(sums).astype("int64").astype("int32")


def real(sums: Array, scale: Array, bias: Array | None) -> Array:
    if bias is not None and bias.dtype == np.int32:
        sums, bias = wrapped(sums.astype("int64") + bias), None
    f = sums.astype("float32") * scale
    return f if bias is None else f + bias


def bytes_of(steps: Array, dtype: str, zero: int) -> Array:
    info = np.iinfo(dtype)
    return np.clip(np.rint(steps) + np.float32(zero), info.min, info.max).astype(dtype)


def stored(f: Array, dtype: str, scale: float, zero: int) -> Array:
    """Real numbers behind an epilogue of functions."""
    return bytes_of(f * (np.float32(1) / np.float32(scale)), dtype, zero)


def added(a: Array, b: Array, c: Any) -> Array:
    """a * b + c, rounded once."""
    return (np.longdouble(a) * np.longdouble(b) + np.longdouble(c)).astype("float32")


def requantized(sums: Array, scale: Array, bias: Array | None, dtype: str, output_scale: float, zero: int) -> Array:
    """Sums to steps of the output by a scale of two floats."""
    if bias is not None and bias.dtype == np.int32:
        sums, bias = wrapped(sums.astype("int64") + bias), None
    ratio = scale.astype("float64") / output_scale
    high = ratio.astype("float32")
    steps = np.float32(0) if bias is None else (bias / np.float64(output_scale)).astype("float32")
    rest = added(sums.astype("float32"), (ratio - high).astype("float32"), steps)
    return bytes_of(added(sums.astype("float32"), high, rest), dtype, zero)


def pieced(
    name: str, inputs: Sequence[Any], attrs: Any, shape: Sequence[int], dtype: str, constant: bool | list[int] = True
) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    cut: dict[str, Any] = {"constants": constant if isinstance(constant, list) else [1, 2, 3, 4, 5] if constant else []}
    out = poisoned(shape, dtype)
    attrs = {"output_scale": 1.0, "output_zero": 0, "epilogue": (), **attrs}
    run(name, inputs, [out], attrs, **cut)
    for which in range(3):
        for pieces in (3, 7):
            again = poisoned(shape, dtype)
            run(name, inputs, [again], attrs, pieces=pieces, which=which, **cut)
            assert same_bits(out, again), f"{pieces} pieces of cut {which} differ from the whole"
    return out


def zeros(x_dtype: str, y_dtype: str, columns: int, per_column: bool) -> tuple[Array, Array]:
    return np.asarray(values((), x_dtype, 8)), np.asarray(values((columns,) if per_column else (), y_dtype, 9))


# ---- quantized_matmul ----

MATMULS = [
    ((1, 1), (1, 1)),
    ((1, 64), (64, 16)),
    ((5, 7), (7, 3)),
    ((6, 4), (4, 64)),
    ((17, 63), (63, 65)),
    ((65, 130), (130, 100)),
    ((13, 1000), (1000, 17)),
    ((3, 5, 9), (9, 20)),
    ((2, 3, 5, 9), (3, 9, 20)),
    ((4, 1, 7, 6), (3, 6, 33)),
    ((0, 5), (5, 3)),
    ((5, 0), (0, 3)),
    ((5, 3), (3, 0)),
]


def product(x: Array, y: Array) -> Array:
    return wrapped(np.matmul(x.astype(float), y.astype(float)))


@MIXED
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(("x", "y"), MATMULS)
def test_quantized_matmul_sums_exactly(
    x: Any, y: Any, x_dtype: str, y_dtype: str, constant: bool, transpose: bool
) -> None:
    a, b = values(x, x_dtype, 1), values(y, y_dtype, 2)
    bias = values((y[-1],), "int32", 3)
    x_zero, y_zero = zeros(x_dtype, y_dtype, y[-1], True)
    right = np.ascontiguousarray(np.swapaxes(b, -1, -2)) if transpose else b
    for zero_x, zero_y in [(None, None), (x_zero, None), (x_zero, y_zero)]:
        want = wrapped(product(centred(a, zero_x), centred(b, zero_y)).astype("int64") + bias)
        operands = [a, right, None, bias, zero_x, zero_y]
        got = pieced("quantized_matmul", operands, {"transpose_y": transpose}, want.shape, "int32", constant)
        assert same_bits(got, want)


@MIXED
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", [*BYTES, "float32"])
@pytest.mark.parametrize("bias_dtype", [None, "int32", "float32"])
@pytest.mark.parametrize("per_column", [False, True])
def test_quantized_matmul_scales_and_quantises(
    x_dtype: str, y_dtype: str, constant: bool, dtype: str, bias_dtype: str | None, per_column: bool
) -> None:
    a, b = values((19, 40), x_dtype, 1), values((40, 37), y_dtype, 2)
    x_zero, y_zero = zeros(x_dtype, y_dtype, 37, per_column)
    scale = np.abs(values((37,) if per_column else (), "float32", 3)) / np.float32(1000)
    bias = None if bias_dtype is None else values((37,), "float32", 4) * (9999 if bias_dtype == "int32" else 40)
    bias = None if bias is None else bias.astype(bias_dtype)
    sums = product(centred(a, x_zero), centred(b, y_zero))
    quantised = dtype != "float32"
    want = requantized(sums, np.asarray(scale), bias, dtype, 0.37, 11) if quantised else real(sums, scale, bias)
    attrs = {"transpose_y": False, "output_scale": 0.37, "output_zero": 11}
    operands = [a, b, np.asarray(scale), bias, x_zero, y_zero]
    assert same_bits(pieced("quantized_matmul", operands, attrs, want.shape, dtype, constant), want)


RELU, CLIP, TANH = ("relu", 0.0, 0.0, -1), ("clip", -3.0, 5.5, -1), ("tanh", 0.0, 0.0, -1)


@pytest.mark.parametrize("dtype", [*BYTES, "float32"])
@pytest.mark.parametrize(
    ("epilogue", "low", "high"),
    [
        ((RELU,), 0, np.inf),
        ((CLIP,), -3, 5.5),
        ((CLIP, RELU), 0, 5.5),
        ((RELU, CLIP), 0, 5.5),
        ((("clip", 1e9, 2e9, -1),), 1e9, 2e9),
    ],
)
def test_quantized_matmul_clamps(dtype: str, epilogue: Any, low: float, high: float) -> None:
    a, b = values((19, 40), "uint8", 1), values((40, 37), "int8", 2)
    scale = np.array(0.001, "float32")
    want = np.clip(real(product(a, b), scale, None), np.float32(low), np.float32(high))
    if dtype != "float32":
        ends = stored(np.array([low, high]), dtype, 0.05, 3)
        want = np.clip(requantized(product(a, b), scale, None, dtype, 0.05, 3), *ends)
    attrs = {"transpose_y": False, "output_scale": 0.05, "output_zero": 3, "epilogue": epilogue}
    assert same_bits(pieced("quantized_matmul", [a, b, scale], attrs, want.shape, dtype), want)


@pytest.mark.parametrize("dtype", [*BYTES, "float32"])
def test_quantized_matmul_applies_functions_and_adds(dtype: str) -> None:
    a, b = values((19, 40), "uint8", 1), values((40, 37), "int8", 2)
    scale, residual = np.array(1e-4, "float32"), values((19, 37), "float32", 3)
    f = np.tanh(real(product(a, b), scale, None))
    operands: list[Array | None] = [a, b, scale, None, None, None]
    attrs: dict[str, Any] = {"transpose_y": False, "output_scale": 0.02, "output_zero": 3, "epilogue": (TANH, RELU)}
    if dtype == "float32":
        attrs["epilogue"] = (TANH, ("add", 0.0, 0.0, 6), RELU)
        got = pieced("quantized_matmul", [*operands, residual], attrs, f.shape, dtype)
        assert np.abs(got - np.maximum(f + residual, 0)).max() < 1e-6
        return
    got = pieced("quantized_matmul", operands, attrs, f.shape, dtype)
    assert np.abs(got.astype(int) - stored(np.maximum(f, 0), dtype, 0.02, 3).astype(int)).max() <= 1


def test_sums_wrap_as_int32_does() -> None:
    k = 70000
    a, b = np.full((1, k), 255, "uint8"), np.full((k, 1), -128, "int8")
    want = np.array([[(-255 * 128 * k + 2**31) % 2**32 - 2**31]], "int32")
    for constant in (False, True):
        assert same_bits(pieced("quantized_matmul", [a, b], {"transpose_y": False}, (1, 1), "int32", constant), want)


def test_a_nan_scale_counts_as_zero_and_infinity_saturates() -> None:
    a, b = np.array([[1], [0], [-1]], "int8"), np.ones((1, 1), "int8")
    for scale, want in [(np.nan, [5, 5, 5]), (np.inf, [127, 5, -128])]:
        attrs = {"transpose_y": False, "output_zero": 5}
        got = pieced("quantized_matmul", [a, b, np.array(scale, "float32")], attrs, (3, 1), "int8")
        assert got.ravel().tolist() == want


def test_quantized_matmul_reads_and_writes_strided_matrices() -> None:
    a, b = values((9, 40), "uint8", 1)[::2, 3:25], values((44, 30), "int8", 2)[::2, 2:]
    out = poisoned((5, 33), "int32")[:, 2:30]
    attrs = {"transpose_y": False, "output_scale": 1.0, "output_zero": 0, "epilogue": ()}
    run("quantized_matmul", [a, b], [out], attrs)
    assert np.array_equal(out, product(a, b))


@pytest.mark.parametrize(
    ("change", "replaced"),
    [
        ({}, {0: np.ones((4, 5), "float32")}),
        ({}, {1: np.ones((5, 3), "bool")}),
        ({}, {0: np.ones((4, 6), "int8")}),
        ({}, {2: None}),
        ({}, {2: np.ones((2,), "float32")}),
        ({}, {2: np.ones((), "int32")}),
        ({}, {3: np.ones((), "int32")}),
        ({}, {3: np.ones((3,), "float16")}),
        ({}, {4: np.ones((1,), "int8")}),
        ({}, {4: np.ones((), "uint8")}),
        ({}, {5: np.ones((4,), "int8")}),
        ({"output_scale": 0.0}, {}),
        ({"output_scale": float("nan")}, {}),
        ({"output_zero": 128}, {}),
        ({"epilogue": (("add", 0.0, 0.0, 0),)}, {}),
        ({"epilogue": (("add", 0.0, 0.0, 9),)}, {}),
        ({"transpose_y": True}, {}),
    ],
)
def test_quantized_matmul_refuses_what_does_not_fit(change: Any, replaced: dict[int, Any]) -> None:
    operands: list[Any] = [np.ones((4, 5), "int8"), np.ones((5, 3), "int8"), np.ones((), "float32")]
    operands += [np.ones((3,), "int32"), np.ones((), "int8"), np.ones((3,), "int8")]
    attrs = {"transpose_y": False, "output_scale": 1.0, "output_zero": 0, "epilogue": ()}
    run("quantized_matmul", operands, [poisoned((4, 3), "int8")], attrs)
    for i, operand in replaced.items():
        operands[i] = operand
    with pytest.raises(Error):
        run("quantized_matmul", operands, [poisoned((4, 3), "int8")], {**attrs, **change})


# Which operands are constant: a weight alone, all but the zero point of a dynamically quantised x, all but the weight.
SOME = pytest.mark.parametrize("constant", [[1], [1, 2, 3, 5], [2, 3, 4, 5], [1, 2, 3, 4]])


@SOME
@pytest.mark.parametrize("groups", [0, 1, 3, 33])
def test_any_operand_may_change_with_every_call(constant: list[int], groups: int) -> None:
    """groups=0 is a matrix product."""
    x, x_zero, w_zero = values((2, 5, 6, 33), "int8", 1), np.array(-7, "int8"), np.array(9, "int8")
    scale = np.abs(values((33,), "float32", 3)) / np.float32(1000)
    bias = values((33,), "int32", 4) // 2**16
    if not groups:
        y = values((33, 33), "int8", 2)
        sums = product(centred(x, x_zero), centred(y, w_zero))
        operands, attrs = [x, y, scale, bias, x_zero, w_zero], {"transpose_y": False}
    else:
        w = values((33, 33 // groups, 3, 3), "int8", 2)
        window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": groups}
        sums = conv_sums(x, w, x_zero, w_zero, **window)
        operands, attrs = [x, w, scale, bias, x_zero, w_zero], window
    name = "quantized_conv" if groups else "quantized_matmul"
    want = requantized(sums, scale, bias, "int8", 3.0, 11)
    got = pieced(name, operands, {**attrs, "output_scale": 3.0, "output_zero": 11}, want.shape, "int8", constant)
    assert same_bits(got, want)


# ---- quantized_conv ----


def conv_sums(
    x: Array, w: Array, zero_x: Array | None, zero_w: Array | None, strides: Any, dilations: Any, pads: Any, groups: int
) -> Array:
    """Exact: products of two integers of 9 bits, summed in fp64."""
    weight = w.astype("int64") - (0 if zero_w is None else zero_w.reshape(-1, *[1] * (w.ndim - 1)).astype("int64"))
    return wrapped(convolved(centred(x, zero_x), weight, strides, dilations, pads, groups))


@MIXED
@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(("x", "w", "strides", "dilations", "pads", "groups"), CONVS[:-2])
def test_quantized_conv_sums_exactly(
    x_dtype: str, y_dtype: str, constant: bool, x: Any, w: Any, strides: Any, dilations: Any, pads: Any, groups: int
) -> None:
    window = {"strides": strides, "dilations": dilations, "pads": pads, "groups": groups}
    image, weight = values(x, x_dtype, 1), values(w, y_dtype, 2)
    bias = values(w[:1], "int32", 3)
    x_zero, w_zero = zeros(x_dtype, y_dtype, w[0], True)
    for zero_x, zero_w in [(None, None), (x_zero, None), (x_zero, w_zero), (None, w_zero // 2)]:
        want = wrapped(conv_sums(image, weight, zero_x, zero_w, **window).astype("int64") + bias)
        got = pieced(
            "quantized_conv", [image, weight, None, bias, zero_x, zero_w], window, want.shape, "int32", constant
        )
        assert same_bits(got, want)


@pytest.mark.parametrize(("x", "out"), [((0, 5, 5, 3), (0, 3, 3, 4)), ((1, 2, 2, 3), (1, 0, 0, 4))])
def test_quantized_conv_of_nothing(x: Any, out: Any) -> None:
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1}
    operands = [np.ones(x, "int8"), np.ones((4, 3, 3, 3), "int8")]
    assert pieced("quantized_conv", operands, window, out, "int32").size == 0


@pytest.mark.parametrize("y_dtype", BYTES)
def test_quantized_conv_of_the_farthest_weights_and_zero_points(y_dtype: str) -> None:
    info = np.iinfo(y_dtype)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": 70}
    image = np.repeat(np.array([-128, 127], "int8"), 9 * 35 * 5).reshape(1, 9, 5, 70)
    for element, zero in [(info.min, info.max), (info.max, info.min)]:
        weight, w_zero = np.full((70, 1, 3, 3), element, y_dtype), np.full((70,), zero, y_dtype)
        x_zero = np.array(-128, "int8")
        want = conv_sums(image, weight, x_zero, w_zero, **window)
        for constant in (False, True):
            operands = [image, weight, None, None, x_zero, w_zero]
            assert same_bits(pieced("quantized_conv", operands, window, want.shape, "int32", constant), want)


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("dtype", [*BYTES, "float32"])
@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (19, 1), (70, 1), (16, 16), (19, 19), (131, 131), (12, 3)])
def test_quantized_conv_scales_adds_and_quantises(dtype: str, constant: bool, channels: int, groups: int) -> None:
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (1, 1, 1, 1), "groups": groups}
    image = values((2, 6, 7, channels), "int8", 1)
    weight = values((channels, channels // groups, 3, 3), "int8", 2)
    scale = np.abs(values((channels,), "float32", 3)) / np.float32(5000)
    bias, residual = values((channels,), "float32", 4), values((2, 6, 7, channels), "float32", 5)
    x_zero = np.array(7, "int8")
    sums = conv_sums(image, weight, x_zero, None, **window)
    operands: list[Any] = [image, weight, scale, bias, x_zero, None]
    attrs = {**window, "output_scale": 0.031, "output_zero": 9, "epilogue": (RELU,)}
    if dtype == "float32":
        want = np.maximum(real(sums, scale, bias) + residual, 0)
        attrs["epilogue"] = (("add", 0.0, 0.0, 6), RELU)
        operands.append(residual)
    else:
        want = np.maximum(requantized(sums, scale, bias, dtype, 0.031, 9), 9)
    assert same_bits(pieced("quantized_conv", operands, attrs, want.shape, dtype, constant), want)


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("padding", [0, 1])
@pytest.mark.parametrize("dtype", BYTES)
def test_quantized_conv_reads_and_writes_strided_images(dtype: str, groups: int, padding: int) -> None:
    x = values((2, 20, 9, 24), dtype, 1)[:, ::2, 1:, 8:16]
    w = values((8, 8 // groups, 3, 3), "int8", 2)
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (padding,) * 4, "groups": groups}
    want = conv_sums(x, w, None, None, **window)
    out = poisoned((2, 10, 8, 20), "int32")[:, : want.shape[1], : want.shape[2], 3:11]
    run("quantized_conv", [x, w], [out], {**window, "output_scale": 1.0, "output_zero": 0, "epilogue": ()})
    assert np.array_equal(out, want)


@pytest.mark.parametrize(
    ("x", "w", "out", "change"),
    [
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 4, 4), {}),
        ((1, 5, 5, 3), (4, 2, 3, 3), (1, 3, 3, 4), {}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"groups": 3}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"strides": (0, 1)}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"pads": (0, 0)}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"output_scale": -1.0}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"output_zero": 256}),
        ((1, 5, 5, 3), (4, 3, 3, 3), (1, 3, 3, 4), {"epilogue": (("add", 0.0, 0.0, 0),)}),
    ],
)
def test_quantized_conv_refuses_what_does_not_fit(x: Any, w: Any, out: Any, change: Any) -> None:
    window = {"strides": (1, 1), "dilations": (1, 1), "pads": (0, 0, 0, 0), "groups": 1, "epilogue": ()}
    attrs = {**window, "output_scale": 1.0, "output_zero": 0, **change}
    operands = [np.ones(x, "uint8"), np.ones(w, "int8"), np.ones((), "float32")]
    with pytest.raises(Error, match=r"\[quantized_conv\]"):
        run("quantized_conv", operands, [np.ones(out, "uint8")], attrs)


# ---- quantized_add ----


@MIXED
@pytest.mark.parametrize("dtype", BYTES)
@pytest.mark.parametrize(
    ("x", "y"),
    [((3, 65), (3, 65)), ((1000,), (1000,)), ((2, 3, 17), (17,)), ((4, 1), (1, 9)), ((5, 7), ()), ((0,), (1,))],
)
def test_quantized_add_is_the_sum_of_the_real_numbers(x: Any, y: Any, x_dtype: str, y_dtype: str, dtype: str) -> None:
    a, b = values(x, x_dtype, 1), values(y, y_dtype, 2)
    attrs = {"x_scale": 0.037, "x_zero": 5, "y_scale": 0.011, "y_zero": 77, "output_scale": 0.029, "output_zero": 60}
    first = (a.astype("float32") - 5) * np.float32(0.037)
    f = np.asarray(first + (b.astype("float32") - 77) * np.float32(0.011))
    for epilogue, want in [((), f), ((RELU,), np.maximum(f, 0)), ((("clip", -0.5, 0.75, -1),), np.clip(f, -0.5, 0.75))]:
        out = poisoned(f.shape, dtype)
        run_every_cut("quantized_add", [a, b], [out], **attrs, epilogue=epilogue)
        assert same_bits(out, bytes_of(want / np.float32(0.029), dtype, 60))


def test_quantized_add_takes_strides() -> None:
    a, b = values((6, 40), "int8", 1)[::2, ::3], values((14, 3), "uint8", 2).T
    out = poisoned_like(np.zeros((14, 3), "int8").T)
    attrs = {"x_scale": 0.5, "x_zero": -3, "y_scale": 0.25, "y_zero": 9, "output_scale": 1.0, "output_zero": 2}
    run_every_cut("quantized_add", [a, b], [out], **attrs, epilogue=())
    f = (a.astype("float32") + 3) * np.float32(0.5) + (b.astype("float32") - 9) * np.float32(0.25)
    assert np.array_equal(out, bytes_of(f, "int8", 2))


@pytest.mark.parametrize(
    "change",
    [
        {"output_scale": 0.0},
        {"output_zero": 128},
        {"x_zero": 128},
        {"y_zero": -1},
        {"epilogue": (("add", 0.0, 0.0, 1),)},
    ],
)
def test_quantized_add_refuses_what_does_not_fit(change: Any) -> None:
    attrs = {
        "x_scale": 0.5,
        "x_zero": 3,
        "y_scale": 0.25,
        "y_zero": 9,
        "output_scale": 1.0,
        "output_zero": 2,
        "epilogue": (),
    }
    with pytest.raises(Error, match=r"\[quantized_add\]"):
        run("quantized_add", [np.ones(3, "int8"), np.ones(3, "uint8")], [np.ones(3, "int8")], {**attrs, **change})
