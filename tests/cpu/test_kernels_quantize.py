"""quantize and dequantize against NumPy, bit for bit."""

from typing import Any

import numpy as np
import pytest

from hexane.errors import Error
from kernels import Array, poisoned, poisoned_like, run, run_every_cut, same_bits

SMALL = ["int8", "uint8", "int16", "uint16"]
SHAPES = [((), 0), ((1,), 0), ((17,), 0), ((1000,), -1), ((3, 65), 1), ((65, 7), 0), ((2, 5, 63), 1), ((2, 0, 3), 2)]


def spread(v: Array, shape: Any, axis: int) -> Array:
    """A scale or zero point in the place of its axis."""
    return v if v.ndim == 0 else v.reshape([-1 if i == axis % len(shape) else 1 for i in range(len(shape))])


def values(shape: Any, dtype: str, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    if np.issubdtype(dtype, np.integer):
        info = np.iinfo(dtype)
        return np.asarray(rng.integers(info.min, info.max, shape, endpoint=True)).astype(dtype)
    return np.asarray(rng.standard_normal(shape)).astype(dtype)


def parameters(shape: Any, axis: int, dtype: str, per_axis: bool) -> tuple[Array, Array]:
    """Scales of about 1 / 50 and zero points of a fifth of the range."""
    own = (shape[axis],) if per_axis and shape else ()
    scale = (np.abs(values(own, "float32", 1)) + 1) / np.float32(80)
    return np.asarray(scale, np.float32), np.asarray(values(own, dtype, 2) // 5, dtype)


def quantized(x: Array, scale: Array, zero: Array, dtype: str) -> Array:
    info = np.iinfo(dtype)
    steps = np.rint(x.astype("float32") / scale) + zero.astype("float32")
    return np.clip(steps, info.min, info.max).astype(dtype)


@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", SMALL)
@pytest.mark.parametrize("source", ["float32", "float16"])
def test_quantize_is_the_formula_of_onnx(source: str, dtype: str, shape: Any, axis: int, per_axis: bool) -> None:
    scale, zero = parameters(shape, axis, dtype, per_axis)
    x, out = values(shape, source, 3), poisoned(shape, dtype)
    run_every_cut("quantize", [x, scale, zero], [out], axis=axis)
    assert same_bits(out, quantized(x, spread(scale, shape, axis), spread(zero, shape, axis), dtype))


@pytest.mark.parametrize("per_axis", [False, True])
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("dtype", [*SMALL, "int32"])
@pytest.mark.parametrize("target", ["float32", "float16"])
def test_dequantize_is_the_formula_of_onnx(target: str, dtype: str, shape: Any, axis: int, per_axis: bool) -> None:
    scale, zero = parameters(shape, axis, dtype, per_axis)
    if target == "float16":
        scale = np.asarray(scale / np.float32(2.0 ** (np.iinfo(dtype).bits - 8)))
    x, out = values(shape, dtype, 3), poisoned(shape, target)
    run_every_cut("dequantize", [x, scale, zero], [out], axis=axis)
    centred = x.astype("float32") - spread(zero, shape, axis).astype("float32")
    assert same_bits(out, np.asarray(centred * spread(scale, shape, axis)).astype(target))


@pytest.mark.parametrize("inputs", [2, 3])
def test_a_zero_point_may_be_missing(inputs: int) -> None:
    x, scale, out = values((5, 7), "float32", 1), np.array(0.01, "float32"), poisoned((5, 7), "uint8")
    run("quantize", [x, scale, None][:inputs], [out], {"axis": 0})
    assert same_bits(out, quantized(x, scale, np.uint8(0), "uint8"))
    back = poisoned((5, 7), "float32")
    run("dequantize", [out, scale, None][:inputs], [back], {"axis": 0})
    assert same_bits(back, out.astype("float32") * scale)


@pytest.mark.parametrize("dtype", SMALL)
def test_quantize_rounds_half_to_even_and_saturates(dtype: str) -> None:
    info = np.iinfo(dtype)
    x = np.array([0.5, 1.5, 2.5, -0.5, -1.5, 1e6, -1e6, 3e38, -3e38, np.inf, -np.inf], "float32")
    for zero in (info.min, 3, info.max):
        out = poisoned(x.shape, dtype)
        run_every_cut("quantize", [x, np.ones((), "float32"), np.array(zero, dtype)], [out], axis=0)
        steps = np.array([0, 2, 2, 0, -2, 10**6, -(10**6), 10**9, -(10**9), 10**9, -(10**9)], np.int64)
        assert same_bits(out, np.clip(steps + zero, info.min, info.max).astype(dtype))


def test_quantize_and_dequantize_take_strides() -> None:
    x = values((6, 10, 14), "float32", 1).transpose(2, 0, 1)[::2, :, 1::3]
    scale, zero = np.repeat(parameters(x.shape, 1, "int8", True)[0], 2)[::2], values((6,), "int8", 4)
    out = poisoned_like(np.zeros((3, 7, 6), "int8").transpose(1, 2, 0))
    run_every_cut("quantize", [x, scale, zero], [out], axis=1)
    want = quantized(x, spread(scale, x.shape, 1), spread(zero, x.shape, 1), "int8")
    assert np.array_equal(out, want)
    back = poisoned_like(np.zeros((7, 3, 6), "float32").transpose(0, 2, 1))
    run_every_cut("dequantize", [out, scale, zero], [back], axis=1)
    centred = want.astype("float32") - spread(zero, x.shape, 1).astype("float32")
    assert np.array_equal(back, centred * spread(scale, x.shape, 1))


@pytest.mark.parametrize(
    ("scale", "zero", "axis"),
    [((5,), (), 0), ((), (5,), 0), ((6, 1), (), 0), ((1,), (), 0), ((5,), (5,), 2), ((5,), (), -3)],
)
def test_quantize_refuses_parameters_that_do_not_fit(scale: Any, zero: Any, axis: int) -> None:
    operands = [np.ones((6, 5), "float32"), np.ones(scale, "float32"), np.ones(zero, "int8")]
    with pytest.raises(Error, match=r"\[quantize\]"):
        run("quantize", operands, [poisoned((6, 5), "int8")], {"axis": axis})
    with pytest.raises(Error, match=r"\[dequantize\]"):
        run("dequantize", [np.ones((6, 5), "int8"), *operands[1:]], [poisoned((6, 5), "float32")], {"axis": axis})


def test_quantize_refuses_another_shape() -> None:
    with pytest.raises(Error, match=r"\[quantize\] shape"):
        run("quantize", [np.ones((6, 5), "float32"), np.ones((), "float32")], [poisoned((5, 6), "int8")], {"axis": 0})
