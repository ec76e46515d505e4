"""Models as files: external data, damaged bytes, weights in Constant nodes and shared ones, subgraphs."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from onnx_models import model, node

Array = Any
WEIGHTS_ONLY = hx.Quantization(weights_only=True)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


FEEDS = [{"x": normal(1, 8, seed=i)} for i in range(6)]


def network(**parts: Any) -> onnx.ModelProto:
    nodes = [node("Gemm", "x a b", "h", name="first"), node("Relu", "h", "r"), node("Gemm", "r a b", "y", name="last")]
    return model(nodes, {"x": normal(1, 8)}, ["y"], {"a": normal(8, 8), "b": normal(8)}, **parts)


def relative(proto: onnx.ModelProto, made: onnx.ModelProto) -> float:
    whole, net = hx.compile(proto, threads=1), hx.compile(made, threads=1)
    pairs = [(whole(feed), net(feed)) for feed in FEEDS]
    return float(np.linalg.norm([a - b for a, b in pairs]) / np.linalg.norm([a for a, _ in pairs]))


def test_weights_in_a_file_of_their_own_are_taken_in(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "net.onnx", save_as_external_data=True, location="data", size_threshold=0)
    made = hx.quantize_model(tmp_path / "net.onnx", FEEDS, threads=1)
    assert made.model.SerializeToString() == hx.quantize_model(network(), FEEDS, threads=1).model.SerializeToString()
    made.save(tmp_path / "q.onnx")
    assert onnx.load(tmp_path / "q.onnx") == made.model


def test_large_models_are_read_in_parts(tmp_path: Path) -> None:
    proto = model([node("MatMul", "x w", "y")], {"x": normal(1, 600)}, ["y"], {"w": normal(600, 600)})
    onnx.save(proto, tmp_path / "net.onnx")
    made = hx.quantize_model(tmp_path / "net.onnx", asked=WEIGHTS_ONLY)
    assert made.model == hx.quantize_model(proto, asked=WEIGHTS_ONLY).model


def test_a_weight_that_two_layers_share_is_stored_once_for_each_form() -> None:
    made = hx.quantize_model(network(), FEEDS, threads=1)
    assert relative(network(), made.model) < 0.03
    stored = [
        t for t in hx.quantize_model(network(), asked=WEIGHTS_ONLY).model.graph.initializer if t.name.startswith("a")
    ]
    assert [t.name for t in stored] == ["a_quantized", "a_scale", "a_zero_point", "a_dequantized_shape"]


def test_weights_in_constant_nodes_are_weights() -> None:
    proto = network()
    for tensor in proto.graph.initializer:
        proto.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del proto.graph.initializer[:]
    made = hx.quantize_model(proto, FEEDS, threads=1)
    assert not [n for n in made.model.graph.node if n.op_type == "Constant"]
    assert relative(network(), made.model) < 0.03


def test_initializers_that_are_inputs_are_weights() -> None:
    proto = network()
    for tensor in proto.graph.initializer:
        proto.graph.input.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims))
    made = hx.quantize_model(proto, FEEDS, threads=1)
    assert [port.name for port in made.model.graph.input] == ["x"]
    assert relative(network(), made.model) < 0.03


def test_names_that_are_taken_are_not_given_again() -> None:
    proto = network()
    proto.graph.node.append(node("Abs", "y", "x_quantized"))
    proto.graph.output.append(helper.make_empty_tensor_value_info("x_quantized"))
    made = hx.quantize_model(proto, FEEDS, threads=1).model
    names = [name for n in made.graph.node for name in n.output]
    assert len(names) == len(set(names))
    hx.compile(made, threads=1)


def test_what_a_branch_reads_stays() -> None:
    def branch(op: str) -> onnx.GraphProto:
        inner = [node(op, "h", f"{op}_y")] if op != "MatMul" else [node("MatMul", "h a", "MatMul_y")]
        return helper.make_graph(inner, op, [], [helper.make_tensor_value_info(f"{op}_y", TensorProto.FLOAT, [1, 8])])

    nodes = [
        node("Gemm", "x a b", "h", name="first"), node("ReduceSum", "x", "s", keepdims=0),
        node("Greater", "s zero", "c"), helper.make_node("If", ["c"], ["z"], then_branch=branch("Abs"), else_branch=branch("MatMul")),
        node("Gemm", "h a b", "v", name="last"), node("Add", "z v", "y"),
    ]  # fmt: skip
    constants = {"a": normal(8, 8), "b": normal(8), "zero": np.float32(0)}
    proto = model(nodes, {"x": normal(1, 8)}, ["y"], constants)
    made = hx.quantize_model(proto, FEEDS, threads=1)
    kept = {t.name: numpy_helper.to_array(t) for t in made.model.graph.initializer}
    np.testing.assert_array_equal(kept["a"], constants["a"])
    assert relative(proto, made.model) < 0.03


def damaged(place: str) -> bytes:
    proto = network()
    if place == "a node without outputs":
        del proto.graph.node[0].output[:]
        return proto.SerializeToString()
    data = proto.SerializeToString()
    return data[:100] if place == "an end too early" else data.replace(b"first", b"\xff\xfe\x80st")


@pytest.mark.parametrize("place", ["a node without outputs", "a name that is no text", "an end too early"])
def test_damaged_models_are_errors(place: str) -> None:
    with pytest.raises(hx.Error, match=r"got no output|need UTF-8|of no kind"):
        hx.quantize_model(damaged(place), asked=WEIGHTS_ONLY)
