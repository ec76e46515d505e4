"""Inputs on the command line: every command takes them in the same forms, and shapes follow from them."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from command import Cli, save_model
from exported import from_paddle, pixels
from onnx_models import by_onnxruntime

COMMANDS = {
    "check": ("--target", "h13"),
    "compare": ("--targets", "h13,ieee", "--tolerance", "1"),
    "compile": ("-o", "net.hxp"),
    "compress": ("-o", "small.hxp", "--mode", "int8"),
    "emit": ("--target", "h13", "-o", "out"),
    "estimate": ("--target", "M1"),
    "explain": ("--target", "M1"),
    "fit": (),
    "info": (),
    "run": (),
}


@pytest.fixture
def paddle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An open model in the current folder, with inputs for it in every form."""
    monkeypatch.chdir(tmp_path)
    onnx.save(from_paddle(), "net.onnx")
    x = pixels(1, 3, 48, 64)
    np.save("x.npy", x)
    np.savez("x.npz", x=x)
    return tmp_path / "net.onnx"


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """y = a * b + k, of which a and b have the free dim n."""
    monkeypatch.chdir(tmp_path)
    nodes = [helper.make_node("Mul", ["a", "b"], ["ab"]), helper.make_node("Add", ["ab", "k"], ["y"])]
    inputs = ("a", TensorProto.FLOAT, ["n", 3]), ("b", TensorProto.FLOAT, ["n", 3]), ("k", TensorProto.FLOAT, [1])
    np.save("a.npy", np.full((2, 3), 2, np.float32))
    np.savez("ab.npz", a=np.full((2, 3), 2, np.float32), b=np.full((2, 3), 5, np.float32))
    return save_model(tmp_path / "two.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)])


@pytest.mark.parametrize("given", ["x.npy", "x=x.npy", "x.npz"])
@pytest.mark.parametrize("name", ["compare", "run"])
def test_an_input_may_be_given_in_every_form(cli: Cli, paddle: Path, name: str, given: str) -> None:
    ended = cli(name, paddle, *COMMANDS[name], "--input", given)
    assert (ended.code, "random" in ended.out) == (0, False), ended.err


@pytest.mark.parametrize("name", COMMANDS)
def test_shapes_follow_from_an_input_in_every_command(cli: Cli, paddle: Path, name: str) -> None:
    assert cli(name, paddle, *COMMANDS[name], "--input", "x.npy").code == 0


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"info"}))
def test_without_shapes_every_command_suggests_the_same_one(cli: Cli, paddle: Path, name: str) -> None:
    ended = cli(name, paddle, *COMMANDS[name])
    assert ended.code == 1
    assert "--input-shape x:1x3x48x320" in ended.err


def test_the_result_is_that_of_onnxruntime(cli: Cli, paddle: Path) -> None:
    assert cli("run", paddle, "--input", "x.npy", "--output", ".").code == 0
    want = by_onnxruntime(from_paddle("n"), {"x": np.load("x.npy")[..., :48]})[0].shape
    assert np.load("y.npy").shape == want


def test_some_inputs_may_be_given_and_others_are_random(cli: Cli, two: Path) -> None:
    first = cli("run", two, "--input", "a=a.npy", "--value", "k=7", "--output", "one")
    assert "inputs: b random, seed 0" in first.out
    cli("run", two, "--input", "a=a.npy", "--value", "k=8", "--output", "other")
    np.testing.assert_allclose(np.load("other/y.npy") - np.load("one/y.npy"), 1, rtol=1e-6)
    ended = cli("compare", two, "--targets", "h13,ieee", "--input", "ab.npz", "--tolerance", 1, "--seed", 3)
    assert "inputs: k random, seed 3" in ended.out


def test_a_value_fills_an_input_or_lists_its_elements(cli: Cli, two: Path) -> None:
    files = "--input", "ab.npz"
    record = json.loads(cli("run", two, *files, "--value", "k=0.5", "--json", "--output", ".").out)
    assert record["inputs"][2] == {"name": "k", "dtype": "fp32", "shape": [1], "from": "--value"}
    np.testing.assert_array_equal(np.load("y.npy"), np.full((2, 3), 10.5))
    given = "--input-shape", "a:1x3", "--value", "a=1,2,3", "--value", "b=2", "--value", "k=0"
    assert "[input] --value b: got" in cli("run", two, *given).err
    assert cli("run", two, *given, "--input-shape", "b:1x3", "--output", ".").code == 0
    np.testing.assert_array_equal(np.load("y.npy"), [[2, 4, 6]])


