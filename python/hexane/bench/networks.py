"""The networks that are measured, with random weights from a seed, which differ in every layer. NumPy computes the
expected outputs.

Speed alone would not show that layers share weights by mistake, or read them from a wrong address. So each network
comes with its expected outputs, which this file computes without the compiler under test.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexane import build as hx
from hexane.graph import Graph

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class Network:
    """A graph, its inputs, the expected output, and the cost of a call.

    operations: multiplications and additions. weight_bytes, activation_bytes: of data read and written once
    (activations: inputs, results between layers, output). stored: bytes of a float on the device.
    """

    graph: Graph
    inputs: dict[str, Array]
    expected: Array
    operations: int
    weight_bytes: int
    activation_bytes: int


def conv_chain(dtype: str, stored: int, channels: int, depth: int, height: int, width: int, kernel: int = 1) -> Network:
    """A chain of `depth` convolutions (kernel, kernel) from `channels` to `channels`, on x (1, channels, height,
    width).

    If the kernel, which is odd, is not 1x1, zeros at the edges keep the size. Products with these zeros count as
    operations, as in published rates.
    """
    random = np.random.default_rng(channels * 1_000 + depth)
    shape = (1, channels, height, width)
    given = random.standard_normal(shape, np.float32).astype(_numpy(dtype))
    x, y = hx.input("x", shape, dtype), given[0].astype(np.float32)
    for _ in range(depth):
        # Orthogonal on average, so numbers keep their size at any depth.
        drawn = random.standard_normal((channels, channels, kernel, kernel), np.float32)
        weight = (drawn / (channels**0.5 * kernel)).astype(_numpy(dtype))
        x = hx.conv(x, weight, pad=kernel // 2)
        y = _convolved(weight.astype(np.float32), y).astype(_numpy(dtype)).astype(np.float32)
    return Network(
        hx.graph({"y": x}),
        {"x": given},
        y.reshape(shape),
        2 * channels**2 * kernel**2 * height * width * depth,
        channels**2 * kernel**2 * depth * stored,
        channels * height * width * (depth + 1) * stored,
    )


def _convolved(weight: Array, x: Array) -> Array:
    """Convolves x (in, height, width), padded with zeros, by weight (out, in, kernel, kernel), with one matrix product
    for each tap."""
    pad = weight.shape[2] // 2
    padded = np.pad(x, ((0, 0), (pad, pad), (pad, pad)))
    height, width = x.shape[1:]
    total = np.zeros((len(weight), height * width), np.float32)
    for i, j in np.ndindex(weight.shape[2:]):
        total += weight[:, :, i, j] @ padded[:, i : i + height, j : j + width].reshape(len(x), -1)
    return total.reshape(len(weight), height, width)


def gemm(dtype: str, stored: int, rows: int, inner: int, columns: int) -> Network:
    """x (rows, inner) @ y (inner, columns). Both operands are inputs of each call."""
    random = np.random.default_rng(rows + inner + columns)
    kind = _numpy(dtype)
    x = random.standard_normal((rows, inner), np.float32).astype(kind)
    y = (random.standard_normal((inner, columns), np.float32) / inner**0.5).astype(kind)
    z = hx.matmul(hx.input("x", x.shape, dtype), hx.input("y", y.shape, dtype))
    expected = x.astype(np.float32) @ y.astype(np.float32)
    bytes_moved = (x.size + y.size + expected.size) * stored
    return Network(hx.graph({"z": z}), {"x": x, "y": y}, expected, 2 * rows * inner * columns, 0, bytes_moved)


def add(dtype: str, stored: int, elements: int) -> Network:
    """x + y of (1, elements / 64, 1, 64)."""
    random = np.random.default_rng(elements)
    shape = (1, elements // 64, 1, 64)
    x, y = (random.integers(-100, 100, shape).astype(_numpy(dtype)) for _ in "xy")
    z = hx.input("x", shape, dtype) + hx.input("y", shape, dtype)
    return Network(hx.graph({"z": z}), {"x": x, "y": y}, x + y, elements, 0, 3 * elements * stored)


def relu(dtype: str, stored: int, elements: int) -> Network:
    """max(x, 0) of (1, elements / 64, 1, 64): the least that a program can do."""
    x = np.random.default_rng(elements).standard_normal((1, elements // 64, 1, 64), np.float32).astype(_numpy(dtype))
    y = hx.relu(hx.input("x", x.shape, dtype))
    return Network(hx.graph({"y": y}), {"x": x}, np.maximum(x, 0), 0, 0, 2 * elements * stored)


def int8_chain(dtype: str, stored: int, channels: int, depth: int, height: int, width: int) -> Network:
    """The chain of convolutions with weights and activations of 8 bits (W8A8), which are quantised before every layer.

    Weights and activations need all 8 bits: weights are uniform integers up to a bound in 64..127, and activations fill
    -128..127 in every layer. The scales are powers of two, so that no arithmetic rounds them; the scale of activations
    is 2^-3. The expected output comes from sums in int32.
    """
    random = np.random.default_rng(channels * 1_000 + depth)
    shape = (1, channels, height, width)
    shift, most = _int8_weights(channels)
    scale, step = np.array(2.0**-shift, np.float32), np.array(2.0**-3, np.float32)
    steps = np.clip(np.rint(random.normal(0, 40, (channels, height * width))), -127, 127)
    given = (steps.reshape(shape) * step).astype(_numpy(dtype))
    x, y = hx.input("x", shape, dtype), given.reshape(channels, -1).astype(np.float32)
    for _ in range(depth):
        weight = random.integers(-most, most + 1, (channels, channels)).astype(np.int8)
        taken = hx.dequantize(hx.const(weight.reshape(channels, channels, 1, 1)), scale, dtype=dtype)
        x = hx.conv(hx.dequantize(hx.quantize(x, step, dtype="int8"), step, dtype=dtype), taken)
        sums = int32_product(weight, np.clip(np.rint(y / step), -128, 127).astype(np.int8))
        y = (sums.astype(np.float32) * (scale * step)).astype(_numpy(dtype)).astype(np.float32)
    operations = 2 * channels**2 * height * width * depth
    return Network(
        hx.graph({"y": x}),
        {"x": given},
        y.reshape(shape),
        operations,
        channels**2 * depth,
        channels * height * width * (2 * stored + depth - 1),
    )


def _int8_weights(channels: int) -> tuple[int, int]:
    """(shift, bound): layers of uniform weights up to bound, times 2^-shift, make numbers larger by a factor of 1.02.

    If numbers shrank from layer to layer, they would soon need fewer than 8 bits. If numbers grow, clipping limits
    them.
    """
    gain = 1.02
    shift = int(np.floor(np.log2(127 * (channels / 3) ** 0.5 / gain)))
    return shift, int(np.ceil(gain * 2**shift * (3 / channels) ** 0.5))


def int32_product(a: Array, b: Array) -> Array:
    """The product of two int8 matrices, equal to NumPy's int32 product.

    If sums stay below 2^24, the product is computed in fp32, which gives the same integers and is faster in NumPy.
    """
    if a.shape[1] * 128 * 128 < 2**24:
        return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.int32)
    product: Array = a.astype(np.int32) @ b.astype(np.int32)
    return product


NETWORKS: Mapping[str, Callable[..., Network]] = {f.__name__: f for f in (conv_chain, gemm, add, relu, int8_chain)}


def _numpy(dtype: str) -> type[Any]:
    return np.float16 if dtype == "fp16" else np.float32
