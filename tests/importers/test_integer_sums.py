"""QLinearMatMul and QLinearConv of sums beyond int32, which a result of 8 bits must not show."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.importers.onnx import import_onnx
from onnx_models import model, node

LARGEST = 255 * 255
FITS = (2**31 - 1) // LARGEST  # so many products


def exact(sums: Any, scale: float, zero: int) -> Any:
    return np.clip(np.rint(sums.astype(np.float64) * scale) + zero, 0, 255)


def kernels(net: Any) -> set[str]:
    return {step["kernel"] for step in net.steps}


def scales(terms: int) -> dict[str, Any]:
    """By which the largest sum is about 200 steps."""
    return {"xs": np.float32(1), "ws": np.float32(1), "ys": np.float32(LARGEST * terms / 200)}


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize("terms", [FITS, FITS + 1, 70_000])
def test_a_long_quantised_product_does_not_wrap(terms: int, constant: bool) -> None:
    x = np.full((2, terms), 255, np.uint8)
    x[1] = np.random.default_rng(1).integers(0, 256, terms)
    y = np.full((terms, 3), 255, np.uint8)
    y[:, 1] = np.random.default_rng(2).integers(0, 256, terms)
    constants = scales(terms) | {"xz": np.uint8(0), "wz": np.uint8(0), "yz": np.uint8(3)}
    feeds = {"x": x} if constant else {"x": x, "w": y}
    made = node("QLinearMatMul", "x xs xz w ws wz ys yz", "out")
    net = hx.compile(import_onnx(model([made], feeds, ["out"], constants | ({"w": y} if constant else {}))))
    want = exact(x.astype(np.int64) @ y.astype(np.int64), 1 / float(constants["ys"]), 3)
    np.testing.assert_array_equal(net(*feeds.values()), want)
    assert ("quantized_matmul" in kernels(net)) == (terms <= FITS)


def test_weights_that_keep_a_long_sum_small_stay_integers() -> None:
    terms = 70_000
    x = np.random.default_rng(1).integers(0, 256, (2, terms)).astype(np.uint8)
    y = np.random.default_rng(2).integers(-20, 21, (terms, 3)).astype(np.int8)
    constants = {"xs": np.float32(1), "ws": np.float32(1), "ys": np.float32(2e4), "xz": np.uint8(128), "wz": np.int8(0)}
    proto = model([node("QLinearMatMul", "x xs xz w ws wz ys yz", "out")], {"x": x}, ["out"],
                  constants | {"yz": np.uint8(90), "w": y})  # fmt: skip
    net = hx.compile(import_onnx(proto))
    want = exact((x.astype(np.int64) - 128) @ y.astype(np.int64), 1 / 2e4, 90)
    np.testing.assert_array_equal(net(x), want)
    assert "quantized_matmul" in kernels(net)


@pytest.mark.parametrize("bias", [0, 2**31 - 1])
@pytest.mark.parametrize("channels", [3, 3_700])
def test_a_large_quantised_convolution_does_not_wrap(channels: int, bias: int) -> None:
    x = np.full((1, channels, 3, 3), 255, np.uint8)
    w = np.full((2, channels, 3, 3), 255, np.uint8)
    w[1] = np.random.default_rng(3).integers(0, 256, w[1].shape)
    constants = scales(9 * channels) | {"xz": np.uint8(0), "wz": np.uint8(0), "yz": np.uint8(5), "w": w}
    constants["ys"] = np.float32((9 * channels * LARGEST + bias) / 200)
    constants["b"] = np.array([bias, bias], np.int32)
    proto = model([node("QLinearConv", "x xs xz w ws wz ys yz b", "out")], {"x": x}, ["out"], constants)
    net = hx.compile(import_onnx(proto))
    sums = (x.astype(np.int64) * w.astype(np.int64)).sum((1, 2, 3)) + bias
    np.testing.assert_array_equal(net(x).ravel(), exact(sums, 1 / float(constants["ys"]), 5))
    assert ("quantized_conv" in kernels(net)) == (channels == 3 and bias == 0)
