"""Products of int8 with int8 on the chips that compute them in integers, against NumPy's integers; and what was
measured on M6."""

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import engine_planar as model
import hexane as hx
from engine_model import Array

RNG = np.random.default_rng(31)
LIMIT = 1 << 31


def halves_away(x: Array) -> Array:
    return (np.sign(x) * np.floor(np.abs(x) + 0.5)).astype(np.int64)


def byte_product(q: Array, w: Array, scale: Array, bias: Array | None) -> Array:
    """[M, K] x [N, K] -> [M, N]; the scale of each column in fp16, the bias an integer where the sum begins."""
    factor = scale.astype(np.float16).astype(np.float64)
    total = q.astype(np.int64) @ w.astype(np.int64).T
    if bias is not None:
        total = total + halves_away(bias.astype(np.float64) / factor)
    with np.errstate(over="ignore"):
        return model.write(np.where(np.abs(total) >= LIMIT, np.copysign(np.inf, total), total * factor))


def compiled(build: Callable[[hx.Tensor], hx.Tensor], shape: tuple[int, ...], target: str = "h18g") -> hx.Model:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.HazardWarning)
        net = hx.compile(build(hx.input("x", shape, "fp16")), target=target)
    assert isinstance(net, hx.Model)
    return net


def kernels(net: hx.Model) -> set[str]:
    assert net.program is not None
    return {step.kernel for step in net.program.steps}


def quantised(x: hx.Tensor, scale: float) -> hx.Tensor:
    step = np.float32(scale)
    return hx.dequantize(hx.quantize(x, step, dtype="int8"), step, dtype="fp16")


def weights(w: Array, scale: Array) -> hx.Tensor:
    return hx.dequantize(hx.const(w), hx.const(scale), dtype="fp16")


@pytest.mark.parametrize("kind", ["one scale", "a scale for each channel", "with a bias", "without padding"])
def test_a_convolution_of_bytes_is_a_sum_of_integers(kind: str) -> None:
    q = RNG.integers(-128, 128, (2, 6, 5, 7), np.int8)
    w = RNG.integers(-128, 128, (9, 6, 3, 3), np.int8)
    scale = np.float32(RNG.uniform(1e-4, 1e-2, 9) if kind == "a scale for each channel" else 0.0123)
    bias = RNG.standard_normal(9).astype(np.float16) if kind == "with a bias" else None
    pad = 0 if kind == "without padding" else 1
    net = compiled(lambda x: hx.relu(hx.conv(quantised(x, 0.125), weights(w, scale), bias, pad=pad)), q.shape)
    wide = np.pad(q, ((0, 0), (0, 0), (pad, pad), (pad, pad)))
    patches = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    factor = np.float32(0.125) * scale
    want = byte_product(patches.reshape(-1, 54), w.reshape(9, 54), np.broadcast_to(factor, 9), bias)
    want = np.maximum(want, 0).reshape(*patches.shape[:3], 9).transpose(0, 3, 1, 2)
    got = np.asarray(net((q * 0.125).astype(np.float16)))
    assert "quantized_conv" in kernels(net)
    assert got.tobytes() == np.ascontiguousarray(want).tobytes()


def test_a_depthwise_convolution_of_bytes_is_a_sum_of_integers() -> None:
    q, w = RNG.integers(-128, 128, (1, 8, 6, 6), np.int8), RNG.integers(-128, 128, (8, 1, 3, 3), np.int8)
    net = compiled(lambda x: hx.conv(quantised(x, 0.25), weights(w, np.float32(0.01)), groups=8), q.shape)
    patches = np.lib.stride_tricks.sliding_window_view(q, (3, 3), axis=(2, 3))
    total = (patches.astype(np.int64) * w[:, 0][None, :, None, None]).sum((-1, -2))
    want = model.write(total * float(np.float16(np.float32(0.25) * np.float32(0.01))))
    assert np.asarray(net((q * 0.25).astype(np.float16))).tobytes() == want.tobytes()
    assert "quantized_conv" in kernels(net)


@pytest.mark.parametrize("with_bias", [False, True])
def test_a_linear_layer_of_bytes_is_a_sum_of_integers(with_bias: bool) -> None:
    q, w = RNG.integers(-128, 128, (5, 40), np.int8), RNG.integers(-128, 128, (12, 40), np.int8)
    bias = RNG.standard_normal(12).astype(np.float16) if with_bias else None

    def build(x: hx.Tensor) -> hx.Tensor:
        y = hx.matmul(quantised(x, 0.5), weights(w, np.float32(0.001)), transpose_y=True)
        return y if bias is None else y + bias

    net = compiled(build, q.shape)
    want = byte_product(q, w, np.full(12, np.float32(0.5) * np.float32(0.001)), bias)
    assert np.asarray(net((q * 0.5).astype(np.float16))).tobytes() == want.tobytes()
    assert kernels(net) & {"quantized_conv", "quantized_matmul"}


# Terms (as many as said, of two factors), the scale, the result: on M6. Their results are fp16: 16129 and 64516 are rounded.
MEASURED = [
    (1 << 14, 127, 127, 2.0**-14, 16128.0),
    (1 << 16, -128, -128, 2.0**-16, 16384.0),
    (1 << 17, -128, -128, 2.0**-16, np.inf),
    (1 << 17, -128, -128, 2.0**-20, np.inf),
    (4, 127, 127, 1.0, 64512.0),
]


@pytest.mark.parametrize(("count", "left", "right", "scale", "result"), MEASURED)
def test_sums_of_bytes_are_those_measured_on_m6(count: int, left: int, right: int, scale: float, result: float) -> None:
    channels = min(count, 1 << 14)
    shape = (1, channels, 1, count // channels)
    w = np.full((2, *shape[1:]), right, np.int8)
    w[1] = -right if right > -128 else 127
    net = compiled(lambda x: hx.conv(quantised(x, 1.0), weights(w, np.float32(scale))), shape)
    assert "quantized_conv" in kernels(net)
    first, second = np.asarray(net(np.full(shape, left, np.float16))).ravel()
    assert first == result
    assert second == byte_product(np.full((1, count), left), w[1:].reshape(1, -1), np.full(1, scale), None)[0, 0]


@pytest.mark.parametrize("kind", ["another chip", "uint8", "a zero point", "weights of fp16", "a scale beyond fp16"])
def test_other_products_stay_those_of_fp16(kind: str) -> None:
    w = RNG.integers(-128, 128, (9, 6, 3, 3), np.int8)
    step, dtype = np.float32(0.1), "uint8" if kind == "uint8" else "int8"
    zero = np.array(3, dtype) if kind == "a zero point" else None
    filters = (
        w.astype(np.float16)
        if kind == "weights of fp16"
        else weights(w, np.float32(1e-9 if "beyond" in kind else 0.01))
    )

    def build(x: hx.Tensor) -> hx.Tensor:
        return hx.conv(hx.dequantize(hx.quantize(x, step, zero, dtype=dtype), step, zero, dtype="fp16"), filters)

    net = compiled(build, (1, 6, 5, 7), "h17s" if kind == "another chip" else "h18g")
    assert "conv" in kernels(net)
    assert "quantized_conv" not in kernels(net)
