"""Equalised layers: the same outputs with other weights, where a channel's size may move."""

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import hexane as hx
from hexane.quant.equalize import equalized, find_pairs, shared
from hexane.quant.layers import find_layers
from hexane.quant.network import network_of
from onnx_models import model, node

Array = Any
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return np.random.default_rng(shape).standard_normal(shape).astype(np.float32)


def uneven(array: Array, axis: int) -> Array:
    """With channels of very different sizes."""
    sizes = 10.0 ** np.linspace(-2, 2, array.shape[axis])
    return (array * sizes.reshape([-1 if i == axis else 1 for i in range(array.ndim)])).astype(np.float32)


def case(*nodes: onnx.NodeProto, x: tuple[int, ...] = (1, 3, 8, 8), **constants: Array) -> onnx.ModelProto:
    return model(nodes, {"x": normal(*x)}, ["y"], constants)


CASES = {
    "convolutions": case(
        node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Conv", "r v", "y"),
        w=uneven(normal(6, 3, 3, 3), 0), b=normal(6), v=normal(2, 6, 3, 3),
    ),
    "depthwise": case(
        node("Conv", "x w", "a"), node("LeakyRelu", "a", "r"), node("Conv", "r v b", "y", group=6),
        w=uneven(normal(6, 3, 1, 1), 0), v=normal(12, 1, 3, 3), b=normal(12),
    ),
    "groups": case(
        node("Conv", "x w", "a"), node("MaxPool", "a", "r", kernel_shape=[2, 2]), node("Conv", "r v", "y", group=2),
        w=uneven(normal(6, 3, 1, 1), 0), v=normal(4, 3, 3, 3),
    ),
    "transposed": case(
        node("ConvTranspose", "x w b", "a"), node("Relu", "a", "r"), node("ConvTranspose", "r v", "y", group=2),
        w=uneven(normal(3, 6, 3, 3), 1), b=normal(6), v=normal(6, 2, 3, 3),
    ),
    "flattened": case(
        node("Conv", "x w b", "a"), node("Relu", "a", "r"), node("Flatten", "r", "f"), node("Gemm", "f v", "y", transB=1),
        w=uneven(normal(6, 3, 3, 3), 0), b=normal(6), v=normal(5, 6 * 36),
    ),
    "products": case(
        node("Gemm", "x w b", "a", alpha=0.5), node("Relu", "a", "r"), node("MatMul", "r v", "y"),
        x=(2, 8), w=uneven(normal(8, 6), 1), b=normal(6), v=normal(6, 4),
    ),
}  # fmt: skip


def outputs(proto: onnx.ModelProto, x: Array) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, {"x": x})[0]


def shape_of(proto: onnx.ModelProto) -> tuple[int, ...]:
    return tuple(d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim)


def run_of(proto: onnx.ModelProto) -> Any:
    net = hx.compile(proto, threads=1)
    return lambda feed: {proto.graph.output[0].name: net(feed)}


@pytest.mark.parametrize("name", CASES)
def test_outputs_stay_and_channels_get_similar_sizes(name: str) -> None:
    proto = CASES[name]
    network, feeds = (
        network_of(proto),
        [{"x": rng.standard_normal(shape_of(proto)).astype(np.float32)} for _ in range(4)],
    )
    (pair,) = find_pairs(network, find_layers(network))
    made = equalized(network, find_layers(network), feeds, run_of)
    assert made.proto != proto
    want = outputs(proto, feeds[0]["x"])
    np.testing.assert_allclose(outputs(made.proto, feeds[0]["x"]), want, atol=2e-5 * np.abs(want).max())
    axis = pair.first.axis
    assert axis is not None

    def spread(array: Array) -> float:
        sizes = np.abs(np.moveaxis(array, axis, 0).reshape(array.shape[axis], -1)).max(axis=1)
        return float(sizes.max() / sizes.min())

    assert spread(made.constants["w"]) < 0.1 * spread(network.constants["w"])


@pytest.mark.parametrize("name", CASES)
def test_the_error_of_uneven_channels_falls(name: str) -> None:
    proto = CASES[name]
    feeds = [{"x": rng.standard_normal(shape_of(proto)).astype(np.float32)} for _ in range(8)]
    kept, moved = (
        hx.quantize_model(proto, feeds, hx.Quantization(per_channel=False, equalize=e), threads=1)
        for e in (False, True)
    )
    assert moved.error < kept.error


def test_a_tensor_that_somebody_else_reads_stays() -> None:
    weights = {"w": normal(6, 3, 3, 3), "v": normal(6, 6, 1, 1)}
    conv, relu = node("Conv", "x w", "a"), node("Relu", "a", "r")
    for rest in (
        [node("Conv", "r v", "c"), node("Add", "c r", "y")],
        [node("Sigmoid", "r", "s"), node("Conv", "s v", "y")],
        [node("Conv", "r v", "c"), node("Conv", "c v", "y")],
    ):
        network = network_of(case(conv, relu, *rest, **weights))
        assert find_pairs(network, find_layers(network)) == []


def test_channels_of_zeros_keep_their_size() -> None:
    np.testing.assert_array_equal(shared(np.float32([0, 1, 4]), np.float32([1, 0, 4])), [1, 1, 1])
    np.testing.assert_allclose(shared(np.float32([1, 16]), np.float32([1, 1])), [0.5, 2])
