"""Products of 8-bit integers against int32 arithmetic of NumPy, and the way from sums to results, bit for bit."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, run, same_bits
from test_kernels_quantize import values

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


def stored(f: Array, dtype: str, scale: float, zero: int) -> Array:
    info = np.iinfo(dtype)
    steps = np.rint(f * (np.float32(1) / np.float32(scale))) + np.float32(zero)
    return np.clip(steps, info.min, info.max).astype(dtype)


def pieced(
    name: str, inputs: Sequence[Any], attrs: Any, shape: Sequence[int], dtype: str, constant: bool = True
) -> Array:
    """Computed whole, and the same bits in pieces of every cut."""
    cut: dict[str, Any] = {"constants": [1, 2, 3, 4, 5] if constant else []}
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
    f = real(product(centred(a, x_zero), centred(b, y_zero)), scale, bias)
    want = f if dtype == "float32" else stored(f, dtype, 0.37, 11)
    attrs = {"transpose_y": False, "output_scale": 0.37, "output_zero": 11}
    operands = [a, b, np.asarray(scale), bias, x_zero, y_zero]
    assert same_bits(pieced("quantized_matmul", operands, attrs, want.shape, dtype, constant), want)


RELU, CLIP, TANH = ("relu", 0.0, 0.0, -1), ("clip", -3.0, 5.5, -1), ("tanh", 0.0, 0.0, -1)


@pytest.mark.parametrize("dtype", [*BYTES, "float32"])
@pytest.mark.parametrize(
    ("epilogue", "function"),
    [
        ((RELU,), lambda f: np.maximum(f, 0)),
        ((CLIP,), lambda f: np.clip(f, -3, np.float32(5.5))),
        ((CLIP, RELU), lambda f: np.clip(f, 0, np.float32(5.5))),
        ((RELU, CLIP), lambda f: np.clip(f, 0, np.float32(5.5))),
        ((("clip", 1e9, 2e9, -1),), lambda f: np.full_like(f, 1e9)),
    ],
)
def test_quantized_matmul_clamps(dtype: str, epilogue: Any, function: Any) -> None:
    a, b = values((19, 40), "uint8", 1), values((40, 37), "int8", 2)
    scale = np.array(0.001, "float32")
    f = function(real(product(a, b), scale, None)).astype("float32")
    want = f if dtype == "float32" else stored(f, dtype, 0.05, 3)
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


def test_a_nan_scale_gives_zero_and_infinity_saturates() -> None:
    a, b = np.array([[1], [0], [-1]], "int8"), np.ones((1, 1), "int8")
    for scale, want in [(np.nan, [0, 0, 0]), (np.inf, [127, 0, -128])]:
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
