"""round_attributes: the numbers of a chip's ops as MIL has them."""

import numpy as np

import hexane as hx
from hexane.graph import Graph
from hexane.passes.legalize.round_attributes import round_attributes
from hexane.targets.query import load_chip

H13 = load_chip("h13")


def after(outputs: hx.Tensor) -> Graph:
    return round_attributes(hx.graph(outputs), H13)


def half(number: float) -> float:
    return float(np.float16(number))


def test_attributes_of_ops_in_fp16_become_fp16() -> None:
    x = hx.input("x", (2, 3), "fp16")
    (y,) = after(hx.leaky_relu(x, alpha=0.01)).outputs
    assert y.value.node.attrs["alpha"] == half(0.01) != 0.01
    wide = hx.graph(hx.leaky_relu(hx.input("x", (2, 3)), alpha=0.01))
    assert round_attributes(wide, H13).outputs[0].value.node.attrs["alpha"] == 0.01


def test_the_scale_of_an_attention_stays_since_mil_does_not_say_it() -> None:
    x = hx.input("x", (1, 2, 3, 8), "fp16")
    (y,) = after(hx.scaled_dot_product_attention(x, x, x, scale=0.3)).outputs
    assert y.value.node.attrs["scale"] == 0.3


def test_scales_of_numbers_become_fp16_and_those_of_weights_stay() -> None:
    x, scale = hx.input("x", (2, 3), "fp16"), np.float32(0.1)
    steps = hx.quantize(x, scale, dtype="int8")
    weight = hx.dequantize(np.ones((3, 4), np.int8), scale, dtype="fp16")
    graph = after(hx.matmul(hx.dequantize(steps, scale, dtype="fp16"), weight))
    scales = [node.inputs[1].node.data for node in graph.nodes if node.op in ("quantize", "dequantize")]  # type: ignore[union-attr]
    assert sorted(float(s) for s in scales if s is not None) == sorted([half(0.1), half(0.1), float(scale)])
