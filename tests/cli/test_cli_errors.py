"""What the command refuses: in one line that names the place, and with the exit code of its kind."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import Cli, save_model, spawn
from hexane.cli.errors import command as as_command
from hexane.cli.errors import of_command, options_of, with_options
from hexane.cli.options import named_shape
from hexane.cli.run import run
from hexane.errors import HazardWarning, warn


def broken(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("command", [("run",), ("info",), ("compile", "-o", "out.hxp")])
@pytest.mark.parametrize("what", ["missing", "folder", "empty", "onnx", "plan", "short plan"])
def test_a_file_that_is_no_model_is_one_readable_error(cli, tmp_path, monkeypatch, command, what):
    monkeypatch.chdir(tmp_path)
    path = {
        "missing": lambda: tmp_path / "none.onnx",
        "folder": lambda: tmp_path,
        "empty": lambda: broken(tmp_path / "m.onnx", b""),
        "onnx": lambda: broken(tmp_path / "m.onnx", b"\x08\x08not protobuf at all"),
        "plan": lambda: broken(tmp_path / "m.hxp", b"HEXANE\x1a\n" + bytes(200)),
        "short plan": lambda: broken(tmp_path / "m.hxp", b"HEXANE\x1a\n"),
    }[what]()
    ended = cli(command[0], path, *command[1:])
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert len(ended.err.splitlines()) == 1
    assert "fault of hexane" not in ended.err
    assert not (tmp_path / "out.hxp").exists()


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((1, 3, 2, 5), np.float32), ("[1, 3, 2, 5]", "[1, 3, 2, 4]")),
        (np.zeros((3, 2, 4), np.float32), ("[3, 2, 4]", "[1, 3, 2, 4]")),
        (np.full((1, 3, 2, 4), 1e39), ("float64", "fp32", "does not hold all of these numbers")),
        (np.full((1, 3, 2, 4), 2**24 + 1), ("int64", "fp32", "does not hold all of these numbers")),
        (np.zeros((1, 3, 2, 4), np.complex64), ("complex64", "fp32")),
        (np.full((1, 3, 2, 4), None), ("no npy file", "Python objects")),
    ],
)
def test_an_array_that_does_not_fit_names_the_port_got_and_need(cli, model, tmp_path, array, words):
    np.save(tmp_path / "bad.npy", array, allow_pickle=True)
    ended = cli("run", model, "--input", f"x={tmp_path}/bad.npy")
    assert ended.code == 1
    assert "[input] 'x'" in ended.err
    assert all(word in ended.err for word in words)


def test_a_file_of_another_format_is_no_npy_file(cli, model, tmp_path):
    np.savez(tmp_path / "many.npz", a=np.zeros(3))
    for content in (b"", b"\x93NUMPY", (tmp_path / "many.npz").read_bytes()):
        ended = cli("run", model, "--input", f"x={broken(tmp_path / 'bad.npy', content)}")
        assert ended.code == 1
        assert "bad.npy" in ended.err


def test_an_unknown_input_name_is_told_the_known_ones(cli, model, x_file):
    ended = cli("run", model, "--input", f"z={x_file}")
    assert ended.code == 1
    assert "got the name 'z', need one of x" in ended.err


def test_an_unreadable_node_is_reported_with_its_op(cli, tmp_path):
    ports = ("x", TensorProto.FLOAT, [1]), ("y", TensorProto.FLOAT, [1])
    path = save_model(tmp_path / "m.onnx", [helper.make_node("NoSuchOp", ["x"], ["y"])], ports[:1], ports[1:])
    ended = cli("info", path)
    assert ended.code == 1
    assert "NoSuchOp" in ended.err


def test_a_plan_takes_no_option_of_the_compiler(cli, model, tmp_path):
    assert cli("compile", model, "-o", tmp_path / "m.hxp").code == 0
    ended = cli("run", tmp_path / "m.hxp", "--dtype", "fp16")
    assert ended.code == 1
    assert "--dtype" in ended.err
    assert cli("compile", tmp_path / "m.hxp", "-o", tmp_path / "n.hxp").code == 1


@pytest.mark.parametrize(
    "args",
    [
        ("--no-such-flag",),
        ("no-such-command",),
        ("run",),
        ("run", "m.onnx", "--no-such-flag"),
        ("run", "m.onnx", "--input", "x"),
        ("run", "m.onnx", "--input", "=x.npy"),
        ("run", "m.onnx", "--input", "x=picture.gif"),
        ("run", "m.onnx", "--input", "x=a.npy", "--input", "x=b.npy"),
        ("run", "m.onnx", "--input-shape", "x:1,2"),
        ("run", "m.onnx", "--input-shape", "1x2"),
        ("run", "m.onnx", "--mean", "a"),
        ("run", "m.onnx", "--mean", "0.5"),
        ("run", "m.onnx", "--input", "x=a.png", "--std", "0"),
        ("run", "m.onnx", "--threads", "0"),
        ("run", "m.onnx", "--dtype", "int3"),
        ("compile", "m.onnx"),
    ],
    ids=" ".join,
)
def test_wrong_usage_ends_with_2(cli, args):
    ended = cli(*args)
    assert (ended.code, ended.out) == (2, "")
    assert "Traceback" not in ended.err


@pytest.mark.parametrize(
    ("text", "name", "shape"),
    [("x:1x3", "x", (1, 3)), ("scope/x:0:2", "scope/x:0", (2,)), ("x:", "x", ()), ("x:0x3", "x", (0, 3))],
)
def test_input_shapes_are_read_behind_the_last_colon(text, name, shape):
    assert named_shape(text) == (name, shape)


def test_debug_shows_the_traceback(tmp_path):
    for flags, shown in (((), False), (("--debug",), True)):
        process = spawn("info", tmp_path / "none.onnx", *flags)
        _, err = process.communicate()
        assert process.returncode == 1
        assert ("Traceback" in err) == shown


def test_a_warning_is_printed_once_for_each_text(capsys: pytest.CaptureFixture[str]) -> None:
    @as_command
    def twice(debug: bool = False) -> None:
        for words in ("h13: a", "h13: a", "h15: a"):
            warn(words, HazardWarning)

    twice(debug=False)
    assert capsys.readouterr().err.splitlines() == ["warning: h13: a", "warning: h15: a"]


def test_options_of_the_host_are_named_for_a_chip(cli, model, tmp_path):
    ended = cli("compile", model, "--target", "h13", "--runtime", "c99", "-o", tmp_path / "m.hxp")
    assert ended.err == "error: [compile] got --runtime for h13, need the host as the target; no plan written\n"


def test_a_command_for_one_target_says_so_for_two(cli, model, tmp_path):
    ended = cli("compile", model, "--target", "h13,h14", "-o", tmp_path / "m.hxp")
    assert (ended.code, ended.err) == (1, "error: [target] got 2 targets, 'h13,h14', need one\n")


@pytest.mark.parametrize(
    ("asked", "labels"),
    [("iPhone13,2", ["iPhone13,2 (h13)"]), ("Mac17,6,h13", ["Mac17,6 (h17)", "h13"]), ("h15,iphone13,2", ["h15", "iPhone13,2 (h13)"])],
)  # fmt: skip
def test_an_identifier_is_not_split_at_its_comma(cli, model, asked, labels):
    out = cli("check", model, "--target", asked).out
    assert all(label in out for label in labels)
    assert "got '" not in out


def test_a_file_that_is_no_npy_file_gets_no_advice_on_pickles(cli, model, tmp_path):
    broken(tmp_path / "x.npy", b"abc\n")
    ended = cli("run", model, "--input", f"x={tmp_path / 'x.npy'}")
    assert ended.code == 1
    assert "is no npy file of numbers: got the first bytes b'abc\\n'" in ended.err
    assert "pickle" not in ended.err


@pytest.mark.parametrize("args", [("run",), ("compile",), ("emit", "--target", "h13")])
def test_an_output_that_cannot_be_written_names_the_option(cli, model, args):
    ended = cli(args[0], model, *args[1:], "--output", "/proc/none/m.hxp")
    assert ended.code == 1
    assert "error: --output: /proc/none" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compile", "--target", "M1", "--target=M4"), "--target: got it twice, need it once"),
        (("compile", "-o", "a.hxp", "--output", "b.hxp", "-o", "c"), "--output: got it 3 times, need it once"),
        (("check", "--target", "M1", "--target", "M4"), "several names have commas between them: --target M1,M4"),
        (("compare", "--targets", "M1", "--target", "M4"), "several names have commas between them: --targets M1,M4"),
        (("compress", "--bytes", "4M", "--bytes", "5M"), "--bytes: got it twice, need it once"),
    ],
)
def test_an_option_with_one_value_is_given_once(cli, model, arguments, words):
    name, *options = arguments
    ended = cli(name, model, *options)
    assert (ended.code, ended.out) == (2, "")
    assert words in " ".join(ended.err.split())


def test_flags_and_repeatable_options_may_be_given_twice(cli, model, x_file, tmp_path):
    assert cli("run", model, "--input", f"x={x_file}", "--json", "--json").code == 0
    ended = cli("check", model, "--target", "M1", "--fail-on", "host", "--fail-on", "segments=1")
    assert ended.code == 0, ended.err


@pytest.mark.parametrize("wrong", ["--chip", "--chips", "--device", "--targets"])
def test_an_option_for_chips_is_suggested(cli, model, wrong):
    ended = cli("check", model, wrong, "m1")
    assert ended.code == 2
    assert "(Possible options: --target)" in " ".join(ended.err.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("compile", "-o", "none/net.hxp"),
        ("compress", "--target", "M4", "-o", "none/net.mil"),
        ("compress", "-o", "none/net.onnx"),
        ("emit", "-o", "none/Net.mlpackage"),
        ("emit", "-o", "none/net.aimodel"),
        ("compare", "--targets", "M1,M4", "--plot", "none/p.svg"),
        ("check", "--target", "M4", "--html", "none/p.html"),
    ],
)
def test_a_file_in_no_folder_is_an_error_that_names_the_folder(cli, model, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    name, *options = arguments
    if "--plot" in options:
        pytest.importorskip("matplotlib")
    ended = cli(name, model, *options)
    assert ended.code == 1
    assert "got no folder none, need an existing one" in ended.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("compile", "-o", "none/m.hxp"), "--output: none/m.hxp: got no folder none, need an existing one"),
        (("compress", "-o", "none/m.onnx"), "--output: none/m.onnx: got no folder none, need an existing one"),
        (("emit", "-o", "none/m.mlpackage"), "--output: none/m.mlpackage: got no folder none"),
        (("check", "--html", "none/m.html"), "--html: none/m.html: got no folder none"),
        (("estimate", "--target", "M1", "--plot", "none/m.png"), "--plot: none/m.png: got no folder none"),
        (("run", "--trace", "none/m.json"), "--trace: none/m.json: got no folder none"),
        (("compile", "-o", "there.hxp"), "--output: there.hxp: got a folder, need the name of a file"),
    ],
)
def test_a_missing_folder_is_noticed_before_the_work(cli, tmp_path, monkeypatch, args, said):
    """The model is no model: reading it would be another error."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.hxp").mkdir()
    (tmp_path / "m.onnx").write_bytes(b"no model")
    ended = cli(args[0], "m.onnx", *args[1:])
    assert ended.code == 1
    assert ended.err.startswith(f"error: {said}")


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("[compress] mode: got 'int5', need one", "[compress] --mode: got 'int5', need one"),
        ("[compress] per_layer: got the pattern 'z'", "[compress] --layer: got the pattern 'z'"),
        ("[llm.load] dtype: got 'int8'", "[llm.load] dtype: got 'int8'"),  # no option of this command
        ("[emit] cast: got fp32 to int4", "[emit] cast: got fp32 to int4"),
        ("[import] mode: got the name twice", "[import] mode: got the name twice"),  # a node called mode
        ("need compress='int8' (--compress int8) too", "need --compress int8 too"),
        ('got it, need compress="lz4"', "got it, need --compress lz4"),
        ("need device='cpu'", "need device='cpu'"),
        ("need a larger context= (--context): it takes 8", "need a larger --context: it takes 8"),
    ],
)
def test_a_message_names_options_of_the_command_and_no_arguments(message: str, said: str) -> None:
    names = {"per_layer": "--layer", **{name: f"--{name}" for name in ("mode", "compress", "context")}}
    assert with_options(message, names) == said


