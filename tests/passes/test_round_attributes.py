"""round_attributes: the numbers of a chip's ops as MIL has them."""

import numpy as np

import hexane as hx
from hexane.graph import Graph
from hexane.lowering.round_attributes import round_attributes
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


def scales(graph: Graph) -> list[float]:
    found = [node.inputs[1].node.data for node in graph.nodes if node.op in ("quantize", "dequantize")]  # type: ignore[union-attr]
    return sorted(float(s) for s in found if s is not None)


def product(scale: np.float32) -> hx.Tensor:
    steps = hx.quantize(hx.input("x", (2, 3), "fp16"), np.float32(0.1), dtype="int8")
    weight = hx.dequantize(np.ones((3, 4), np.int8), scale, dtype="fp16")
    return hx.matmul(hx.dequantize(steps, np.float32(0.1), dtype="fp16"), weight)


def test_scales_become_fp16_those_of_weights_too() -> None:
    assert scales(after(product(np.float32(0.3)))) == sorted([half(0.1), half(0.1), half(0.3)])


def test_a_scale_of_weights_of_which_fp16_keeps_few_digits_stays() -> None:
    tiny = np.float32(1e-6)
    assert scales(after(product(tiny))) == [float(tiny), half(0.1), half(0.1)]


def test_a_netplist_keeps_the_scales_of_weights() -> None:
    graph = round_attributes(hx.graph(product(np.float32(0.3))), load_chip("h12"))
    assert scales(graph) == [half(0.1), half(0.1), float(np.float32(0.3))]


def test_a_constant_that_no_product_reads_keeps_its_scale() -> None:
    constant = hx.dequantize(np.ones((2, 3), np.int8), np.float32(0.3), dtype="fp16")
    assert scales(after(hx.input("x", (2, 3), "fp16") + constant)) == [float(np.float32(0.3))]
