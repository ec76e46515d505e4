"""Calibration inputs: from programs and files, and what is said of wrong ones."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from onnx_models import model, node

Array = Any


def network(weight: Array | None = None) -> onnx.ModelProto:
    weight = np.eye(4, dtype=np.float32) if weight is None else weight
    return model([node("MatMul", "x w", "y", name="mix")], {"x": np.zeros((1, 4), np.float32)}, ["y"], {"w": weight})


def numbers(*shape: int) -> Array:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(6, 4), (6, 1, 4)], ids=["along the first axis", "an axis more"])
def test_an_archive_of_several_inputs_is_that_of_each(shape: tuple[int, ...], tmp_path: Path) -> None:
    x = numbers(*shape)
    np.savez(tmp_path / "x.npz", x=x)
    of_file = hx.quantize_model(network(), tmp_path / "x.npz", threads=1)
    feeds = [{"x": row.reshape(1, 4)} for row in x]
    assert of_file.inputs == 6
    assert of_file.model == hx.quantize_model(network(), feeds, threads=1).model


def test_a_folder_is_its_archives_in_order(tmp_path: Path) -> None:
    for i, part in enumerate(np.split(numbers(6, 4), 3)):
        np.savez_compressed(tmp_path / f"{i}.npz", x=part)
    (tmp_path / "notes.txt").write_text("not an archive")
    made = hx.quantize_model(network(), tmp_path, threads=1)
    assert made.inputs == 6
    assert made.model == hx.quantize_model(network(), [{"x": row[None]} for row in numbers(6, 4)], threads=1).model


def test_an_input_of_an_open_batch_is_one() -> None:
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    proto = model([node("MatMul", "x w", "y")], {"x": info}, ["y"], {"w": np.eye(4, dtype=np.float32)})
    made = hx.quantize_model(proto, [{"x": numbers(3, 4)}, {"x": numbers(2, 4)}], threads=1)
    assert made.inputs == 2


BAD_FEEDS: dict[str, tuple[list[dict[str, Array]], str]] = {
    "none": ([], "calibration: got no inputs, need at least one"),
    "a wrong name": ([{"z": numbers(1, 4)}], "calibration input 0: got the arrays z, need x"),
    "a wrong shape": ([{"x": numbers(1, 4)}, {"x": numbers(1, 5)}], r"input 1: got float32\[1, 5\] for 'x', need float32\[1, 4\]"),
    "a wrong dtype": ([{"x": np.zeros((1, 4))}], r"got float64\[1, 4\] for 'x', need float32"),
    "not finite": ([{"x": numbers(1, 4)}, {"x": np.full((1, 4), np.nan, "f")}], "input 1: got nan in the tensor 'x', need finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FEEDS)
def test_wrong_inputs_are_named(name: str) -> None:
    feeds, message = BAD_FEEDS[name]
    with pytest.raises(hx.Error, match=message):
        hx.quantize_model(network(), feeds, threads=1)


def test_wrong_archives_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        hx.Error, match=r"got a folder without .npz, .npy, .png, .jpg, .jpeg, .wav files, need at least one"
    ):
        hx.quantize_model(network(), tmp_path, threads=1)
    np.savez(tmp_path / "z.npz", z=numbers(1, 4))
    with pytest.raises(hx.Error, match=r"z.npz: got the arrays z, need x"):
        hx.quantize_model(network(), tmp_path / "z.npz", threads=1)
    np.savez(tmp_path / "x.npz", x=numbers(2, 5))
    with pytest.raises(hx.Error, match=r"x.npz, input 0: got float32\[1, 5\] for 'x', need float32\[1, 4\]"):
        hx.quantize_model(network(), tmp_path / "x.npz", threads=1)
    np.savez(tmp_path / "empty.npz", x=numbers(0, 4))
    with pytest.raises(hx.Error, match="got no inputs, need at least one"):
        hx.quantize_model(network(), tmp_path / "empty.npz", threads=1)
    np.savez(tmp_path / "objects.npz", x=np.array([{}], object))
    with pytest.raises(hx.Error, match="it holds Python objects, which are not loaded"):
        hx.quantize_model(network(), tmp_path / "objects.npz", threads=1)
    (tmp_path / "text.npz").write_text("text")
    with pytest.raises(hx.Error, match=r"text.npz is no npz file of numbers"):
        hx.quantize_model(network(), tmp_path / "text.npz", threads=1)
    with pytest.raises(hx.Error, match=r"absent.npz: No such file or directory, need a readable npz file"):
        hx.quantize_model(network(), tmp_path / "absent.npz", threads=1)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_weights_that_are_not_finite_are_named(bad: float) -> None:
    weight = np.eye(4, dtype=np.float32)
    weight[1, 2] = bad
    with pytest.raises(hx.Error, match=rf"layer 'mix': got {bad} in the weight 'w', need finite numbers"):
        hx.quantize_model(network(weight), [{"x": numbers(1, 4)}], threads=1)


def test_a_network_without_layers_is_refused() -> None:
    proto = model([node("Relu", "x", "y")], {"x": numbers(1, 4)}, ["y"])
    with pytest.raises(hx.Error, match="got no layer to quantise, need Conv, ConvTranspose, Gemm, MatMul"):
        hx.quantize_model(proto, [{"x": numbers(1, 4)}], threads=1)


BAD_FIELDS: dict[str, tuple[dict[str, Any], str]] = {
    "dtype": ({"dtype": "int9"}, "dtype: got 'int9', need one of .*did you mean 'int8'"),
    "method": ({"method": "max"}, "method: got 'max', need one of minmax"),
    "percentile": ({"percentile": 0.0}, "percentile: got 0, need more than 50 and at most 100"),
    "layers": ({"float_layers": "head"}, "float_layers: got the text 'head', need a list"),
}


@pytest.mark.parametrize("name", BAD_FIELDS)
def test_wrong_fields_are_refused(name: str) -> None:
    fields, message = BAD_FIELDS[name]
    with pytest.raises(hx.Error, match=message):
        hx.Quantization(**fields)


def test_patterns_have_to_fit_some_layers_but_not_all() -> None:
    for pattern, message in (("tail", "got 'tail', which fits no layer, need one of mix"), ("*", "fit every layer")):
        with pytest.raises(hx.Error, match=message):
            hx.quantize_model(network(), [{"x": numbers(1, 4)}], hx.Quantization(float_layers=[pattern]), threads=1)
