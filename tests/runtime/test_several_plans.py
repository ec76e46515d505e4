"""Files of several plans: functions of a model, and open models for the shapes that were prepared."""

import copy
import json
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx

RANDOM = np.random.default_rng(7)
WEIGHT = (RANDOM.standard_normal((256, 256)) / 16).astype(np.float32)


def step(rows: int) -> hx.Graph:
    """A product, and the sum of its rows over all calls of all functions."""
    state = hx.state("total", (1, 256))
    y = hx.linear(hx.input("x", (rows, 256)), WEIGHT)
    return hx.graph({"y": y, "sum": hx.write_state(state, state + hx.reduce_sum(y, axes=(0,)), 0)})


def functions() -> hx.Functions:
    return hx.compile_functions({"prefill": step(16), "decode": step(1)})


def open_network() -> bytes:
    """relu(x @ w + b) with a free first dim, a middle one, and pixels of 0 to 255."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Add", ["p", "b"], ["s"]),
        helper.make_node("Relu", ["s"], ["y"]),
    ]
    constants = [numpy_helper.from_array(WEIGHT, "w"), numpy_helper.from_array(WEIGHT[0] * 100, "b")]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", "t", 256])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", "t", 256])
    model = helper.make_model(helper.make_graph(nodes, "net", [x], [y], constants), ir_version=8)
    model.opset_import[0].version = 17
    data: bytes = model.SerializeToString()
    return data


def pixels(*shape: int) -> np.ndarray:
    return RANDOM.integers(0, 256, shape).astype(np.float32)


def same(a: Any, b: Any) -> bool:
    return all(np.asarray(a[name]).tobytes() == np.asarray(b[name]).tobytes() for name in b)


def test_functions_are_loaded_with_their_bits_and_one_set_of_states(tmp_path: Path) -> None:
    net = functions()
    net.save(tmp_path / "net.hxp")
    again = hx.load_functions(tmp_path / "net.hxp")
    assert again.functions == ("prefill", "decode")
    for x in (pixels(16, 256), pixels(1, 256), pixels(16, 256)):
        name = "prefill" if len(x) == 16 else "decode"
        assert same(again[name](x), net[name](x))
    assert again["decode"].read_state("total").tobytes() == net["decode"].read_state("total").tobytes()
    again.reset_state()
    assert not again["prefill"].read_state("total").any()


def test_equal_weights_are_in_a_file_and_in_memory_once(tmp_path: Path) -> None:
    functions().save(tmp_path / "net.hxp")
    assert (tmp_path / "net.hxp").stat().st_size < 1.5 * WEIGHT.nbytes
    assert hx.load_functions(tmp_path / "net.hxp")["decode"]._core.unshared_bytes < WEIGHT.nbytes


def test_states_go_to_the_file_as_they_are_where_that_is_asked_for(tmp_path: Path) -> None:
    net = functions()
    net["prefill"](pixels(16, 256))
    net.save(tmp_path / "first.hxp")
    net.save(tmp_path / "now.hxp", states="now")
    assert not hx.load_functions(tmp_path / "first.hxp")["decode"].read_state("total").any()
    now = hx.load_functions(tmp_path / "now.hxp")["decode"].read_state("total")
    assert now.tobytes() == net["decode"].read_state("total").tobytes()


def test_an_open_model_is_loaded_for_the_shapes_that_were_prepared(tmp_path: Path) -> None:
    net: Any = hx.compile(open_network())
    with pytest.raises(hx.Error, match=r"nothing compiled, need some: net.prepare"):
        net.save(tmp_path / "net.hxp")
    for rows in (1, 7):
        net.prepare({"x": (rows, 3, 256)})
    net.save(tmp_path / "net.hxp")
    assert (tmp_path / "net.hxp").stat().st_size < 1.5 * WEIGHT.nbytes
    again: Any = hx.load(tmp_path / "net.hxp")
    for rows in (1, 7):
        x = pixels(rows, 3, 256)
        assert np.asarray(again(x)).tobytes() == np.asarray(net(x)).tobytes()
    assert [str(port) for port in again.inputs] == [str(port) for port in net.inputs]
    assert [str(port) for port in again.outputs] == [str(port) for port in net.outputs]
    assert again.memory["weights"] == net.memory["weights"]
    with pytest.raises(hx.UnsupportedError, match=r"got x 2x3x256, need .*: x 1x3x256; x 7x3x256"):
        again(pixels(2, 3, 256))
    assert np.asarray(again(x)).tobytes() == np.asarray(net(x)).tobytes(), "it goes on after the refusal"


def test_a_model_whose_shapes_hang_on_values_is_loaded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    model = helper.make_model(helper.make_graph(nodes, "net", [x, shape], [y]), ir_version=8)
    model.opset_import[0].version = 17
    net: Any = hx.compile(model)
    given = {"x": pixels(2, 4), "shape": np.int64([4, 2])}
    net(given)
    net.save(tmp_path / "net.hxp")
    again: Any = hx.load(tmp_path / "net.hxp")
    assert np.array_equal(again(given), given["x"].reshape(4, 2))
    with pytest.raises(hx.UnsupportedError):
        again({**given, "shape": np.int64([8, 1])})


@pytest.mark.parametrize("copying", [lambda net: pickle.loads(pickle.dumps(net)), copy.deepcopy])
def test_models_are_pickled_with_their_states(copying: Callable[[Any], Any]) -> None:
    net = hx.compile(step(2))
    net(pixels(2, 256))
    x = pixels(2, 256)
    assert same(copying(net)(x), net(x))
    several = functions()
    several["prefill"](pixels(16, 256))
    again = copying(several)
    assert same(again["decode"](x[:1]), several["decode"](x[:1]))
    shapes: Any = hx.compile(open_network())
    y = pixels(1, 2, 256)
    shapes(y)
    assert np.asarray(copying(shapes)(y)).tobytes() == np.asarray(shapes(y)).tobytes()


@pytest.mark.parametrize("copying", [lambda net: pickle.loads(pickle.dumps(net)), copy.deepcopy])
def test_a_model_of_open_shapes_is_pickled_with_its_states(copying: Callable[[Any], Any]) -> None:
    """The stream of a random op goes on in the copy, for all shapes."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])
    nodes = [helper.make_node("RandomUniformLike", ["x"], ["y"], seed=3.0)]
    model = helper.make_model(helper.make_graph(nodes, "net", [x], [y]), ir_version=8)
    model.opset_import[0].version = 17
    net: Any = hx.compile(model)
    first = net(pixels(2, 4))
    net(pixels(3, 4))
    again = copying(net)
    drawn = [np.asarray(one(pixels(rows, 4))) for rows in (3, 2) for one in (net, again)]
    assert np.array_equal(drawn[0], drawn[1])
    assert np.array_equal(drawn[2], drawn[3])
    assert not np.array_equal(drawn[2], first)


