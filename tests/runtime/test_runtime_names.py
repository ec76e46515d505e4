"""Params, states and ports of every name, rank and use can be written, read and given."""

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.dtypes import DTYPES

W = np.arange(12, dtype=np.float32).reshape(3, 4)


@pytest.mark.parametrize("name", ["self", "args", "kwargs", "buffers", "arrays", "path", "name", "value", "model"])
def test_a_port_or_param_may_be_called_like_an_argument_of_a_method(name: str) -> None:
    x = np.float32([1, 2])
    net = hx.compile(hx.input(name, (2,)) * hx.param(name, x), threads=1)
    np.testing.assert_array_equal(net(**{name: x}), x * x)
    net.update(**{name: -x})
    call = net.bind(**{name: x})
    call()
    (out,) = call.outputs.values()
    np.testing.assert_array_equal(out, -x * x)


@pytest.mark.parametrize("name", ["self", "args", "kwargs", "buffers", "shapes"])
def test_an_open_model_takes_ports_of_such_names(name: str) -> None:
    import onnx

    from onnx_models import model, node

    proto = model([node("Relu", name, "y")], {name: np.zeros((1, 2), np.float32)}, ["y"])
    proto.graph.input[0].type.tensor_type.shape.dim[0].CopyFrom(onnx.TensorShapeProto.Dimension(dim_param="n"))
    net = hx.compile(proto, threads=1)
    assert isinstance(net, hx.OpenModel)
    x = np.float32([[1, -2], [-3, 4]])
    np.testing.assert_array_equal(net(**{name: x}), np.maximum(x, 0))
    call = net.bind(**{name: x})
    call()
    np.testing.assert_array_equal(call.outputs["y"], np.maximum(x, 0))


# Each reads a param of shape (3, 4) through views only, and says what it computes.
VIEWS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "slice": (lambda w: w[1:, :2] + 1.0, lambda w: w[1:, :2] + 1),
    "transpose": (lambda w: hx.transpose(w, perm=(1, 0)) + 1.0, lambda w: w.T + 1),
    "reshape": (lambda w: hx.reshape(w, shape=(2, 6)) + 1.0, lambda w: w.reshape(2, 6) + 1),
    "parts": (lambda w: w[0] * w[2], lambda w: w[0] * w[2]),
}


@pytest.mark.parametrize("way", VIEWS)
@pytest.mark.parametrize("dtype", ["", "fp16"])
def test_a_param_that_is_read_through_views_only_is_updated(way: str, dtype: str, tmp_path: Path) -> None:
    build, meaning = VIEWS[way]
    x = hx.input("x", ())
    net = hx.compile(build(hx.param("w", W)) * x, dtype=dtype, threads=1)
    one = np.float32(1)
    np.testing.assert_array_equal(net(one), meaning(W))
    net.update(w=W - 5)
    np.testing.assert_array_equal(net(one), meaning(W - 5))
    net.save(tmp_path / "m.hxp")
    np.testing.assert_array_equal(hx.load(tmp_path / "m.hxp", threads=1)(one), meaning(W - 5))


@pytest.mark.parametrize("way", VIEWS)
@pytest.mark.parametrize("dtype", ["", "fp16"])
def test_a_state_that_is_read_through_views_only_is_written_and_read(way: str, dtype: str) -> None:
    build, meaning = VIEWS[way]
    net = hx.compile(build(hx.state("s", init=W)) * hx.input("x", ()), dtype=dtype, threads=1)
    net.write_state("s", W - 5)
    np.testing.assert_array_equal(net.read_state("s"), W - 5)
    np.testing.assert_array_equal(net(np.float32(1)), meaning(W - 5))
    net.reset_state()
    np.testing.assert_array_equal(net(np.float32(1)), meaning(W))


def test_a_param_that_no_step_reads_any_more_is_still_a_param() -> None:
    w, v = hx.param("w", W), hx.param("v", W + 1)
    net = hx.compile(hx.input("x", (3, 4)) + v + hx.reduce_sum(hx.reshape(w, shape=(12,))[:0]), threads=1)
    net.update(w=W + 7)
    np.testing.assert_array_equal(net(W), W + W + 1)


@pytest.mark.parametrize("value", [np.float32(3), np.full((), 3, np.float32), 3.0])
def test_params_and_states_of_rank_0_are_written_and_read(value: Any, tmp_path: Path) -> None:
    x = hx.input("x", (2,))
    net = hx.compile(x * hx.param("p", np.float32(2)) + hx.state("s", ()), threads=1)
    value = np.float32(value)
    net.update(p=value)
    net.write_state("s", value)
    assert net.read_state("s").shape == ()
    assert net.read_state("s") == 3
    np.testing.assert_array_equal(net(np.float32([1, 2])), np.float32([6, 9]))


