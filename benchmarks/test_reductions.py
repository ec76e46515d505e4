"""Reductions of rows and of columns: Hexane next to onnxruntime, on one thread."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper
from peers import onnxruntime_bound_call, onnxruntime_call

import hexane as hx

TYPES = {"fp32": (np.float32, onnx.TensorProto.FLOAT), "fp16": (np.float16, onnx.TensorProto.FLOAT16)}
SHAPES = [((12500, 16), 1), ((3125, 64), 1), ((200, 1000), 1), ((4, 100_000), 1), ((1000, 256), 0), ((100_000, 16), 0)]


def model(shape: tuple[int, int], axis: int, dtype: str) -> bytes:
    kind = TYPES[dtype][1]
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [axis])
    ports = [helper.make_tensor_value_info(name, kind, dims) for name, dims in (("x", shape), ("y", [shape[1 - axis]]))]
    node = helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)
    graph = helper.make_graph([node], "sum", ports[:1], ports[1:], [axes])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("contestant", ["hexane", "onnxruntime"])
@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(("shape", "axis"), SHAPES)
def test_sum(shape: tuple[int, int], axis: int, dtype: str, contestant: str, contest: Callable[..., None]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(TYPES[dtype][0])
    net = hx.compile(hx.graph(hx.reduce_sum(hx.input("x", shape, dtype), axes=(axis,), keep_dims=False)), threads=1)
    assert isinstance(net, hx.Model)
    call: Callable[[], object] = net.bind(x=x)
    if contestant == "onnxruntime":
        _, want = onnxruntime_call(model(shape, axis, dtype), {"x": x}, 1)
        call = onnxruntime_bound_call(model(shape, axis, dtype), {"x": x})
        np.testing.assert_allclose(net(x), want[0], rtol=2e-2, atol=0.5 if dtype == "fp16" else 1e-2)
    contest(f"sum of {shape}, axis {axis}, {dtype} | 1 | -", contestant, call)
