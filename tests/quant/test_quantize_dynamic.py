"""Dynamic ranges: the file's integers are those of onnx's reference and onnxruntime, and no further from the float network
than onnxruntime's own `quantize_dynamic`."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import QuantType, quantize_dynamic

import hexane as hx
from hexane.importers.onnx import import_onnx
from hexane.pipeline import lower
from hexane.targets import load_target
from onnx_models import by_onnx, by_onnxruntime, model, node, onnxruntime_saturates

Array = Any


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Array:
    return (scale * np.random.default_rng([seed, *shape]).standard_normal(shape)).astype(np.float32)


def conv_net() -> tuple[onnx.ModelProto, Array]:
    nodes = [
        node("Conv", "x w b", "a", name="stem", pads=[1, 1, 1, 1]), node("Relu", "a", "r"),
        node("Conv", "r v", "c", name="body", strides=[2, 2], auto_pad="SAME_UPPER", group=2), node("Flatten", "c", "f"),
        node("Gemm", "f u d", "y", name="head", transB=1, alpha=0.5, beta=2.0),
    ]  # fmt: skip
    constants = {
        "w": normal(8, 3, 3, 3, scale=0.3), "b": normal(8, scale=0.1), "v": normal(8, 4, 3, 3, scale=0.15),
        "u": normal(5, 128, scale=0.2), "d": normal(5),
    }  # fmt: skip
    return model(nodes, {"x": normal(1, 3, 8, 8)}, ["y"], constants), normal(1, 3, 8, 8, seed=3)


def attention_net() -> tuple[onnx.ModelProto, Array]:
    nodes = [
        node("MatMul", "x q", "a", name="query"), node("MatMul", "x k", "b", name="key"),
        node("Transpose", "b", "t", perm=[0, 2, 1]), node("MatMul", "a t", "s", name="scores"),
        node("Softmax", "s", "p", axis=-1), node("MatMul", "p x", "m", name="mix"),
        node("MatMul", "m q", "y", name="tied"),
    ]  # fmt: skip
    constants = {"q": normal(16, 16, scale=0.25), "k": normal(16, 16, scale=0.25, seed=1)}
    return model(nodes, {"x": normal(1, 6, 16)}, ["y"], constants), normal(1, 6, 16, seed=3)


def mlp_net() -> tuple[onnx.ModelProto, Array]:
    nodes = [
        node("Gemm", "x w b", "a", name="first", transB=1), node("Relu", "a", "r"),
        node("Gemm", "r v c", "y", name="second"),
    ]  # fmt: skip
    constants = {"w": normal(64, 32, scale=0.2), "b": normal(64, scale=0.1), "v": normal(64, 10), "c": normal(10)}
    return model(nodes, {"x": normal(4, 32)}, ["y"], constants), normal(4, 32, seed=3)


NETWORKS = {f.__name__: f for f in (conv_net, attention_net, mlp_net)}


def relative(whole: Array, got: Array) -> float:
    return float(np.linalg.norm(whole.astype(float) - got) / np.linalg.norm(whole))


def quantized(floats: onnx.ModelProto, dtype: str = "int8", **options: Any) -> hx.Quantized:
    return hx.quantize_model(floats, asked=hx.Quantization(dtype, dynamic=True, **options), threads=1)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_hexane_computes_what_onnx_says_near_the_float_network(name: str, dtype: str, per_channel: bool) -> None:
    floats, x = NETWORKS[name]()
    made = quantized(floats, dtype, per_channel=per_channel).model
    onnx.checker.check_model(onnx.shape_inference.infer_shapes(made), full_check=True)
    want, got = by_onnx(made, {"x": x})[0], hx.compile(made, threads=1)(x)
    assert relative(want, got) < 1e-3  # a number that lies between two steps may be rounded either way
    assert 1e-4 < relative(by_onnxruntime(floats, {"x": x})[0], got) < 0.04


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", NETWORKS)
def test_onnxruntime_agrees_with_all_its_fusions(name: str, dtype: str) -> None:
    if dtype == "int8" and onnxruntime_saturates():
        pytest.skip("onnxruntime's own int8 products saturate on this CPU")
    floats, x = NETWORKS[name]()
    made = quantized(floats, dtype).model
    assert relative(by_onnxruntime(made, {"x": x})[0], hx.compile(made, threads=1)(x)) < 1e-3


@pytest.mark.parametrize("name", ["mlp_net", "attention_net"])
def test_the_numbers_are_those_of_onnxruntimes_best_quantize_dynamic(name: str, tmp_path: Path) -> None:
    """For signed weights, run by Hexane, whose products of signed bytes do not saturate."""
    floats, x = NETWORKS[name]()
    onnx.save(onnx.shape_inference.infer_shapes(floats), tmp_path / "float.onnx")
    peers = []
    for per_channel in (False, True):
        output = tmp_path / "q.onnx"
        quantize_dynamic(tmp_path / "float.onnx", output, per_channel=per_channel, weight_type=QuantType.QInt8)
        peers.append(hx.compile(output, threads=1)(x))
    whole, got = hx.compile(floats, threads=1)(x), hx.compile(quantized(floats).model, threads=1)(x)
    assert relative(peers[1], got) < 1e-4
    assert 0 < relative(whole, got) < 1.001 * min(relative(whole, peer) for peer in peers)


def test_products_are_computed_in_integers_and_weights_are_stored_once() -> None:
    made = quantized(attention_net()[0])
    assert [layer.dtype for layer in made.layers] == ["int8", "int8", "float", "float", "int8"]
    ops = [n.op.removeprefix("cpu.") for n in lower(import_onnx(made.model), load_target("host")).nodes]
    assert ops.count("quantized_matmul") == 3
    assert sum(n.op_type == "DynamicQuantizeLinear" for n in made.model.graph.node) == 2
    stored = [t.name for t in made.model.graph.initializer if t.data_type == onnx.TensorProto.INT8 and t.dims]
    assert stored == ["q_quantized", "k_quantized"]


def test_activations_of_zeros_give_what_the_float_network_gives() -> None:
    floats, x = conv_net()
    made = quantized(floats, "uint8").model
    zeros = np.zeros_like(x)
    want = by_onnxruntime(floats, {"x": zeros})[0]
    for got in (hx.compile(made, threads=1)(zeros), by_onnxruntime(made, {"x": zeros})[0]):
        assert relative(want, got) < 0.05


def test_the_error_is_measured_where_there_are_inputs() -> None:
    floats, x = conv_net()
    made = hx.quantize_model(floats, [{"x": x}], hx.Quantization(dynamic=True), threads=1)
    want = relative(by_onnxruntime(floats, {"x": x})[0], hx.compile(made.model, threads=1)(x))
    assert made.error == pytest.approx(want, rel=1e-3)
    assert made.inputs == 1


@pytest.mark.parametrize(
    ("dtype", "options", "said"),
    [
        ("int16", {}, "dtype: got int16 for dynamic ranges, need int8 or uint8"),
        ("int8", {"tolerance": 0.1}, "tolerance: got one for dynamic ranges, need none"),
        ("int8", {"weights_only": True}, "dynamic: got it with weights_only, need one of them"),
    ],
)
def test_what_does_not_go_together_is_said(dtype: str, options: dict[str, Any], said: str) -> None:
    with pytest.raises(hx.Error, match=said):
        hx.Quantization(dtype, dynamic=True, **options)


def test_a_network_without_such_layers_is_an_error() -> None:
    floats = model([node("ConvTranspose", "x w", "y")], {"x": normal(1, 2, 4, 4)}, ["y"], {"w": normal(2, 3, 2, 2)})
    with pytest.raises(hx.Error, match="got no layer whose activations can be rounded when it runs"):
        quantized(floats)
