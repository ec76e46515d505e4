"""The command `hexane`: what it prints, writes and refuses, and with which exit code it ends."""

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from hexane.cli.main import app
from hexane.cli.options import named_shape
from hexane.cli.results import file_names
from hexane.ops import USER_OPS
from hexane.targets import load_target
from hexane.targets.tables import target_names


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("run", path, ...) runs the command in this process."""

    def run(*args: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            app([str(a) for a in args], prog_name="hexane")
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def spawn(*args: object, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "hexane", *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def weights(rows: int, columns: int = 10) -> np.ndarray:
    """Small integers: products of them are exact."""
    return np.random.default_rng(7).integers(-3, 4, (rows, columns)).astype(np.float32)


def save_model(path: Path, nodes, inputs, outputs, constants=()) -> Path:
    """inputs and outputs: (name, element type, shape)."""
    values = [[helper.make_tensor_value_info(*port) for port in ports] for ports in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants]
    graph = helper.make_graph(nodes, "g", *values, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def linear_model(path: Path, shape, matrix: np.ndarray) -> Path:
    """y = flatten(x) @ matrix."""
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    ports = ("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, [shape[0], matrix.shape[1]])
    return save_model(path, nodes, ports[:1], ports[1:], [("w", matrix)])


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return linear_model(tmp_path / "model.onnx", [1, 3, 2, 4], weights(24))


@pytest.fixture
def open_model(tmp_path: Path) -> Path:
    """Its input has the free dim `rows`."""
    return linear_model(tmp_path / "open.onnx", ["rows", 24], weights(24))


@pytest.fixture
def x() -> np.ndarray:
    return np.random.default_rng(3).integers(-4, 5, (1, 3, 2, 4)).astype(np.float32)


@pytest.fixture
def x_file(tmp_path: Path, x: np.ndarray) -> Path:
    np.save(tmp_path / "x.npy", x)
    return tmp_path / "x.npy"


# ---- run ----


def test_run_writes_the_output_that_numpy_gives(cli, model, x, x_file, tmp_path):
    ended = cli("run", model, "--input", f"x={x_file}", "--output", tmp_path / "new" / "out")
    assert (ended.code, ended.err) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "new" / "out" / "y.npy"), x.reshape(1, -1) @ weights(24))
    assert "y  fp32[1, 10]  min" in ended.out
    assert "median" in ended.out
    assert "cpu (" in ended.out
    assert "random" not in ended.out


def test_run_without_inputs_says_that_they_are_random_and_repeats_them(cli, model, tmp_path):
    outputs = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert "random, seed 0" in cli("run", model, "--output", folder).out
        outputs.append(np.load(folder / "y.npy"))
    np.testing.assert_array_equal(*outputs)


def test_run_prints_one_json_object(cli, model, x_file, x):
    record = json.loads(cli("run", model, "--input", f"x={x_file}", "--threads", 1, "--profile", "--json").out)
    expected = x.reshape(1, -1) @ weights(24)
    (output,) = record["outputs"]
    assert (output["name"], output["dtype"], output["shape"]) == ("y", "fp32", [1, 10])
    assert (output["min"], output["max"]) == (expected.min(), expected.max())
    assert record["threads"] == 1
    assert record["latency"]["median_us"] <= record["latency"]["p90_us"]
    assert record["inputs"][0]["from"] == str(x_file)
    assert sum(step["share"] for step in record["profile"]) == pytest.approx(1)


def test_run_profile_lists_steps_and_kernels(cli, model):
    out = cli("run", model, "--profile").out
    assert re.search(r"kernel +from +calls +us +share", out)
    assert re.search(r"kernel +steps +us +share", out)
    assert "matmul" in out


def test_run_shows_the_likeliest_classes_of_probabilities(cli, tmp_path):
    path = linear_model(tmp_path / "m.onnx", [1, 4], np.eye(4, dtype=np.float32))
    np.save(tmp_path / "p.npy", np.array([[0.125, 0.5, 0.25, 0.125]], np.float32))
    top = json.loads(cli("run", path, "--input", f"x={tmp_path}/p.npy", "--json").out)["outputs"][0]["top"]
    assert [(t["index"], t["value"]) for t in top] == [(1, 0.5), (2, 0.25), (0, 0.125), (3, 0.125)]


def test_run_reports_values_that_are_not_finite_and_keeps_json_valid(cli, tmp_path):
    path = linear_model(tmp_path / "m.onnx", [1, 1], np.array([[1, 1]], np.float32))
    np.save(tmp_path / "p.npy", np.array([[np.nan]], np.float32))
    ended = cli("run", path, "--input", f"x={tmp_path}/p.npy", "--json")
    output = json.loads(ended.out, parse_constant=pytest.fail)["outputs"][0]
    assert (output["not_finite"], output["mean"]) == (2, None)


def test_run_fixes_free_dims_by_option_or_by_the_input(cli, open_model, tmp_path):
    fixed = json.loads(cli("run", open_model, "--input-shape", "x:3x24", "--json").out)
    assert fixed["outputs"][0]["shape"] == [3, 10]
    np.save(tmp_path / "x.npy", np.ones((5, 24), np.float32))
    ended = cli("run", open_model, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path)
    assert ended.code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), np.ones((5, 24), np.float32) @ weights(24))
    refused = cli("run", open_model)
    assert refused.code == 1
    assert "--input-shape x:" in refused.err


def test_run_makes_random_indices_that_are_in_range(cli, tmp_path):
    node = helper.make_node("Gather", ["table", "i"], ["y"])
    ports = ("i", TensorProto.INT64, [5]), ("y", TensorProto.FLOAT, [5, 3])
    path = save_model(tmp_path / "m.onnx", [node], ports[:1], ports[1:], [("table", weights(2, 3))])
    assert cli("run", path).code == 0


def test_run_stores_fp16_inside_when_told_to(cli, model, x, x_file, tmp_path):
    ended = cli("run", model, "--input", f"x={x_file}", "--dtype", "fp16", "--output", tmp_path)
    assert ended.code == 0
    result = np.load(tmp_path / "y.npy")
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, x.reshape(1, -1) @ weights(24))


def test_output_files_keep_names_apart_and_inside_the_folder():
    names = dict.fromkeys(["y", "Y", "../y", "a/b", "a:b", ".hidden", ""])
    assert file_names(names) == ["y", "Y_1", "_y", "a_b", "a_b_1", "hidden", "output"]


def test_run_leaves_the_old_output_when_it_cannot_write(cli, model, tmp_path):
    (tmp_path / "file").write_text("old")
    ended = cli("run", model, "--output", tmp_path / "file")
    assert ended.code == 1
    assert "need a folder" in ended.err
    assert (tmp_path / "file").read_text() == "old"


# ---- png ----


@pytest.fixture
def png(tmp_path: Path) -> Callable[..., tuple[Path, np.ndarray]]:
    """png("RGB", 4, 2) is a picture 4 wide and 2 high: its path and pixels."""
    image = pytest.importorskip("PIL.Image", reason="Pillow, which reads png files, is not installed")

    def make(mode: str, width: int, height: int) -> tuple[Path, np.ndarray]:
        channels = {"RGB": (3,), "RGBA": (4,), "L": ()}[mode]
        pixels = np.random.default_rng(5).integers(0, 256, (height, width, *channels)).astype(np.uint8)
        image.fromarray(pixels).save(tmp_path / "picture.png")
        return tmp_path / "picture.png", pixels

    return make


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
@pytest.mark.parametrize(
    ("options", "mean", "std"),
    [((), 0, 1), (("--mean", "0.5", "--std", "0.25"), 0.5, 0.25), (("--mean", "0.1,0.2,0.3"), (0.1, 0.2, 0.3), 1)],
)
def test_png_becomes_a_scaled_nchw_tensor(cli, png, tmp_path, mode, channels, options, mean, std):
    if np.size(mean) > channels:
        pytest.skip("three means need three channels")
    path = linear_model(tmp_path / "m.onnx", [1, channels, 2, 4], np.eye(8 * channels, dtype=np.float32))
    picture, pixels = png(mode, 4, 2)
    ended = cli("run", path, "--input", f"x={picture}", *options, "--output", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    scaled = ((pixels.reshape(2, 4, channels).astype(np.float32) / 255) - np.float32(mean)) / np.float32(std)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), scaled.transpose(2, 0, 1).reshape(1, -1))


@pytest.mark.parametrize(
    ("picture", "options", "words"),
    [
        (("RGB", 2, 4), (), ("2 x 4 RGB", "1x3x2x4")),
        (("L", 4, 2), (), ("4 x 2 grey", "1x3x2x4")),
        (("RGBA", 4, 2), (), ("mode RGBA", "RGB")),
        (("RGB", 4, 2), ("--mean", "1,2"), ("--mean", "got 2 numbers", "1 or 3")),
    ],
)
def test_png_that_does_not_fit_is_refused(cli, png, model, picture, options, words):
    ended = cli("run", model, "--input", f"x={png(*picture)[0]}", *options)
    assert ended.code == 1
    assert all(word in ended.err for word in words)


def test_png_that_is_damaged_is_refused(cli, png, model):
    path, _ = png("RGB", 4, 2)
    path.write_bytes(path.read_bytes()[:50])
    ended = cli("run", model, "--input", f"x={path}")
    assert ended.code == 1
    assert "no png file" in ended.err


def test_png_without_pillow_names_the_extra(cli, model, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    ended = cli("run", model, "--input", f"x={tmp_path}/any.png")
    assert ended.code == 1
    assert "hexane[images]" in ended.err


# ---- compile, info, ops ----


def test_compiled_plan_gives_the_same_bits_whatever_its_suffix(cli, model, tmp_path):
    plan = tmp_path / "plan.bin"
    assert cli("compile", model, "-o", plan).code == 0
    for path, folder in ((model, "a"), (plan, "b")):
        assert cli("run", path, "--output", tmp_path / folder).code == 0
    assert (tmp_path / "a" / "y.npy").read_bytes() == (tmp_path / "b" / "y.npy").read_bytes()


def test_compile_prints_sizes_as_json(cli, model, tmp_path):
    plan = tmp_path / "m.hxp"
    record = json.loads(cli("compile", model, "-o", plan, "--dtype", "fp16", "--json").out)
    assert record["plan"] == str(plan)
    assert record["file_bytes"] == plan.stat().st_size
    assert record["memory"]["weights"] >= 24 * 10 * 2


def test_compile_refuses_open_shapes_until_they_are_fixed(cli, open_model, tmp_path):
    plan = tmp_path / "m.hxp"
    refused = cli("compile", open_model, "-o", plan)
    assert refused.code == 1
    assert "--input-shape x:1x24" in refused.err
    assert not plan.exists()
    assert cli("compile", open_model, "-o", plan, "--input-shape", "x:2x24").code == 0
    assert hx.load(plan).inputs[0].shape == (2, 24)


def test_compile_dumps_the_graph_after_each_pass(cli, model, tmp_path):
    dump = tmp_path / "passes"
    assert cli("compile", model, "-o", tmp_path / "m.hxp", "--dump", dump).code == 0
    names = sorted(path.name for path in dump.iterdir())
    assert names[:2] == ["00-graph.txt", "01-expand.txt"]
    assert (dump / names[-1]).read_text().startswith("program ")


def test_compile_for_a_chip_warns_in_one_line_of_what_the_host_gets(cli, tmp_path):
    nodes = [
        helper.make_node("Relu", ["x"], ["a"], name="first"),
        helper.make_node("Sinh", ["a"], ["y"], name="second"),
    ]
    model = save_model(
        tmp_path / "m.onnx", nodes, [("x", TensorProto.FLOAT, [2, 3])], [("y", TensorProto.FLOAT, [2, 3])]
    )
    ended = cli("compile", model, "-o", tmp_path / "m.hxp", "--target", "M1")
    assert ended.code == 0
    assert (
        ended.err
        == "warning: [compile] h13: 1 of 2 ops run on the host: sinh at second (no family has a path for it)\n"
    )
    assert "steps for h13; " in ended.out
    assert json.loads(cli("info", tmp_path / "m.hxp", "--json").out)["target"] == "h13"
    refused = cli("compile", model, "-o", tmp_path / "n.hxp", "--target", "M1", "--fallback", "error")
    assert refused.code == 1
    assert refused.err.startswith("error: [compile] h13: 1 of 2 ops run on the host: sinh at second")


def test_compile_leaves_the_old_file_when_it_fails(cli, model, tmp_path):
    plan = tmp_path / "old.hxp"
    plan.write_bytes(b"old")
    (tmp_path / "bad.onnx").write_bytes(b"bad")
    assert cli("compile", tmp_path / "bad.onnx", "-o", plan).code == 1
    assert plan.read_bytes() == b"old"


def test_compile_to_a_folder_that_is_not_there_is_one_error(cli, model, tmp_path):
    ended = cli("compile", model, "-o", tmp_path / "none" / "m.hxp")
    assert ended.code == 1
    assert str(tmp_path / "none") in ended.err


def test_compile_never_writes_over_its_model(cli, model):
    before = model.read_bytes()
    ended = cli("compile", model, "-o", model)
    assert ended.code == 1
    assert "need another file" in ended.err
    assert model.read_bytes() == before


def test_info_shows_interface_ops_kernels_and_memory_of_a_model(cli, model):
    out = cli("info", model).out
    assert "x  fp32[1, 3, 2, 4]" in out
    assert "y  fp32[1, 10]" in out
    assert re.search(r"flatten +1", out)
    record = json.loads(cli("info", model, "--json").out)
    assert record["format"] == "onnx"
    assert record["ops"] == {"flatten": 1, "matmul": 1}
    assert record["memory"]["arena"] >= record["memory"]["arena_bound"]
    assert record["memory"]["weights"] >= 24 * 10 * 4


def test_info_shows_a_plan(cli, model, tmp_path):
    assert cli("compile", model, "-o", tmp_path / "m.hxp").code == 0
    of_model, of_plan = (json.loads(cli("info", p, "--json").out) for p in (model, tmp_path / "m.hxp"))
    assert of_plan["format"] == "plan"
    assert all(of_plan[key] == of_model[key] for key in ("inputs", "outputs", "kernels"))
    assert "x  fp32[1, 3, 2, 4]" in cli("info", tmp_path / "m.hxp").out


def test_info_names_open_dims_and_the_option_that_fixes_them(cli, open_model):
    out = cli("info", open_model).out
    assert "fp32[rows, 24]" in out
    assert "--input-shape x:1x24" in out
    record = json.loads(cli("info", open_model, "--json").out)
    assert record["inputs"][0]["shape"] == ["rows", 24]
    fixed = json.loads(cli("info", open_model, "--input-shape", "x:2x24", "--json").out)
    assert fixed["outputs"][0]["shape"] == [2, 10]


def test_an_input_of_any_rank_is_shown_and_run(cli, tmp_path):
    ports = ("x", TensorProto.FLOAT, None), ("y", TensorProto.FLOAT, None)
    path = save_model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], ports[:1], ports[1:])
    assert "x  fp32[...]" in cli("info", path).out
    np.save(tmp_path / "x.npy", np.array([[-1, 2]], np.float32))
    assert cli("run", path, "--input", f"x={tmp_path}/x.npy", "--output", tmp_path).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [[0, 2]])


def test_an_input_that_decides_shapes_has_to_be_given(cli, tmp_path):
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    inputs = ("x", TensorProto.FLOAT, [6]), ("shape", TensorProto.INT64, [2])
    path = save_model(tmp_path / "m.onnx", nodes, inputs, [("y", TensorProto.FLOAT, None)])
    assert "shape decides shapes" in cli("info", path).out
    assert "--input shape=FILE.npy" in cli("run", path).err
    assert "only a call can give" in cli("compile", path, "-o", tmp_path / "m.hxp").err
    np.save(tmp_path / "x.npy", np.arange(6, dtype=np.float32))
    np.save(tmp_path / "shape.npy", np.array([2, 3]))
    files = "--input", f"x={tmp_path}/x.npy", "--input", f"shape={tmp_path}/shape.npy"
    assert cli("run", path, *files, "--output", tmp_path).code == 0
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), [[0, 1, 2], [3, 4, 5]])


def test_ops_lists_the_whole_catalogue(cli):
    out = cli("ops").out
    assert [line.split()[0] for line in out.splitlines()[1:]] == list(USER_OPS)
    assert [op["name"] for op in json.loads(cli("ops", "--json").out)["ops"]] == list(USER_OPS)


@pytest.mark.parametrize("name", USER_OPS)
def test_every_op_is_shown_in_full(cli, name):
    ended = cli("ops", name)
    assert (ended.code, ended.err) == (0, "")
    assert USER_OPS[name].doc in " ".join(ended.out.split())
    record = json.loads(cli("ops", name, "--json").out)
    assert record["name"] == name
    assert list(record["attributes"]) == list(USER_OPS[name].attrs or {})


def test_an_unknown_op_is_told_its_neighbours(cli):
    assert "leaky_relu" in cli("ops", "leaky_rel").err
    assert "conv" in cli("ops", "convolution").err
    assert cli("ops", "nothing_like_it").code == 1


# ---- errors ----


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
        (np.zeros((1, 3, 2, 4), np.float64), ("float64", "fp32")),
        (np.zeros((1, 3, 2, 4), ">f4"), (">f4", "fp32")),
        (np.full((1, 3, 2, 4), None), ("no npy file", "allow_pickle")),
    ],
)
def test_an_array_that_does_not_fit_names_the_port_got_and_need(cli, model, tmp_path, array, words):
    np.save(tmp_path / "bad.npy", array, allow_pickle=True)
    ended = cli("run", model, "--input", f"x={tmp_path}/bad.npy")
    assert ended.code == 1
    assert "input 'x'" in ended.err
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


# ---- targets ----


def test_targets_lists_every_target(cli):
    ended = cli("targets")
    assert (ended.code, ended.err) == (0, "")
    names = [line.split()[0] for line in ended.out.splitlines()[1:]]
    assert names == list(target_names())
    assert "h13g    M1 Pro, M1 Max, M1 Ultra  A13        A13       16        8  432-1464" in ended.out
    record = json.loads(cli("targets", "--json").out)
    assert [target["name"] for target in record["targets"]] == names
    (m6,) = [target for target in record["targets"] if "M6" in target.get("products", ())]
    assert (m6["name"], m6["cores"], m6["descriptor"]) == ("h18g", 16, 24)


@pytest.mark.parametrize("name", target_names())
def test_a_target_is_shown_with_every_fact(cli, name):
    facts = load_target(name).facts
    record = json.loads(cli("targets", name, "--json").out)
    assert record["name"] == name
    assert {path: (fact["source"], fact["status"]) for path, fact in record["facts"].items()} == {
        path: (fact.source, fact.status) for path, fact in facts.items()
    }
    shown = [line.split()[0] for line in cli("targets", name).out.splitlines()[2:] if not line.startswith("  claim")]
    assert len(shown) == len(facts) + 1


def test_a_target_is_shown_by_any_spelling_with_offsets_and_claims(cli):
    text = cli("targets", "Apple M1").out
    lines = [re.sub(r" +", " ", line.strip()) for line in text.splitlines()]
    assert lines[0] == "h13: A13 generation, M1"
    assert "extents.width 16384 0x138 measured guide ch24" in lines
    assert "extents.live_tensors 2 decoded guide app. A" in lines
    at = lines.index("descriptor 7 disputed tinygrad")
    assert lines[at + 1] == "claim 7 measured tinygrad, live programs"
    assert lines[at + 4] == "claim 10 decoded guide ch20 and ch23"
    fact = json.loads(cli("targets", "m1", "--json").out)["facts"]["memory.working_set"]
    assert (fact["value"], fact["offsets"], len(fact["claims"])) == (2_097_152, ["0x1b8"], 3)


def test_an_unknown_target_is_told_near_ones(cli):
    ended = cli("targets", "M1 Por")
    assert ended.code == 1
    assert "got 'M1 Por', need one like M1 Pro" in ended.err


# generation: offset of the patch width, families of the table, targets
DESCRIPTORS = {
    1: (None, [], []),
    4: (None, [], ["t0"]),
    5: (None, [], ["h11"]),
    6: (None, [], ["h12"]),
    7: (0x200, ["A13"], ["h13", "h13g", "t1"]),
    8: (0x224, ["A13", "A14"], ["h15", "h15c", "h15g"]),
    10: (0x12C, ["A14"], ["m11"]),
    11: (0x21C, ["A14", "A15"], ["h14", "h14c", "h14g"]),
    17: (0x23C, ["A15", "A16"], ["h16", "h16c", "h16g", "h16s"]),
    19: (0x248, ["A16", "A17"], ["h17", "h17a", "h17c", "h17d", "h17g", "h17s"]),
    20: (0x26C, ["A17"], ["h18"]),
    24: (None, [], ["h18g"]),
}


def test_generations_of_task_descriptors_are_listed(cli):
    listed = json.loads(cli("targets", "--descriptors", "--json").out)["descriptors"]
    assert {d["generation"]: (d["patch_width_offset"], d["families"], d["targets"]) for d in listed} == DESCRIPTORS
    assert {d["generation"] for d in listed if d["defect"]} == {7}
    assert all(d["source"] and d["status"] == "decoded" for d in listed)
    blocks = {d["generation"]: d["blocks"] for d in listed if d["blocks"]}
    assert {generation: len(rows) for generation, rows in blocks.items()} == {7: 7, 10: 7}
    assert all(b["header"] == b["bytes"] << 24 | b["address"] for b in blocks[7])  # as the engine reads it
    text = cli("targets", "--descriptors").out
    assert re.search(r"^20 +0x26c +A17 +h18 ", text, re.MULTILINE)
    assert "Generation 7: Its last setter of a patch belongs to generation 8" in text


def test_descriptors_are_listed_for_no_single_target(cli):
    assert cli("targets", "h13", "--descriptors").code == 2


# ---- the process ----


def test_without_arguments_the_command_shows_its_help(cli):
    alone, asked = cli(), cli("--help")
    assert alone == asked
    assert alone.code == 0
    assert all(name in alone.out for name in ("run", "info", "compile", "ops", "targets", "--version"))


def test_version_is_the_package_version(cli):
    assert cli("--version").out == f"hexane {hx.__version__}\n"


def test_a_reader_that_goes_away_is_no_error():
    process = spawn("ops", "--json", stdout=subprocess.PIPE)
    process.stdout.close()
    _, err = process.communicate()
    assert err == ""


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc, to see that the command is at work")
def test_ctrl_c_ends_quietly_with_130(tmp_path):
    chain = [helper.make_node("Tanh", [f"v{i}"], [f"v{i + 1}"]) for i in range(60_000)]
    infos = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in ("v0", "v60000")]
    graph = helper.make_graph(chain, "chain", infos[:1], infos[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "chain.onnx")
    # A suite that runs in the background ignores the signal, and its children would too.
    process = spawn("info", tmp_path / "chain.onnx", preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    maps = Path(f"/proc/{process.pid}/maps")
    while "onnx_cpp2py" not in maps.read_text() and process.poll() is None:
        time.sleep(0.01)  # the onnx package is loaded as soon as a model is read
    time.sleep(1)  # and the model takes several seconds
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "")


@pytest.mark.parametrize("command", ["run", "info"])
def test_a_file_named_as_a_plan_that_is_none_is_told_apart(cli: Cli, tmp_path: Path, command: str) -> None:
    path = tmp_path / "empty.hxp"
    path.write_bytes(b"")
    assert "need those of a plan" in cli(command, path).err
