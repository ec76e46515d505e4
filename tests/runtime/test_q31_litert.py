"""q31 beside TFLite's own kernels: one op to a file, the same bytes from the reference kernels of ai-edge-litert."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

import hexane as hx
import tflite_model as tflite
from tflite_file import ACTIVATIONS, PADDINGS, TfliteFile

Grid = tuple[float, int]
ALL = np.arange(-128, 128)


def grids(rng: np.random.Generator, count: int) -> list[Grid]:
    """Scales as fp32 has them, and zero points."""
    return [(float(np.float32(rng.uniform(0.004, 0.05))), int(rng.integers(-60, 60))) for _ in range(count)]


def some(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(-128, 128, shape).astype(np.int8)


def real(name: str, array: Any, grid: Grid) -> hx.Tensor:
    return hx.dequantize(hx.input(name, array.shape, "int8"), np.float32(grid[0]), np.int8(grid[1]))


def ours(y: hx.Tensor, grid: Grid, feeds: Mapping[str, Any], kernel: str) -> Any:
    """What q31 makes of it, by this kernel."""
    stored = hx.quantize(y, np.float32(grid[0]), np.int8(grid[1]), dtype="int8")
    net = hx.compile(hx.graph({"y": stored}), target="host", threads=1, numerics="q31")
    assert isinstance(net, hx.Model)
    assert kernel in {step["kernel"] for step in net.steps}
    return net(feeds)


def images(array: Any) -> Any:
    """Channels first."""
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("depthwise", [False, True])
def test_a_convolution_has_the_bits_of_tflite(depthwise: bool, seed: int) -> None:
    rng, file = np.random.default_rng(seed), TfliteFile()
    x_grid, y_grid = grids(rng, 2)
    channels = int(rng.integers(1, 9))
    filters = channels if depthwise else int(rng.integers(1, 9))
    stride, kernel = int(rng.integers(1, 3)), int(rng.integers(1, 4))
    activation = ("", "relu", "relu6")[seed % 3]
    x = some(rng, 1, 10, 9, channels)
    weight = rng.integers(-127, 128, (filters, 1 if depthwise else channels, kernel, kernel)).astype(np.int8)
    scales = rng.uniform(0.001, 0.03, filters).astype(np.float32)
    bias, bias_scales = rng.integers(-900, 900, filters).astype(np.int32), np.float32(x_grid[0]) * scales
    padded = [max(0, (-(-n // stride) - 1) * stride + kernel - n) for n in (10, 9)]
    same = seed % 2 == 0
    pad = [n for total in (padded if same else (0, 0)) for n in (total // 2, total - total // 2)]
    y = hx.conv(
        real("x", images(x), x_grid), hx.dequantize(hx.const(weight), scales), hx.dequantize(hx.const(bias), bias_scales),
        pad=pad, strides=stride, groups=channels if depthwise else 1,
    )  # fmt: skip
    y = getattr(hx, activation)(y) if activation else y
    shape = (1, y.shape[2], y.shape[3], filters)
    places = [file.tensor(x.shape, "int8", *x_grid)]
    order, axis = ((1, 2, 3, 0), 3) if depthwise else ((0, 2, 3, 1), 0)
    stored = weight.transpose(order)
    places.append(file.tensor(stored.shape, "int8", scales, 0, axis, stored))
    places.append(file.tensor((filters,), "int32", bias_scales, 0, 0, bias))
    out = file.tensor(shape, "int8", *y_grid)
    file.inputs, file.outputs = places[:1], [out]
    options: dict[str, Any] = {
        "padding": PADDINGS["same" if same else "valid"], "strideH": stride, "strideW": stride,
        "dilationHFactor": 1, "dilationWFactor": 1, "fusedActivationFunction": ACTIVATIONS[activation],
    }  # fmt: skip
    if depthwise:
        file.op("DEPTHWISE_CONV_2D", places, [out], 3, kind="DepthwiseConv2DOptions", depthMultiplier=1, **options)
    else:
        file.op("CONV_2D", places, [out], 3, kind="Conv2DOptions", **options)
    (want,) = file.run({places[0]: x})
    assert np.array_equal(ours(y, y_grid, {"x": images(x)}, "q31_conv"), images(want))


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", ["add", "mul"])
def test_two_tensors_have_the_bits_of_tflite(op: str, seed: int) -> None:
    """Every pair of bytes."""
    rng, file = np.random.default_rng(seed), TfliteFile()
    a_grid, b_grid, (_, zero) = grids(rng, 3)
    largest = a_grid[0] + b_grid[0] if op == "add" else a_grid[0] * b_grid[0] * 128
    grid = float(np.float32(largest * rng.uniform(0.3, 1))), zero
    a, b = (np.ascontiguousarray(v).astype(np.int8).reshape(1, 256, 256, 1) for v in np.meshgrid(ALL, ALL))
    places = [file.tensor(a.shape, "int8", *a_grid), file.tensor(a.shape, "int8", *b_grid)]
    out = file.tensor(a.shape, "int8", *grid)
    file.inputs, file.outputs = places, [out]
    activation = ("", "relu")[seed % 2]
    file.op(op.upper(), places, [out], kind=f"{op.title()}Options", fusedActivationFunction=ACTIVATIONS[activation])
    (want,) = file.run({places[0]: a, places[1]: b})
    x, y = real("a", a, a_grid), real("b", b, b_grid)
    made = x + y if op == "add" else x * y
    assert np.array_equal(ours(hx.relu(made) if activation else made, grid, {"a": a, "b": b}, f"q31_{op}"), want)


@pytest.mark.parametrize("seed", range(12))
def test_a_mean_has_the_bits_of_tflite(seed: int) -> None:
    rng, file = np.random.default_rng(seed), TfliteFile()
    x_grid, (_, zero) = grids(rng, 2)
    grid = float(np.float32(x_grid[0] * rng.uniform(0.1, 1.5))), zero
    x = some(rng, 1, int(rng.integers(2, 12)), int(rng.integers(2, 12)), 500) // 3
    place, axes = file.tensor(x.shape, "int8", *x_grid), file.tensor((2,), "int32", data=[1, 2])
    out = file.tensor((1, 1, 1, 500), "int8", *grid)
    file.inputs, file.outputs = [place], [out]
    file.op("MEAN", [place, axes], [out], kind="ReducerOptions", keepDims=True)
    (want,) = file.run({place: x})
    mean = hx.reduce_mean(real("x", images(x), x_grid), axes=(2, 3), keep_dims=True)
    assert np.array_equal(ours(mean, grid, {"x": images(x)}, "q31_mean"), images(want))


@pytest.mark.parametrize("seed", range(6))
def test_an_average_pool_has_the_bits_of_tflite(seed: int) -> None:
    rng, file = np.random.default_rng(seed), TfliteFile()
    (grid,) = grids(rng, 1)
    window = (int(rng.integers(2, 5)), int(rng.integers(2, 5)))
    x = some(rng, 1, 9, 10, 7)
    y = hx.avg_pool(real("x", images(x), grid), kernel_sizes=window, strides=2)
    place = file.tensor(x.shape, "int8", *grid)
    out = file.tensor((1, y.shape[2], y.shape[3], 7), "int8", *grid)
    file.inputs, file.outputs = [place], [out]
    sizes = {"filterHeight": window[0], "filterWidth": window[1], "strideH": 2, "strideW": 2}
    file.op("AVERAGE_POOL_2D", [place], [out], kind="Pool2DOptions", padding=PADDINGS["valid"], **sizes)
    (want,) = file.run({place: x})
    assert np.array_equal(ours(y, grid, {"x": images(x)}, "q31_avg_pool"), images(want))


@pytest.mark.parametrize("by_channel", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_a_matrix_product_is_tflites_but_for_one_rounding(seed: int, by_channel: bool) -> None:
    """The multipliers are the same: rounded once, in whole numbers, the sums give LiteRT's bytes. Here they are rounded
    twice, as its convolutions are."""
    rng, file = np.random.default_rng(seed), TfliteFile()
    x_grid, (_, zero) = grids(rng, 2)
    x, weight = some(rng, 4, 64), rng.integers(-127, 128, (300, 64)).astype(np.int8)
    scales = rng.uniform(0.01, 0.03, 300 if by_channel else 1).astype(np.float32)
    bias, bias_scales = rng.integers(-900, 900, 300).astype(np.int32), np.float32(x_grid[0]) * scales
    sums = (x.astype(np.int64) - x_grid[1]) @ weight.T.astype(np.int64) + bias
    grid = float(np.float32(np.abs(sums).max() * x_grid[0] * float(scales.max()) / 120)), zero
    places = [
        file.tensor(x.shape, "int8", *x_grid),
        file.tensor(weight.shape, "int8", scales, 0, 0, weight),
        file.tensor((300,), "int32", bias_scales, 0, 0, bias),
    ]
    out = file.tensor((4, 300), "int8", *grid)
    file.inputs, file.outputs = places[:1], [out]
    file.op("FULLY_CONNECTED", places, [out], 4, kind="FullyConnectedOptions")
    (want,) = file.run({places[0]: x})
    pairs = [tflite.multiplier_of(x_grid[0] * float(scale) / grid[0]) for scale in scales]
    multiplier, shift = (np.array(numbers, np.int64) for numbers in zip(*pairs, strict=True))
    once = (sums * multiplier + (1 << (30 - shift))) >> (31 - shift)
    assert np.array_equal(np.clip(once + zero, -128, 127), want)
    w_scale = scales if by_channel else scales[0]
    product = real("x", x, x_grid) @ hx.transpose(hx.dequantize(hx.const(weight), w_scale), perm=(1, 0))
    b_scale = bias_scales if by_channel else bias_scales[0]
    got = ours(product + hx.dequantize(hx.const(bias), b_scale), grid, {"x": x}, "q31_matmul")
    twice = np.vectorize(tflite.rescaled)(sums, multiplier, shift)
    assert np.array_equal(got, np.clip(twice + zero, -128, 127))
    assert np.abs(got.astype(int) - want).max() <= 1


def test_a_softmax_of_floats_is_a_step_from_tflites() -> None:
    rng, file = np.random.default_rng(0), TfliteFile()
    x_grid, grid = (0.0625, 3), (1 / 256, -128)
    x = some(rng, 50, 12)
    place, out = file.tensor(x.shape, "int8", *x_grid), file.tensor(x.shape, "int8", *grid)
    file.inputs, file.outputs = [place], [out]
    file.op("SOFTMAX", [place], [out], kind="SoftmaxOptions", beta=1.0)
    (want,) = file.run({place: x})
    got = ours(hx.softmax(real("x", x, x_grid), axis=-1), grid, {"x": x}, "softmax")
    assert np.abs(got.astype(int) - want).max() <= 1