def test_each_way_in_names_the_other(tmp_path: Path) -> None:
    functions().save(tmp_path / "several.hxp")
    hx.compile(step(1)).save(tmp_path / "one.hxp")
    with pytest.raises(hx.Error, match=r"got the functions of a model, need one model: hx.load_functions"):
        hx.load(tmp_path / "several.hxp")
    with pytest.raises(hx.Error, match=r"got no file of several functions, need one: hx.load opens"):
        hx.load_functions(tmp_path / "one.hxp")
    with pytest.raises(hx.Error, match=r"none\.hxp"):
        hx.load(tmp_path / "none.hxp")
    with pytest.raises(hx.Error, match=r"for functions of a file, need them from compile_functions"):
        hx.load_functions(tmp_path / "several.hxp").add("more", step(3))


def with_checksum(data: bytes) -> bytes:
    """A file whose checksum fits what was changed in it."""
    from hexane import _core

    return data[:16] + _core.xxh64(data[24:]).to_bytes(8, "little") + data[24:]


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    functions().save(tmp_path / "net.hxp")
    data = (tmp_path / "net.hxp").read_bytes()
    size = int.from_bytes(data[8:16], "little")
    header = json.loads(data[24 : 24 + size])
    random = np.random.default_rng(3)
    for turn in range(300):
        made = bytearray(data)
        if turn % 3 == 0:
            made = made[: random.integers(0, len(made))]
        else:
            at = int(random.integers(0, 24 + size if turn % 3 == 1 else len(made)))
            made[at] ^= int(random.integers(1, 256))
        (tmp_path / "bad.hxp").write_bytes(bytes(made) if turn % 2 else with_checksum(bytes(made)))
        try:
            net = hx.load_functions(tmp_path / "bad.hxp")
        except hx.Error:
            continue
        for model in net.values():  # what passes every check runs, with other numbers
            model({port.name: np.zeros(port.shape, np.float32) for port in model.inputs})
    (tmp_path / "bad.hxp").write_bytes(data[:8])
    with pytest.raises(hx.Error, match="got 8 bytes, which end in the header"):
        hx.load_functions(tmp_path / "bad.hxp")
    for change in (
        lambda h: h.update(version=2),
        lambda h: h.update(kind="other"),
        lambda h: h.update(plans=3),
        lambda h: h["plans"][0].pop("name"),
        lambda h: h["plans"][0]["sections"].update(tensors=[0, 1 << 40]),
        lambda h: h["plans"][0]["sections"].update(tensors=[-64, 64]),
        lambda h: h["plans"][0]["sections"].update(other=[0, 64]),
        lambda h: h["plans"][0]["weights"].update(bytes=1 << 47),
        lambda h: h["plans"][0]["weights"]["pieces"].append([0, 1 << 40, 0]),
        lambda h: h["plans"][0]["weights"]["pieces"].append(["x"]),
    ):
        other = json.loads(json.dumps(header))
        change(other)
        text = json.dumps(other).encode()
        text += b" " * (-(24 + len(text)) % 64)
        made = data[:8] + len(text).to_bytes(8, "little") + bytes(8) + text + data[24 + size :]
        (tmp_path / "bad.hxp").write_bytes(with_checksum(made))
        with pytest.raises(hx.Error):
            hx.load_functions(tmp_path / "bad.hxp")


def test_loaded_functions_take_several_callers(tmp_path: Path) -> None:
    net = hx.compile_functions({"a": hx.linear(hx.input("x", (4, 256)), WEIGHT)})
    net.save(tmp_path / "net.hxp")
    again = hx.load_functions(tmp_path / "net.hxp", contexts=3)
    x = pixels(4, 256)
    need, wrong = np.asarray(net["a"](x)).tobytes(), []

    def call() -> None:
        wrong.extend(1 for _ in range(20) if np.asarray(again["a"](x)).tobytes() != need)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
