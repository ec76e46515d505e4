"""`hexane run`: inputs of every kind, and what it prints and writes."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import linear_model, save_model, weights
from hexane.cli.results import file_names
from hexane.cli.run_c99 import MOST, _difference
from hexane.report.profile import HEAD, KERNEL_HEAD

# ---- run ----


@pytest.mark.parametrize(
    ("option", "said"),
    [
        (("--dtype", "int8"), "dtype int8 changes nothing: no matrix product has an fp32 input and weights in int8"),
        (("--numerics", "q31"), "numerics q31 changes nothing: no op is quantised as TFLite quantises"),
    ],
)
def test_an_option_that_changes_nothing_says_so(cli, model, tmp_path, option, said):
    assert said in cli("run", model, *option).out.splitlines()
    assert said in cli("compile", model, "-o", tmp_path / "m.hxp", *option).out.splitlines()


@pytest.mark.parametrize(
    ("got", "need", "distance"),
    [([0.0, 1.0], [-0.0, 1.0], 0.0), ([np.nan], [np.nan], 0.0), ([1.0], [1.5], 0.5), ([np.inf], [1.0], MOST)],
)
def test_zeros_of_either_sign_are_the_same_number(got, need, distance):
    assert _difference(np.array(got, np.float32), np.array(need, np.float32)) == distance


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
    assert re.search(r"kernel +from +us +share +GFLOP/s +GB/s +of roofline", out)
    assert re.search(r"roofline: \d+ GFLOP/s in fp32, [\d.]+ GB/s from main memory", out)
    assert re.search(r"kernel +steps +us +share", out)
    named = {
        word.strip()
        for line in out.partition("\ncolumns:\n")[2].splitlines()
        for word in line.partition(":")[0].split(",")
    }
    assert named >= {*HEAD, *KERNEL_HEAD} - {"kernel"}
    assert "matmul" in out


def test_run_writes_a_profiled_call_as_a_trace(cli, model, tmp_path):
    assert f"wrote {tmp_path / 't.json'}" in cli("run", model, "--trace", tmp_path / "t.json").out
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert any(event["name"] == "matmul" for event in events)
    ended = cli("run", model, "--trace", tmp_path / "no" / "t.json")
    assert ended.code == 1
    assert "--trace" in ended.err


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


def test_run_and_compile_multiply_in_bf16_when_told_to(cli, model, x, x_file, tmp_path):
    plan = tmp_path / "m.hxp"
    assert cli("compile", model, "-o", plan, "--dtype", "bf16").code == 0
    exact = x.reshape(1, -1).astype(float) @ weights(24).astype(float)
    for path, given in ((model, ("--dtype", "bf16")), (plan, ())):
        assert cli("run", path, "--input", f"x={x_file}", *given, "--output", tmp_path).code == 0
        result = np.load(tmp_path / "y.npy")
        assert result.dtype == np.float32
        np.testing.assert_allclose(result, exact, atol=0.01 * np.abs(exact).max())


def test_dtype_auto_is_for_run_compile_and_check(cli, model, x, x_file, tmp_path):
    plan, exact = tmp_path / "m.hxp", x.reshape(1, -1).astype(float) @ weights(24).astype(float)
    given = ("--dtype", "auto", "--tolerance", "0.01")
    compiled = cli("compile", model, "-o", plan, *given, "--calibration", x_file)
    assert "dtype auto: " in compiled.out
    for path, options in ((model, given), (plan, ())):
        ended = cli("run", path, "--input", f"x={x_file}", *options, "--output", tmp_path)
        assert ("dtype auto: " in ended.out) == bool(options)
        got = np.load(tmp_path / "y.npy")
        assert np.linalg.norm(got - exact) <= 0.011 * np.linalg.norm(exact)
    checked = cli("check", model, "--target", "M4", *given, "--json")
    first = json.loads(checked.out)["dtype"][0]
    assert (first["stage"], first["node"]) == ("use_bf16", "network")
    assert "dtype auto on this CPU: " in cli("check", model, "--target", "M4", *given).out


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--tolerance", "0.1"), "--tolerance: got 0.1 without --dtype auto"),
        (("--dtype", "bf16", "--tolerance", "0.1"), "--tolerance: got 0.1 without --dtype auto"),
        (("--dtype", "auto", "--tolerance", "0"), "dtype: got the tolerance 0.0, need a number above 0"),
    ],
)
def test_a_tolerance_is_of_dtype_auto(cli, model, given, words):
    ended = cli("run", model, *given)
    assert ended.code == 1
    assert words in ended.err


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


def test_a_run_in_the_engines_arithmetic_says_that_an_input_holds_nan(cli, model, x, tmp_path):
    x = x.copy()
    x.flat[:2] = np.nan
    np.save(tmp_path / "nan.npy", x)
    given = ("run", model, "--input", f"x={tmp_path / 'nan.npy'}")
    ended = cli(*given, "--target", "M1")
    assert "input x holds 2 NaN, which the engine reads as infinity, or in products as a large number" in ended.out
    assert "NaN, which" not in cli(*given).out
    np.save(tmp_path / "nan.npy", np.zeros_like(x))
    assert "NaN" not in cli(*given, "--target", "M1").out
