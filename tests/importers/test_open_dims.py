"""Dims that an exporter leaves free, in every spelling, and the shapes that are suggested for them."""

import shlex
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from exported import from_paddle, from_tensorflow, pixels
from hexane.cli.options import named_shape
from hexane.importers.likely_shapes import likely_shapes, shape_option
from hexane.importers.onnx import import_onnx, signature
from onnx_models import by_onnxruntime, model, node


@pytest.mark.parametrize("dim", [-1, 0, "?", "-1", "None", None])
def test_a_dim_in_any_spelling_of_free_is_free(dim: int | str | None) -> None:
    proto = from_paddle(dim)
    assert signature(proto).inputs[0].dims == (None, 3, 48, None)
    x = pixels(2, 3, 48, 192)
    want = by_onnxruntime(from_paddle("n") if dim in (0, -1) else proto, {"x": x[:1, ..., :48]})[0]
    np.testing.assert_allclose(hx.compile(proto)(x[:1, ..., :48]), want, rtol=1e-4, atol=1e-6)
    assert hx.compile(proto, input_shapes={"x": (1, 3, 48, 192)}).outputs[0].shape == (1, 2)
    assert hx.preflight(proto, "h13", input_shapes={"x": (1, 3, 48, 192)}).ok


def test_a_network_of_paddle_has_onnxruntime_s_numbers() -> None:
    x, proto = pixels(2, 3, 48, 192), from_paddle()
    np.testing.assert_allclose(hx.compile(proto)(x), by_onnxruntime(proto, {"x": x})[0], rtol=1e-4, atol=1e-6)


def test_a_network_of_tensorflow_has_onnxruntime_s_numbers() -> None:
    x, proto = pixels(1, 64, 96, 3), from_tensorflow()
    np.testing.assert_allclose(hx.compile(proto)(x), by_onnxruntime(proto, {"image": x})[0], rtol=1e-4, atol=1e-4)


def test_an_input_of_no_elements_is_still_taken() -> None:
    proto = model([node("Relu", "x", "y")], {"x": np.zeros((0, 3), np.float32)}, ["y"])
    assert hx.compile(proto)(np.zeros((0, 3), np.float32)).shape == (0, 3)
    assert import_onnx(proto, shapes={"x": (0, 3)}).outputs[0].value.shape == (0, 3)


def test_two_dims_that_are_question_marks_are_two_dims() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["?", "?"])
    assert import_onnx(model([node("Relu", "x", "y")], {"x": x}, ["y"]), shapes={"x": (2, 5)})


@pytest.mark.parametrize(
    ("name", "kind", "dims", "want"),
    [
        ("x", "float", (None, 3, 48, None), (1, 3, 48, 320)),
        ("image", "float", ("N", 3, "H", "W"), (1, 3, 224, 224)),
        ("image", "float", ("unk__1", "unk__2", "unk__3", 3), (1, 224, 224, 3)),
        ("image", "float", (None, None, None, None), (1, 3, 224, 224)),
        ("image", "uint", (None, None, 3), (224, 224, 3)),
        ("image", "float", (3, "height", "width"), (3, 224, 224)),
        ("image", "float", ("batch_size", 3, 640, 640), (1, 3, 640, 640)),
        ("image", "float", (1, 3, 640, None), (1, 3, 640, 640)),
        ("features", "float", (None, 256, None, None), (1, 256, 32, 32)),
        ("clip", "float", (None, 3, None, None, None), (1, 3, 32, 224, 224)),
        ("mask", "uint", (None, None, None, 1), (1, 224, 224, 1)),
        ("input_ids", "int", ("batch", "sequence"), (1, 128)),
        ("input_ids", "int", (None, None), (1, 128)),
        ("audio", "float", (None, None), (1, 16000)),
        ("mel", "float", (None, 80, None), (1, 80, 128)),
        ("mel", "float", (1, None, 80), (1, 128, 80)),
        ("waveforms", "float", ("batch_size", "N"), (1, 16000)),
        ("state", "float", (2, None, 128), (2, 1, 128)),
        ("x", "float", None, (1, 3, 224, 224)),
        ("x", "float", ("n", 3), (1, 3)),
        ("odd name", "float", ("n", 3), (1, 3)),
    ],
)
def test_a_suggested_shape_is_a_likely_one_that_the_option_takes(
    name: str, kind: str, dims: tuple[int | str | None, ...] | None, want: tuple[int, ...]
) -> None:
    shape = likely_shapes([(name, kind, dims)])[name]
    assert shape == want
    option, value = shlex.split(shape_option(name, shape))
    assert (option, named_shape(value)) == ("--input-shape", (name, want))


