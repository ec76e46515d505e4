"""Quantised ONNX models: what becomes integer arithmetic, what stays floats, and that both mean what onnxruntime
says."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

import hexane as hx
from compare import assert_close
from hexane.graph import Graph
from hexane.importers.onnx import import_onnx
from hexane.pipeline import lower
from hexane.targets import load_target
from onnx_models import by_onnx, onnxruntime_saturates

Array = Any
rng = np.random.default_rng(7)


@pytest.fixture(autouse=True)
def _same_weights_in_whatever_order_tests_run() -> None:
    global rng
    rng = np.random.default_rng(7)


def normal(*shape: int) -> Array:
    return np.asarray(rng.standard_normal(shape), np.float32)


def integers(dtype: str, *shape: int) -> Array:
    info = np.iinfo(dtype)
    return rng.integers(info.min, info.max, shape, endpoint=True).astype(dtype)


def model(nodes: list[Any], feeds: dict[str, Array], constants: dict[str, Array], opset: int = 21) -> onnx.ModelProto:
    """A model whose output is y."""
    graph = helper.make_graph(
        nodes,
        "quantised",
        [helper.make_tensor_value_info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()],
        [helper.make_empty_tensor_value_info("y")],
        [v if isinstance(v, TensorProto) else numpy_helper.from_array(v, k) for k, v in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


def peer(proto: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    if onnxruntime_saturates() and any(n.op_type == "MatMulInteger" for n in proto.graph.node):
        return np.asarray(by_onnx(proto, feeds)[0])
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return onnxruntime.InferenceSession(proto.SerializeToString(), options).run(None, feeds)[0]


def lowered(proto: onnx.ModelProto) -> Graph:
    return lower(import_onnx(proto), load_target("host"))


def ops(proto: onnx.ModelProto) -> set[str]:
    return {node.op.removeprefix("cpu.") for node in lowered(proto).nodes} - {"input", "const", "reshape", "transpose"}


def node(op: str, inputs: str, outputs: str = "y", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, [i.strip() for i in inputs.split(",")], [outputs], **attrs)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("weights", [QuantType.QInt8, QuantType.QUInt8])
def test_dynamic_quantisation_multiplies_integers(per_channel: bool, weights: Any, tmp_path: Path) -> None:
    feeds = {"x": normal(5, 12)}
    nodes = [node("MatMul", "x, a", "p"), node("Add", "p, b", "q"), node("Relu", "q", "r"), node("MatMul", "r, c")]
    floats = model(nodes, feeds, {"a": normal(12, 33), "b": normal(33), "c": normal(33, 4)}, opset=17)
    onnx.save(floats, tmp_path / "floats.onnx")
    quantize_dynamic(tmp_path / "floats.onnx", tmp_path / "q.onnx", per_channel=per_channel, weight_type=weights)
    proto = onnx.load(tmp_path / "q.onnx")
    found = ops(proto)
    assert "quantized_matmul" in found
    assert "matmul" not in found
    assert "add" not in found  # the bias is the product's
    assert all(n.attrs["dtype"].name == "fp32" for n in lowered(proto).nodes if n.op == "cpu.quantized_matmul")
    assert_close(hx.compile(proto)(feeds), peer(proto, feeds))


def test_dynamic_quantisation_of_a_convolution(tmp_path: Path) -> None:
    feeds = {"x": normal(1, 3, 9, 8)}
    floats = model(
        [node("Conv", "x, w, b", pads=[1, 1, 1, 1])], feeds, {"w": normal(4, 3, 3, 3), "b": normal(4)}, opset=17
    )
    onnx.save(floats, tmp_path / "floats.onnx")
    quantize_dynamic(tmp_path / "floats.onnx", tmp_path / "q.onnx", weight_type=QuantType.QUInt8)
    proto = onnx.load(tmp_path / "q.onnx")
    assert {"conv", "add", "mul"} & ops(proto) <= {"mul"}  # that of two scales
    assert_close(hx.compile(proto)(feeds), peer(proto, feeds))


def test_dynamic_quantisation_of_zeros_gives_zeros() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        node("DequantizeLinear", "q, s, z"),
    ]
    proto = model(nodes, {"x": normal(3, 4)}, {}, opset=17)
    np.testing.assert_array_equal(hx.compile(proto)(np.zeros((3, 4), "f")), np.zeros((3, 4), "f"))


def int4(name: str, array: Array) -> TensorProto:
    return helper.make_tensor(name, TensorProto.INT4, array.shape, array.reshape(-1).tolist())


NIBBLES = np.arange(40).reshape(8, 5) * 7 % 16 - 8


def test_weights_of_4_bits_are_multiplied_as_integers_of_8() -> None:
    feeds = {"x": integers("int8", 3, 8)}
    nodes = [
        node("DequantizeLinear", "x, xs", "a"),
        node("DequantizeLinear", "w, ws", "b", axis=1),
        node("MatMul", "a, b"),
    ]
    constants = {"xs": np.float32(0.5), "w": int4("w", NIBBLES), "ws": np.float32([1, 2, 0.5, 1, 0.25])}
    proto = model(nodes, feeds, constants)
    assert ops(proto) == {"quantized_matmul"}
    np.testing.assert_array_equal(hx.compile(proto)(feeds), peer(proto, feeds))


@pytest.mark.parametrize("block", [0, 4])
def test_weights_of_4_bits_beside_floats_become_floats(block: int) -> None:
    feeds = {"x": normal(3, 8)}
    nodes = [node("DequantizeLinear", "w, ws", "b", axis=0 if block else 1, block_size=block), node("MatMul", "x, b")]
    scale = rng.uniform(0.5, 2, (2, 5) if block else 5).astype(np.float32)
    proto = model(nodes, feeds, {"w": int4("w", NIBBLES), "ws": scale})
    assert ops(proto) == {"matmul"}
    assert_close(hx.compile(proto)(feeds), peer(proto, feeds))


def test_a_network_of_integers_and_floats() -> None:
    """Only what lies between quantised tensors on both sides is computed in integers."""
    feeds = {"x": integers("uint8", 1, 4, 6, 6)}
    nodes = [
        node("DequantizeLinear", "x, s, z", "a"), node("DequantizeLinear", "w, ws", "b", axis=0),
        node("Conv", "a, b", "c", pads=[1, 1, 1, 1]), node("Conv", "c, f", "d"), node("Relu", "d", "e"),
        node("QuantizeLinear", "e, s, z"),
    ]  # fmt: skip
    constants = {
        "s": np.float32(0.25), "z": np.uint8(100), "w": integers("int8", 3, 4, 3, 3), "f": normal(5, 3, 1, 1),
        "ws": np.float32([0.01, 0.02, 0.03]),
    }  # fmt: skip
    proto = model(nodes, feeds, constants)
    assert ops(proto) == {"quantized_conv", "conv", "quantize"}
    got, want = hx.compile(proto)(feeds), peer(proto, feeds)
    assert np.abs(got.astype(int) - want).max() <= 1


@pytest.mark.parametrize("single", [(), (1,)], ids=["scalar", "vector"])
@pytest.mark.parametrize("zero", [None, 0, 3])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 3), (2, 3, 4)])
def test_scales_and_zero_points_of_a_tensor(shape: tuple[int, ...], single: tuple[int, ...], zero: int | None) -> None:
    scale = np.full(single, 0.5, np.float32)
    feeds = {"x": np.asarray(4 * normal(*shape), np.float32)}
    operands = "s" if zero is None else "s, z"
    nodes = [node("QuantizeLinear", f"x, {operands}", "q"), node("DequantizeLinear", f"q, {operands}")]
    proto = model(nodes, feeds, {"s": scale, **({} if zero is None else {"z": np.full(single, zero, np.uint8)})})
    np.testing.assert_array_equal(hx.compile(proto)(feeds), peer(proto, feeds))


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_a_scale_for_each_index_of_any_axis(axis: int) -> None:
    feeds = {"x": np.float32(4) * normal(2, 3, 4)}
    n = feeds["x"].shape[axis]
    constants = {"s": 2.0 ** -np.arange(n, dtype="f"), "z": np.arange(n, dtype=np.int8)}
    nodes = [node("QuantizeLinear", "x, s, z", "q", axis=axis), node("DequantizeLinear", "q, s, z", axis=axis)]
    proto = model(nodes, feeds, constants)
    np.testing.assert_array_equal(hx.compile(proto)(feeds), peer(proto, feeds))


def test_a_scale_of_zero_saturates() -> None:
    proto = model([node("QuantizeLinear", "x, s, z")], {"x": normal(3)}, {"s": np.float32(0), "z": np.int8(5)})
    np.testing.assert_array_equal(hx.compile(proto)(np.float32([1, -1, 0])), np.int8([127, -128, 0]))


@pytest.mark.parametrize("zero", [np.zeros((), "int8"), np.int8(7)])
def test_padding_of_a_quantised_convolution_is_a_real_zero(zero: Array) -> None:
    feeds = {"x": integers("int8", 1, 2, 5, 5)}
    nodes = [
        node("DequantizeLinear", "x, s, z", "a"), node("DequantizeLinear", "w, s, z", "b"),
        node("Conv", "a, b", pads=[2, 0, 1, 1]),
    ]  # fmt: skip
    proto = model(nodes, feeds, {"s": np.float32(0.5), "z": zero, "w": integers("int8", 3, 2, 3, 3)})
    assert ops(proto) == {"quantized_conv"}
    np.testing.assert_array_equal(hx.compile(proto)(feeds), peer(proto, feeds))


GEOMETRIES: dict[str, dict[str, Any]] = {
    "kernels_side_by_side": {"kernel_shape": [2, 2], "strides": [2, 2]},
    "more_at_the_end": {"kernel_shape": [2, 3], "strides": [2, 3], "output_padding": [1, 2]},
    "cut_off": {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 2, 2, 0]},
    "overlap": {"kernel_shape": [4, 4], "strides": [2, 2], "pads": [1, 1, 1, 1]},
    "overlap_of_some": {"kernel_shape": [3, 5], "strides": [2, 3], "pads": [1, 0, 1, 4], "output_padding": [1, 0]},
    "wide": {"kernel_shape": [5, 1], "strides": [1, 1], "pads": [4, 0, 0, 0]},
    "gaps": {"kernel_shape": [2, 1], "strides": [3, 2]},
    "one_axis": {"kernel_shape": [8], "strides": [4], "pads": [2, 2]},
}


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("kind", [("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")])
@pytest.mark.parametrize("geometry", GEOMETRIES)
def test_a_transposed_convolution_of_integers(geometry: str, kind: tuple[str, str], groups: int) -> None:
    """Weights of a scale for each channel of a group; steps so large that no sum is near a half."""
    attrs = GEOMETRIES[geometry]
    size = attrs["kernel_shape"]
    feeds = {"x": integers(kind[0], 2, 4, *(4, 5)[: len(size)])}
    nodes = [
        node("DequantizeLinear", "x, xs, xz", "a"), node("DequantizeLinear", "w, ws, wz", "b", axis=1),
        node("DequantizeLinear", "bias, bs", "c", axis=0),
        node("ConvTranspose", "a, b, c", "d", group=groups, **attrs), node("Relu", "d", "e"),
        node("QuantizeLinear", "e, ys, yz"),
    ]  # fmt: skip
    scales = np.float32([0.5, 2, 1])
    constants = {
        "xs": np.float32(0.5), "xz": integers(kind[0]), "w": integers(kind[1], 4, 3, *size), "ws": scales,
        "wz": integers(kind[1], 3), "bias": rng.integers(-9999, 9999, 3 * groups).astype(np.int32),
        "bs": np.tile(scales / 2, groups), "ys": np.float32(999), "yz": integers(kind[0]),
    }  # fmt: skip
    proto = model(nodes, feeds, constants)
    assert ops(proto) <= {"quantized_conv", "interleave", "slice_by_index"}
    np.testing.assert_array_equal(hx.compile(proto)(feeds), peer(proto, feeds))


@pytest.mark.parametrize("dim", ["rows", "inner", "columns"])
def test_products_of_nothing(dim: str) -> None:
    m, k, n = (0 if dim == name else d for name, d in (("rows", 3), ("inner", 4), ("columns", 5)))
    x = hx.dequantize(hx.input("x", (m, k), "int8"), np.float32(0.5))
    y = hx.quantize(
        x @ hx.dequantize(np.ones((k, n), "int8"), np.float32(0.5)), np.float32(1), np.int8(4), dtype="int8"
    )
    got = hx.compile(y)(np.ones((m, k), "int8"))
    np.testing.assert_array_equal(got, np.full((m, n), 4, "int8"))
