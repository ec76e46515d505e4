"""Sensitivity and tolerance: which layers stay in floats; activations of 16 bits; weights alone."""

from itertools import combinations
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, numpy_helper

import hexane as hx
from onnx_models import model, node

Array = Any


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def network(opset: int = 17) -> onnx.ModelProto:
    """A layer in the middle has an input with a far outlier, which costs 8 bits most of their steps."""
    wide = normal(16, 16, seed=2)
    wide[:, 3] *= 30
    back = normal(16, 16, seed=3)
    back[3] /= 30
    nodes = [
        node("Gemm", "x a b", "p", name="first"), node("Relu", "p", "q"), node("Gemm", "q w b", "r", name="wide"),
        node("Sigmoid", "r", "s"), node("Mul", "r s", "t"), node("Gemm", "t v b", "u", name="back"),
        node("Relu", "u", "o"), node("Gemm", "o a b", "y", name="last"),
    ]  # fmt: skip
    constants = {"a": normal(16, 16), "b": normal(16), "w": wide, "v": back}
    return model(nodes, {"x": normal(1, 16)}, ["y"], constants, opset=opset)


FEEDS = [{"x": normal(1, 16, seed=i)} for i in range(10, 18)]


def outputs(proto: onnx.ModelProto) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return np.stack([session.run(None, feed)[0] for feed in FEEDS])


def error(proto: onnx.ModelProto) -> float:
    whole = outputs(network())
    return float(np.linalg.norm(whole - outputs(proto)) / np.linalg.norm(whole))


def test_sensitivity_is_the_error_with_each_layer_alone() -> None:
    made = hx.quantize_model(network(), FEEDS, hx.Quantization(sensitivity=True), threads=1)
    names = [layer.name for layer in made.layers]
    for layer in made.layers:
        others = [name for name in names if name != layer.name]
        alone = hx.quantize_model(network(), FEEDS, hx.Quantization(float_layers=others), threads=1)
        assert layer.output_error == pytest.approx(error(alone.model), rel=0.05)
    assert max(made.layers, key=lambda layer: layer.output_error or 0).name == "back"


@pytest.mark.parametrize("tolerance", [0.01, 0.02, 0.04, 0.2])
def test_a_tolerance_holds_and_keeps_as_many_layers_as_any_choice_nearly(tolerance: float) -> None:
    every = [layer.name for layer in hx.quantize_model(network(), FEEDS, threads=1).layers]
    made = hx.quantize_model(network(), FEEDS, hx.Quantization(tolerance=tolerance), threads=1)
    assert made.error is not None
    assert made.error <= tolerance
    assert error(made.model) <= 1.05 * tolerance
    kept = sum(layer.dtype == "int8" for layer in made.layers)
    most = 0
    for count in range(1, len(every)):
        for floats in combinations(every, count):
            tried = hx.quantize_model(network(), FEEDS, hx.Quantization(float_layers=floats), threads=1)
            most = max(most, len(every) - count if (tried.error or 0) <= tolerance else 0)
    assert kept >= most


def test_a_tolerance_that_no_layer_keeps_is_an_error() -> None:
    with pytest.raises(
        hx.Error, match=r"got an error of 0.0\d+ with the layer '\w+' alone in integers, need at most 1e-07"
    ):
        hx.quantize_model(network(), FEEDS, hx.Quantization(tolerance=1e-7), threads=1)


@pytest.mark.parametrize("tolerance", [0.0, -1.0, np.nan])
def test_a_tolerance_is_above_zero(tolerance: float) -> None:
    with pytest.raises(hx.Error, match=r"tolerance: got .*, need a number above 0"):
        hx.Quantization(tolerance=tolerance)


def test_activations_of_16_bits_are_nearer_than_those_of_8() -> None:
    errors = {}
    for dtype in ("int8", "int16"):
        made = hx.quantize_model(network(), FEEDS, hx.Quantization(dtype), threads=1)
        errors[dtype] = error(made.model)
        assert made.error == pytest.approx(errors[dtype], rel=0.05)
        net = hx.compile(made.model, threads=1)
        got, want = np.stack([net(feed) for feed in FEEDS]), outputs(made.model)
        assert np.linalg.norm(got - want) < 0.01 * np.linalg.norm(want)
    assert errors["int16"] < 0.7 * errors["int8"]  # the rest is that of the weights
    assert made.model.opset_import[0].version == 21
    kinds = {t.name: t.data_type for t in made.model.graph.initializer}
    assert kinds["x_zero_point"] == TensorProto.INT16
    assert kinds["w_quantized"] == TensorProto.INT8


def test_weights_alone_need_no_calibration() -> None:
    made = hx.quantize_model(network(), asked=hx.Quantization(weights_only=True))
    assert (made.error, made.inputs) == (None, 0)
    assert {n.op_type for n in made.model.graph.node} == {
        "Gemm",
        "Relu",
        "Sigmoid",
        "Mul",
        "DequantizeLinear",
        "Reshape",
    }
    constants = {t.name: numpy_helper.to_array(t) for t in made.model.graph.initializer}
    back = constants["w_quantized"].astype(np.float32) * constants["w_scale"]
    assert np.abs(back - normal(16, 16, seed=2) * np.where(np.arange(16) == 3, 30, 1)).max() < 1
    assert error(made.model) < 0.05
    net = hx.compile(made.model, threads=1)
    np.testing.assert_allclose(np.stack([net(feed) for feed in FEEDS]), outputs(made.model), rtol=1e-3, atol=1e-3)
    measured = hx.quantize_model(network(), FEEDS, hx.Quantization(weights_only=True), threads=1)
    assert measured.model == made.model
    assert measured.error == pytest.approx(error(made.model), rel=0.01)


def test_an_old_opset_is_converted() -> None:
    old = model(
        [node("Conv", "x w", "a"), node("Relu", "a", "y")],
        {"x": normal(1, 3, 4, 4)},
        ["y"],
        {"w": normal(2, 3, 1, 1)},
        opset=9,
    )
    made = hx.quantize_model(old, [{"x": normal(1, 3, 4, 4)}], threads=1)
    assert made.model.opset_import[0].version == 13
    assert (made.error or 0) < 0.03


def test_layers_of_one_name_are_told_apart() -> None:
    nodes = [node("MatMul", "x a", "p", name="same"), node("MatMul", "p b", "y", name="same")]
    proto = model(nodes, {"x": normal(1, 4)}, ["y"], {"a": normal(4, 4), "b": 10 * normal(4, 4, seed=1)})
    made = hx.quantize_model(proto, [{"x": normal(1, 4, seed=i)} for i in range(4)], threads=1)
    assert [layer.name for layer in made.layers] == ["same (p)", "same (y)"]
    assert (made.error or 0) < 0.03


@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
@pytest.mark.parametrize("per_channel", [False, True])
def test_onnxruntime_does_not_round_the_other_operand(op: str, per_channel: bool) -> None:
    """Its optimiser makes a product with 8-bit operands of weights that are read directly."""
    x, w = normal(4, 256), normal(256, 128, seed=1)
    proto = model([node(op, "x w", "y")], {"x": x}, ["y"], {"w": w}, opset=21)
    made = hx.quantize_model(proto, asked=hx.Quantization(weights_only=True, per_channel=per_channel))
    got = onnxruntime.InferenceSession(made.model.SerializeToString()).run(None, {"x": x})[0]
    want = hx.compile(made.model, threads=1)
    assert isinstance(want, hx.Model)
    assert [step["kernel"] for step in want.steps] == ["encoded_matmul"]
    np.testing.assert_allclose(got, want(x), rtol=1e-5, atol=1e-5 * np.abs(got).max())
