"""Which nodes read a tensor in floats though it is rounded for others."""

from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from onnx_models import model, node

Array = Any


def normal(*shape: int, seed: int = 0) -> Array:
    return (np.random.default_rng([seed, *shape]).standard_normal(shape) / shape[-1] ** 0.5).astype(np.float32)


def tokens() -> onnx.ModelProto:
    """Residual sums of tensors that products read, too, one of them through a Transpose."""
    nodes = [
        node("MatMul", "x w", "a", name="in"), node("Add", "x a", "s", name="sum"), node("MatMul", "s v", "b"),
        node("Transpose", "s", "t", perm=[0, 2, 1], name="turn"), node("MatMul", "b t", "c"),
        node("Softmax", "c", "p"), node("MatMul", "p s", "d"), node("Add", "s d", "y", name="end"),
    ]  # fmt: skip
    return model(nodes, {"x": normal(1, 6, 8)}, ["y"], {"w": normal(8, 8), "v": normal(8, 8, seed=1)})


def image() -> onnx.ModelProto:
    nodes = [
        node("Conv", "x w", "a", name="in"), node("Conv", "a v", "b"), node("Add", "a b", "s", name="sum"),
        node("Conv", "s w", "c"), node("Sigmoid", "a", "g", name="gate"), node("Mul", "c g", "y"),
    ]  # fmt: skip
    constants = {"w": normal(3, 3, 1, 1), "v": normal(3, 3, 1, 1, seed=1)}
    return model(nodes, {"x": normal(1, 3, 4, 4)}, ["y"], constants)


def made(proto: onnx.ModelProto) -> hx.Quantized:
    dims = [d.dim_value for d in proto.graph.input[0].type.tensor_type.shape.dim]
    return hx.quantize_model(proto, [{"x": 3 * normal(*dims, seed=i)} for i in range(8)], threads=1)


def inputs(proto: onnx.ModelProto, name: str) -> list[str]:
    return next(list(n.input) for n in proto.graph.node if n.name == name)


def test_sums_of_tokens_read_floats() -> None:
    written = made(tokens()).model
    assert inputs(written, "sum") == ["x", "a"]
    assert inputs(written, "end") == ["s", "d"]
    assert inputs(written, "in")[0] == "x_dequantized"


def test_what_moves_elements_of_a_rounded_tensor_reads_it_rounded() -> None:
    assert inputs(made(tokens()).model, "turn") == ["s_dequantized"]


@pytest.mark.parametrize(("name", "reads"), [("sum", ["a_dequantized", "b_dequantized"]), ("gate", ["a_dequantized"])])
def test_nodes_read_images_rounded(name: str, reads: list[str]) -> None:
    assert inputs(made(image()).model, name) == reads


@pytest.mark.parametrize("network", [tokens, image])
def test_every_rounded_tensor_is_read(network: Any) -> None:
    nodes = made(network()).model.graph.node
    read = {name for n in nodes for name in n.input}
    assert {n.output[0] for n in nodes if n.op_type == "DequantizeLinear"} <= read


def test_a_sum_has_no_error_of_rounding_its_operands() -> None:
    """With a product that adds nothing, the sum is the input."""
    nodes = [node("MatMul", "x w", "a"), node("Add", "x a", "y")]
    proto = model(nodes, {"x": normal(1, 6, 8)}, ["y"], {"w": np.zeros((8, 8), np.float32)})
    assert made(proto).error == 0
