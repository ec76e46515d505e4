"""--calibration and --preprocess: commands judge a network on a folder of images, and say where inputs are random."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import Cli, save_model

Image = pytest.importorskip("PIL.Image", reason="Pillow, which reads images, is not installed")

RAW = ("--preprocess", "scale=1")


@pytest.fixture
def sums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Twice the sum of all pixels of an image: bright ones, and only they, leave fp16. The size is free."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Conv", ["image", "w"], ["y"], name="sum", strides=[8, 8])]
    inputs = [("image", TensorProto.FLOAT, ["n", 3, "height", "width"])]
    outputs = [("y", TensorProto.FLOAT, ["n", 32, "h", "w"])]
    weight = np.full((32, 3, 8, 8), 2, np.float32)
    path = save_model(tmp_path / "sums.onnx", nodes, inputs, outputs, [("w", weight)])
    (tmp_path / "photos").mkdir()
    for name, grey in (("a dark", 10), ("bright", 250), ("medium", 60)):
        Image.new("RGB", (8, 8), (grey, grey, grey)).save(tmp_path / "photos" / f"{name}.png")
    return path


def test_check_fails_on_the_worst_image(cli: Cli, sums: Path) -> None:
    args = ("check", sums, "--target", "M1", "--fail-on", "error=1e-2", "--calibration", "photos")
    ended = cli(*args, *RAW)
    assert (ended.code, ended.err) == (3, "")
    assert "of output y on bright.png (beyond it on 1 of 3 inputs), need at most 0.01" in ended.out
    assert "inputs: 3 of photos" in ended.out
    assert "advice" not in ended.out
    record = json.loads(cli(*args, *RAW, "--json").out)
    assert (record["ok"], record["inputs"]) == (False, "inputs: 3 of photos")
    assert cli(*args).code == 0  # pixels from 0 to 1


def test_compare_shows_the_image_on_which_outputs_are_furthest_apart(cli: Cli, sums: Path) -> None:
    args = ("compare", sums, "--targets", "M1,ieee", "--calibration", "photos")
    ended = cli(*args, *RAW)
    assert (ended.code, ended.err) == (3, "")
    assert "inputs: 3; the layers are those of bright.png, where output y is furthest apart on M1 (h13)" in ended.out
    assert "random" not in ended.out
    record = json.loads(cli(*args, *RAW, "--json").out)
    assert (record["inputs"]["count"], record["inputs"]["furthest"]) == (3, "bright.png")
    assert cli(*args).code == 0


def test_random_inputs_are_called_advice(cli: Cli, sums: Path, tmp_path: Path) -> None:
    shape = ("--input-shape", "image:1x3x8x8")
    advice = "random, seed 0; numbers on random inputs are only a hint: --input or --calibration gives the model's own"
    assert advice in cli("check", sums, *shape, "--target", "M1", "--fail-on", "error=1").out
    assert advice in cli("compare", sums, *shape, "--targets", "M1,ieee").out
    ended = cli("compress", sums, *shape, "--mode", "int8", "-o", tmp_path / "m.hxp")
    assert advice.partition("; ")[2] in ended.out
    ended = cli("compress", sums, "--mode", "int8", "-o", tmp_path / "m.hxp", "--calibration", "photos")
    assert "on 3 calibration inputs" in ended.out
    assert "advice" not in ended.out


@pytest.mark.parametrize(
    "args",
    [
        ("check", "--target", "M1"),
        ("compare", "--targets", "M1,ieee"),
        ("compress", "--mode", "int8", "-o", "small.hxp"),
        ("estimate", "--target", "M1,host"),
        ("explain", "--target", "M1"),
        ("quantize", "--target", "M1", "-o", "small.onnx"),
    ],
    ids=lambda args: args[0],
)
def test_every_command_takes_a_folder_and_shapes_from_it(cli: Cli, sums: Path, args: tuple[str, ...]) -> None:
    name, *others = args
    ended = cli(name, sums, *others, "--calibration", "photos", "--preprocess", "mean=127.5 scale=0.0078 layout=nchw")
    assert (ended.code, ended.err) == (0, "")
    ended = cli(name, sums, *others, "--calibration", "no folder")
    assert ended.code == 1
    assert "[input] calibration no folder" in ended.err


def test_compress_measures_on_the_given_input(cli: Cli, sums: Path, tmp_path: Path) -> None:
    np.save("x.npy", np.full((1, 3, 8, 8), 200))
    ended = cli("compress", sums, "--mode", "int8", "--input", "x.npy", "-o", tmp_path / "m.hxp")
    assert ended.code == 0, ended.err
    assert "on 1 calibration input" in ended.out


def test_quantize_takes_an_input_and_a_value(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    nodes = [
        helper.make_node("Conv", ["image", "w"], ["c"], name="conv"),
        helper.make_node("Mul", ["c", "gain"], ["y"], name="mul"),
    ]
    inputs = [("image", TensorProto.FLOAT, ["n", 3, 8, 8]), ("gain", TensorProto.FLOAT, [1])]
    weight = np.random.default_rng(0).standard_normal((8, 3, 3, 3)).astype(np.float32)
    path = save_model(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)], [("w", weight)])
    np.save("x.npy", np.random.default_rng(1).integers(0, 256, (1, 3, 8, 8)))
    ended = cli("quantize", path, "--input", "image=x.npy", "--value", "gain=0.5", "-o", "q.onnx", "--target", "M1")
    assert ended.code == 0, ended.err
    assert "on 1 calibration input" in ended.out
    Image.new("RGB", (8, 8), (1, 2, 3)).save("x.png")
    ended = cli("quantize", path, "--calibration", "x.png", "--value", "gain=0.5", "-o", "q.onnx")
    assert ended.code == 0, ended.err
    ended = cli("quantize", path, "--input", "image=x.npy", "-o", "q.onnx")
    assert ended.code == 1
    assert "got the arrays image, need image, gain" in ended.err


def test_an_input_is_given_once(cli: Cli, sums: Path) -> None:
    np.save("x.npy", np.zeros((1, 3, 8, 8), np.float32))
    args = ("check", sums, "--target", "M1", "--calibration", "photos/bright.png", "--input", "x.npy")
    ended = cli(*args)
    assert ended.code == 1
    assert "[input] calibration photos/bright.png" in ended.err
    ended = cli("check", sums, "--target", "M1", "--input-shape", "image:1x3x8x8", *RAW)
    assert ended.code == 2
    assert "--preprocess: got no image or sound" in " ".join(ended.err.split())
