"""Damaged TFLite files end in an error that names the tensor or operator."""

import time
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from tflite_file import TfliteFile


def resize(dtype: str, kind: str, height: int, width: int) -> TfliteFile:
    file = TfliteFile()
    grid: dict[str, Any] = {"scales": 0.1} if dtype == "int8" else {}
    x, size = file.tensor((1, 2, 2, 1), dtype, **grid), file.tensor((2,), "int32", data=[height, width])
    y = file.tensor((1, height, width, 1), dtype, **grid)
    name = "RESIZE_BILINEAR" if kind == "ResizeBilinearOptions" else "RESIZE_NEAREST_NEIGHBOR"
    file.op(name, [x, size], [y], kind=kind)
    file.inputs, file.outputs = [x], [y]
    return file


@pytest.mark.parametrize("size", [(1, 1 << 26), (1 << 26, 1)])
@pytest.mark.parametrize("kind", ["ResizeBilinearOptions", "ResizeNearestNeighborOptions"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_a_resize_to_very_many_columns_is_an_error_at_once(dtype: str, kind: str, size: tuple[int, int]) -> None:
    data = resize(dtype, kind, *size).tobytes()
    start = time.process_time()
    with pytest.raises(Error, match="need at most 8388608 each"):
        hx.compile(data)
    assert time.process_time() - start < 2


@pytest.mark.parametrize("kind", ["ResizeBilinearOptions", "ResizeNearestNeighborOptions"])
def test_a_resize_to_many_columns_gives_the_numbers_of_litert(kind: str) -> None:
    file, x = resize("float32", kind, 1, 100_000), np.arange(4, dtype=np.float32).reshape(1, 2, 2, 1)
    np.testing.assert_allclose(hx.compile(file.tobytes())(x), file.run({0: x})[0], rtol=0, atol=1e-6)


def dense(bias: float) -> TfliteFile:
    file = TfliteFile()
    x, w = file.tensor((1, 4), scales=0.1), file.tensor((3, 4), scales=0.1, data=np.ones((3, 4)))
    b, y = file.tensor((3,), "float32", data=np.full(3, bias)), file.tensor((1, 3), scales=0.1)
    file.op("FULLY_CONNECTED", [x, w, b], [y], kind="FullyConnectedOptions")
    file.inputs, file.outputs = [x], [y]
    return file


def conv(dtype: str, bias: float, op: str = "CONV_2D", kind: str = "Conv2DOptions") -> TfliteFile:
    file, depth = TfliteFile(), op != "CONV_2D"
    shape = (1, 1, 1, 2) if depth else (2, 1, 1, 2)
    x = file.tensor((1, 4, 4, 2), dtype, scales=0.1)
    w = file.tensor(shape, scales=[0.1, 0.1], axis=3 if depth else 0, data=np.ones(shape))
    b, y = file.tensor((2,), "float32", data=np.full(2, bias)), file.tensor((1, 4, 4, 2), dtype, scales=0.1)
    more = {"depthMultiplier": 1} if depth else {}
    file.op(op, [x, w, b], [y], kind=kind, strideH=1, strideW=1, dilationHFactor=1, dilationWFactor=1, **more)
    file.inputs, file.outputs = [x], [y]
    return file


@pytest.mark.parametrize("bias", [2.0, np.nan, np.inf])
@pytest.mark.parametrize(
    "file",
    [
        dense,
        lambda bias: conv("int8", bias),
        lambda bias: conv("int8", bias, "DEPTHWISE_CONV_2D", "DepthwiseConv2DOptions"),
        lambda bias: conv("int16", bias),
    ],
    ids=["dense", "conv", "depthwise", "conv int16"],
)
def test_a_bias_of_floats_for_a_product_of_integers_is_refused_as_by_litert(file: Any, bias: float) -> None:
    made = file(bias)
    with pytest.raises((RuntimeError, ValueError)):
        made.run({0: np.zeros(tuple(made.tensors[0].shape), np.int8)})
    with pytest.raises(Error, match="got a bias of fp32 for a product of integers, need int32 or int64"):
        hx.compile(made.tobytes())


def test_an_output_that_no_operator_computes_is_named() -> None:
    file = TfliteFile()
    x, y, z = (file.tensor((1, 4), "float32") for _ in range(3))
    file.op("ABS", [x], [y], kind="AbsOptions")
    file.inputs, file.outputs = [x], [z]
    with pytest.raises(Error, match=r"^\[tflite\] output '\w+': got the tensor 't2' before it is computed"):
        hx.compile(file.tobytes())
