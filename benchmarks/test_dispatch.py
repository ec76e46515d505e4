"""The time of a call, from Python to Python: a program of one op (add 1x64) next to onnxruntime, and a device with
nothing to do."""

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from peers import onnxruntime_bound_call, onnxruntime_session

import hexane as hx
from engines import stand_in_engine
from stand_in import StandIn


def add_model() -> bytes:
    ports = [onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [1, 64]) for n in "xyz"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Add", ["x", "y"], ["z"])], "add", ports[:2], ports[2:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model.SerializeToString()


@pytest.mark.parametrize("contestant", ["hexane", "onnxruntime iobinding", "onnxruntime run"])
def test_bound_call_of_one_op(contestant: str, contest: Callable[..., None]) -> None:
    x, y, z = np.ones((1, 64), "f"), np.full((1, 64), 2, "f"), np.zeros((1, 64), "f")
    if contestant == "hexane":
        call = hx.compile(add_model(), threads=1).bind(x=x, y=y, z=z)
        call()
        assert (z == 3).all()
    elif contestant == "onnxruntime iobinding":
        call = onnxruntime_bound_call(add_model(), {"x": x, "y": y})
    else:
        session = onnxruntime_session(add_model(), 1)

        def call() -> object:
            return session.run(None, {"x": x, "y": y})

    contest("bound call, add 1x64 | 1 | <= 200 ns", contestant, call, rounds=50, iterations=10_000)


@pytest.mark.parametrize("contestant", ["hexane", "onnxruntime run"])
def test_ordinary_call_of_one_op(contestant: str, contest: Callable[..., None]) -> None:
    x, y = np.ones((1, 64), "f"), np.full((1, 64), 2, "f")
    if contestant == "hexane":
        net = hx.compile(add_model(), threads=1)

        def call() -> object:
            return net(x, y)
    else:
        session = onnxruntime_session(add_model(), 1)

        def call() -> object:
            return session.run(None, {"x": x, "y": y})

    contest("call, add 1x64 | 1 | -", contestant, call, rounds=50, iterations=5_000)


def test_bound_call_of_a_device_that_computes_nothing(
    contest: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Python through the Objective-C dispatch to the stand-in's evaluate, and back."""
    engine = stand_in_engine()
    monkeypatch.setattr("hexane.runtime.engine.find_engine", lambda _: (engine, ""))
    x = hx.input("x", (1, 4, 8, 8), dtype="fp16")
    call = hx.compile(hx.relu(x), target="h13", io="fp16", device="ane").bind()
    stand_in = StandIn()
    stand_in.set(idle=1)
    try:
        contest("bound call, idle device | 1 | <= 1.5 us", "hexane", call, rounds=50, iterations=10_000)
    finally:
        stand_in.set(idle=0)


def test_making_a_context(contest: Callable[..., None]) -> None:
    """A caller of a model of 600 steps with a state of 16 MB that is mostly untouched."""
    x = y = hx.input("x", (1, 64))
    for i in range(200):
        y = hx.softmax(hx.tanh(y) + np.float32(i))
    cache = hx.write_state(hx.state("cache", (65536, 64)), y, np.int32(0))
    net = hx.compile({"y": hx.reduce_sum(cache[:8], axes=(0,)) + x}, threads=1)
    net.context()(np.ones((1, 64), "f"))
    contest("making a context | 1 | <= 100 us", "hexane", net.context, rounds=200)