def test_arguments_of_a_command_are_no_options() -> None:
    options = options_of(run)
    assert "model" not in options
    assert (options["with_profile"], options["input_shape"]) == ("--profile", "--input-shape")


@pytest.mark.parametrize("option", ["--input", "--calibration"])
def test_a_wrong_file_of_inputs_has_one_form_of_error(cli: Cli, model: Path, tmp_path: Path, option: str) -> None:
    (tmp_path / "x.npz").write_text("abc")
    ended = cli("check", model, "--target", "M1", option, tmp_path / "x.npz")
    which = "calibration " if option == "--calibration" else ""
    assert ended.err == f"error: [input] {which}{tmp_path}/x.npz is no npz file of numbers: File is not a zip file\n"
    (tmp_path / "x.txt").write_text("abc")
    ended = cli("check", model, "--target", "M1", option, tmp_path / "x.txt")
    assert ended.code == 2, "wrong usage with either option"
    assert "need one that ends in" in " ".join(ended.err.split())


def test_an_error_names_the_command_and_not_a_reader_of_the_library(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "text.txt").write_text("abc")
    args = ("--tokenizer", tmp_path / "tokenizer.json", "-o", tmp_path / "tokens.bin")
    ended = cli("tokenize", tmp_path / "text.txt", *args)
    assert ended.code == 1
    assert ended.err.startswith("error: [tokenize] ")
    assert of_command("[train.load_llama] m: got 1, need 2", "generate") == "[generate] m: got 1, need 2"
    assert of_command("[train.fit] m: got 1, need 2", "train") == "[train.fit] m: got 1, need 2"