def test_a_value_that_decides_shapes_compiles(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = ("x", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])
    path = save_model(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)])
    assert cli("compile", path, "-o", tmp_path / "m.hxp", "--value", "shape=2,3").code == 0
    plan = json.loads(cli("run", tmp_path / "m.hxp", "--value", "x=0,1,2,3,4,5", "--json").out)
    assert (plan["outputs"][0]["shape"], plan["outputs"][0]["max"]) == ([2, 3], 5)
    assert "--value shape=V" in cli("explain", path, "--target", "M1").err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--input", "a.npy"), "need NAME=a.npy with one of a, b, k"),
        (("--input", "ab.npz", "--value", "z=1"), "got the name 'z', need one of a, b, k"),
        (("--input", "ab.npz", "--input", "a=a.npy"), "got 'a', which is given already"),
        (("--input", "ab.npz", "--value", "k=1,2"), "got 2 numbers, need 1 or 1"),
        (("--input", "a=a.npy", "--input-shape", "a:5x3"), "got float32[2, 3] from a.npy, need a: fp32[5, 3]"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(cli: Cli, two: Path, args: tuple[str, ...], words: str) -> None:
    for name in ("run", "explain"):
        ended = cli(name, two, *COMMANDS[name], *args)
        assert (ended.code, words in ended.err) == (1, True), ended.err


@pytest.mark.parametrize(
    ("dtype", "value", "words"),
    [
        ("UINT8", "300", "got 300, need uint8"),
        ("INT64", "1.5", "got 1.5, need int64"),
        ("BOOL", "2", "need true or false"),
        ("BOOL", "true", ""),
        ("UINT8", "255", ""),
        ("INT64", "9007199254740993", ""),
    ],
)
def test_a_value_has_the_dtype_of_its_input(cli: Cli, tmp_path: Path, dtype: str, value: str, words: str) -> None:
    kind = getattr(TensorProto, dtype)
    node = helper.make_node("Identity", ["x"], ["y"])
    path = save_model(tmp_path / "m.onnx", [node], [("x", kind, [2])], [("y", kind, [2])])
    ended = cli("run", path, "--value", f"x={value}", "--output", tmp_path)
    assert (ended.code, words in ended.err) == (int(bool(words)), True), ended.err
    if not words:
        assert np.load(tmp_path / "y.npy").tolist() == [int(value.replace("true", "1"))] * 2


@pytest.mark.parametrize("args", [("--value", "x"), ("--value", "x=a"), ("--value", "=1"), ("--input", "x=a.npz")])
def test_forms_that_are_none_end_with_2(cli: Cli, two: Path, args: tuple[str, ...]) -> None:
    assert cli("run", two, *args).code == 2


def test_a_number_that_the_input_does_not_hold_is_refused_in_words(
    cli: Cli, two: Path, recwarn: pytest.WarningsRecorder
) -> None:
    args = ("--input-shape", "a:1x3", "--input-shape", "b:1x3", "--value", "b=2", "--value", "k=0")
    for number in ("1e40", "-1e39", str(10**40)):
        ended = cli("run", two, *args, "--value", f"a={number}")
        assert ended.code == 1
        assert ended.err.startswith("error: [input] --value a: got ")
        assert ended.err.endswith("need numbers that fp32 holds\n")
    assert cli("run", two, *args, "--value", "a=inf").code == 0
    assert not [warning for warning in recwarn if issubclass(warning.category, RuntimeWarning)]


@pytest.mark.parametrize("dtype", [">f4", "<f2", "<f8", "<i8", "uint8", ">i2"])
@pytest.mark.parametrize("form", ["x.npy", "x.npz"])
def test_arrays_in_other_dtypes_are_converted(cli: Cli, paddle: Path, dtype: str, form: str) -> None:
    x = pixels(1, 3, 48, 64).round()
    np.save("x.npy", x)
    cli("run", paddle, "--input", "x.npy", "--output", "want")
    np.save("x.npy", x.astype(dtype))
    np.savez("x.npz", x=x.astype(dtype))
    ended = cli("run", paddle, "--input", form, "--output", "got")
    assert ended.code == 0, ended.err
    (name,) = (path.name for path in Path("want").iterdir())
    np.testing.assert_array_equal(np.load(f"got/{name}"), np.load(f"want/{name}"))


def test_the_shape_that_is_asked_for_is_the_one_that_fits_the_others(cli: Cli, tmp_path: Path) -> None:
    inputs = ("a", TensorProto.FLOAT, ["m", "k"]), ("b", TensorProto.FLOAT, ["k", "n"])
    path = save_model(
        tmp_path / "m.onnx", [helper.make_node("MatMul", ["a", "b"], ["y"])], inputs, [("y", TensorProto.FLOAT, None)]
    )
    np.save(tmp_path / "a.npy", np.ones((3, 7), np.float32))
    for name in ("run", "fit", "check", "info", "explain", "compile"):
        ended = cli(name, path, *COMMANDS[name], "--input", f"a={tmp_path}/a.npy")
        assert "--input-shape b:7x1" in ended.err + ended.out, name