def test_what_has_no_name_is_not_found() -> None:
    net = hx.compile(hx.input("x", (3,)) + np.float32([1, 2, 3]), threads=1)
    for act in (lambda: net.update(**{"": np.zeros(3, np.float32)}), lambda: net.read_state("")):
        with pytest.raises(hx.Error, match="got the name '', need one of none"):
            act()
    with pytest.raises(hx.Error, match="the model has no params; weights of an ONNX model are constants"):
        net.update(w=np.zeros(3, np.float32))


def test_a_state_kept_in_fp16_is_written_in_fp32_too() -> None:
    net = hx.compile(hx.input("x", (4,)) + hx.state("s", (4,)), dtype="fp16", threads=1)
    net.write_state("s", np.full(4, 0.5, np.float32))
    np.testing.assert_array_equal(net(np.zeros(4, np.float32)), np.full(4, 0.5))
    with pytest.raises(hx.Error, match=r"\[state 's'\] got values that fp16 does not hold"):
        net.write_state("s", np.full(4, 1e9, np.float32))


@pytest.mark.parametrize("name", DTYPES)
def test_numpy_takes_a_dtype_of_ours(name: str) -> None:
    kind = DTYPES[name]
    assert np.zeros((2,), kind).dtype == kind.numpy
    assert np.dtype(kind) == kind.numpy


def test_buffers_are_made_from_ports() -> None:
    net = hx.compile({"y": hx.input("x", (2, 3), "int32") + np.int32(1)}, threads=1)
    call = net.bind(**{p.name: np.zeros(p.shape, p.dtype) for p in (*net.inputs, *net.outputs)})
    call()
    assert (call.outputs["y"] == 1).all()


def test_a_profile_tells_the_median_call_of_each_step() -> None:
    x = np.ones((64, 64), np.float32)
    net = hx.compile(hx.input("x", (64, 64)) @ x, threads=1)
    assert net.steps[0]["median"] == 0
    net.profile()
    for calls in (1, 2, 300):
        for _ in range(calls):
            net(x)
    (step,) = net.steps
    assert step["calls"] == 303
    assert 0 < step["median"] < step["nanoseconds"]
    net.profile()
    assert (net.steps[0]["calls"], net.steps[0]["median"]) == (0, 0)


@pytest.mark.parametrize(("name", "says"), [("a\0b", "got NUL"), ("a\ud800b", "got a lone surrogate")])
def test_a_name_that_no_plan_can_hold_is_refused(name: str, says: str) -> None:
    x = hx.input("x", (2,))
    for make in (
        lambda: hx.input(name, (2,)),
        lambda: hx.state(name, (2,)),
        lambda: hx.param(name, np.ones(2, np.float32)),
        lambda: hx.graph({name: hx.relu(x)}),
    ):
        with pytest.raises(hx.Error, match=f"{says} in the name, need text"):
            make()


def test_a_call_says_which_inputs_are_missing() -> None:
    net = hx.compile(hx.input("x", (2,)) + hx.input("y", (2,)), threads=1)
    one = np.ones(2, np.float32)
    with pytest.raises(hx.Error, match=r"inputs: got 0, need 2; missing: x: fp32\[2\], y: fp32\[2\]"):
        net()
    with pytest.raises(hx.Error, match=r"inputs: got 1, need 2; missing: y: fp32\[2\]"):
        net(one)
    with pytest.raises(hx.Error, match="inputs: got 3, need 2: x"):
        net(one, one, one)


def test_a_bound_call_is_neither_copied_nor_pickled() -> None:
    net = hx.compile(hx.relu(hx.input("x", (2,))), threads=1)
    bound = net.bind(x=np.ones(2, np.float32))
    for taken in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(hx.Error, match=r"\[pickle\] got a bound call.*net.bind"):
            taken(bound)


def test_profile_takes_no_inputs() -> None:
    net = hx.compile(hx.relu(hx.input("x", (2,))), threads=1)
    with pytest.raises(hx.Error, match="on: got ndarray, need True or False"):
        net.profile(np.ones(2, np.float32))  # type: ignore[arg-type]


def test_outputs_that_no_memory_holds_are_an_error() -> None:
    net = hx.compile(hx.broadcast_to(hx.input("x", (1,)), shape=(1 << 18, 1 << 10, 1 << 9)), threads=1)
    for call in (lambda: net(np.ones(1, np.float32)), lambda: net.bind(x=np.ones(1, np.float32))):
        with pytest.raises(hx.Error, match="cannot get memory for broadcast_to fp32"):
            call()


def test_a_module_is_told_of_from_torch() -> None:
    for ask in (hx.compile, lambda model: hx.preflight(model, "h13")):
        with pytest.raises(hx.Error, match=r"hexane\.from_torch"):
            ask(object())
