"""Functions of numbers far below 0, as trained networks and masks have them, next to onnxruntime, on one thread."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import helper
from peers import onnxruntime_bound_call

import hexane as hx

SHAPE = (512, 2048)
OPS: dict[str, tuple[str, Callable[[hx.Tensor], hx.Tensor], dict[str, int]]] = {
    "softmax": ("Softmax", hx.softmax, {"axis": -1}),
    "sigmoid": ("Sigmoid", hx.sigmoid, {}),
    "exp": ("Exp", hx.exp, {}),
    "gelu": ("Gelu", hx.gelu, {}),
}


def model(op: str, attrs: dict[str, int]) -> bytes:
    ports = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, SHAPE) for name in "xy"]
    graph = helper.make_graph([helper.make_node(op, ["x"], ["y"], **attrs)], op, ports[:1], ports[1:])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("contestant", ["hexane", "onnxruntime"])
@pytest.mark.parametrize("numbers", ["usual", "far below 0"])
@pytest.mark.parametrize("name", OPS)
def test_tails(name: str, numbers: str, contestant: str, contest: Callable[..., None]) -> None:
    op, function, attrs = OPS[name]
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    if numbers != "usual":
        x[:, ::2] -= 13 if name == "gelu" else 90
    net = hx.compile(hx.graph(function(hx.input("x", SHAPE), **attrs)), threads=1)
    assert isinstance(net, hx.Model)
    call: Callable[[], object] = net.bind(x=x)
    if contestant == "onnxruntime":
        call = onnxruntime_bound_call(model(op, attrs), {"x": x})
    contest(f"{name} of numbers {numbers} | 1 | -", contestant, call)
