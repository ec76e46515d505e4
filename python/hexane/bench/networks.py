"""The networks that are measured: seeded weights that differ in every layer, and their result by NumPy alone.

A chain whose layers share their weights, or read them from a wrong place, would be as fast as a right one. So each
network comes with the outputs that it must have, computed here and not by the compiler under test.
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
    """A graph, inputs, the output they must give, and what a call costs.

    operations: multiplications and additions. weight_bytes, activation_bytes: of what is read and written once
    (activations: inputs, results between layers, output), a float taking the `stored` bytes that the device keeps it
    in.
    """

    graph: Graph
    inputs: dict[str, Array]
    expected: Array
    operations: int
    weight_bytes: int
    activation_bytes: int


def conv_chain(dtype: str, stored: int, channels: int, depth: int, height: int, width: int) -> Network:
    """`depth` convolutions 1x1 of `channels` to `channels`, one behind the other: x (1, channels, height, width)."""
    random = np.random.default_rng(channels * 1_000 + depth)
    shape = (1, channels, height, width)
    given = random.standard_normal(shape, np.float32).astype(_numpy(dtype))
    x, y = hx.input("x", shape, dtype), given.reshape(channels, -1).astype(np.float32)
    for _ in range(depth):
        # Orthogonal on average: the numbers keep their size through any depth.
        weight = (random.standard_normal((channels, channels), np.float32) / channels**0.5).astype(_numpy(dtype))
        x = hx.conv(x, weight.reshape(channels, channels, 1, 1))
        y = (weight.astype(np.float32) @ y).astype(_numpy(dtype)).astype(np.float32)
    return Network(
        hx.graph({"y": x}),
        {"x": given},
        y.reshape(shape),
        2 * channels**2 * height * width * depth,
        channels**2 * depth * stored,
        channels * height * width * (depth + 1) * stored,
    )


def gemm(dtype: str, stored: int, rows: int, inner: int, columns: int) -> Network:
    """x (rows, inner) @ y (inner, columns), both given with each call."""
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
    """max(x, 0) of (1, elements / 64, 1, 64): as little as a program can do."""
    x = np.random.default_rng(elements).standard_normal((1, elements // 64, 1, 64), np.float32).astype(_numpy(dtype))
    y = hx.relu(hx.input("x", x.shape, dtype))
    return Network(hx.graph({"y": y}), {"x": x}, np.maximum(x, 0), 0, 0, 2 * elements * stored)


def int8_chain(dtype: str, stored: int, channels: int, depth: int, height: int, width: int) -> Network:
    """The chain of convolutions with weights and activations of 8 bits: quantised in front of every layer.

    Scales are powers of two and weights small, so that the integers below are exact in every arithmetic.
    """
    random = np.random.default_rng(channels * 1_000 + depth)
    shape = (1, channels, height, width)
    one, scale = np.array(1, np.float32), np.array(2.0 ** -np.ceil(np.log2(channels) / 2 + 1), np.float32)
    given = random.integers(-64, 65, shape).astype(_numpy(dtype))
    x, y = hx.input("x", shape, dtype), given.reshape(channels, -1).astype(np.float32)
    for _ in range(depth):
        weight = random.integers(-2, 3, (channels, channels)).astype(np.int8)
        taken = hx.dequantize(hx.const(weight.reshape(channels, channels, 1, 1)), scale, dtype=dtype)
        x = hx.conv(hx.dequantize(hx.quantize(x, one, dtype="int8"), one, dtype=dtype), taken)
        y = (weight.astype(np.float32) @ np.clip(np.rint(y), -128, 127)) * scale
        y = y.astype(_numpy(dtype)).astype(np.float32)
    operations = 2 * channels**2 * height * width * depth
    return Network(
        hx.graph({"y": x}),
        {"x": given},
        y.reshape(shape),
        operations,
        channels**2 * depth,
        channels * height * width * (2 * stored + depth - 1),
    )


NETWORKS: Mapping[str, Callable[..., Network]] = {f.__name__: f for f in (conv_chain, gemm, add, relu, int8_chain)}


def _numpy(dtype: str) -> type[Any]:
    return np.float16 if dtype == "fp16" else np.float32