def test_dims_of_one_name_are_suggested_alike() -> None:
    ids, mask = ("ids", "int", ("b", "length")), ("mask", "int", ("b", "past_length + length"))
    cache = ("cache", "float", ("b", 8, "past_length", 64))
    found = likely_shapes([mask, ids, cache], {"length": 7})
    assert found == {"ids": (1, 7), "cache": (1, 8, 128, 64), "mask": (1, 135)}


def test_the_error_suggests_a_shape_that_works() -> None:
    with pytest.raises(hx.Error, match="for example --input-shape x:1x3x48x320"):
        import_onnx(from_paddle())
    assert import_onnx(from_paddle(), shapes={"x": (1, 3, 48, 320)})


@pytest.mark.parametrize("op", ["ArgMin", "ArgMax", "TopK"])
def test_integers_of_64_bits_without_a_sign_are_ordered_as_such(op: str) -> None:
    x = np.random.default_rng(0).integers(0, 2**64 - 1, (5, 70), np.uint64, endpoint=True)
    constants = {"k": np.array([3])} if op == "TopK" else {}
    nodes = [node("TopK", "x k", "v y") if op == "TopK" else node(op, "x", "y", axis=1)]
    got = hx.compile(model(nodes, {"x": x}, ["y"], constants))(x)
    order = np.argsort(x, axis=1, kind="stable")
    want = {"ArgMin": order[:, :1], "ArgMax": order[:, -1:], "TopK": order[:, :-4:-1]}[op]
    np.testing.assert_array_equal(got, want)


def of_two(*dims: list[int | str]) -> onnx.ModelProto:
    """A product of two inputs with these dims."""
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, d) for name, d in zip("ab", dims, strict=True)]
    return model([node("MatMul", "a b", "y")], {"a": ports[0], "b": ports[1]}, ["y"])


def test_a_shape_that_is_given_decides_dims_of_the_same_name(tmp_path: Path) -> None:
    net = hx.compile(of_two(["m", "k"], ["k", "n"]), input_shapes={"a": (3, 4)})
    assert [port.shape for port in net.inputs] == [(3, 4), (4, "n")]
    a, b = pixels(3, 4), pixels(4, 5)
    np.testing.assert_allclose(net(a, b), a @ b, rtol=1e-6)
    with pytest.raises(hx.Error, match="--input-shape b:4x1"):
        hx.fit(of_two(["m", "k"], ["k", "n"]), input_shapes={"a": (3, 4)})
    assert hx.compile(of_two(["m", "k"], ["k", "k"]), input_shapes={"a": (3, 4)}).inputs[1].shape == (4, 4)


def test_compare_takes_the_shapes_of_its_inputs(tmp_path: Path) -> None:
    onnx.save(of_two(["m", "k"], ["k", "n"]), tmp_path / "m.onnx")
    inputs = {"a": np.ones((3, 4), np.float32), "b": np.ones((4, 5), np.float32)}
    for net in (tmp_path / "m.onnx", of_two(["m", "k"], ["k", "n"])):
        assert hx.compare(net, ["h13", "ieee"], inputs).ok
    nodes = [node("Reshape", "x shape", "y")]
    proto = model(nodes, {"x": np.zeros(6, np.float32), "shape": np.array([2, 3])}, ["y"])
    assert hx.compare(proto, ["h13", "ieee"], {"x": np.ones(6, np.float32), "shape": np.array([3, 2])}).ok
