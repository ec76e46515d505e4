"""The command on Core AI assets."""

import json
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from assets import Function, as_the_first_converters, perceptron, with_locations
from command import Cli, linear_model
from hexane.emit.coreai.asset import AssetWriter, save_asset
from hexane.emit.coreai.write import save_graph
from hexane.importers.coreai import open_asset


@pytest.fixture
def asset(tmp_path: Path) -> Path:
    program, _, _ = perceptron(np.random.default_rng(0))
    save_asset(tmp_path / "net.aimodel", program, {"assetVersion": "2.0", "producer": "tests 1.0"})
    return tmp_path / "net.aimodel"


@pytest.fixture
def heavy(tmp_path: Path) -> Path:
    """A model with a weight that is worth storing in fewer bits."""
    weight = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    return linear_model(tmp_path / "heavy.onnx", [2, 64], weight)


def test_check_counts_the_segments_of_the_engine(tmp_path: Path, cli: Cli) -> None:
    x = hx.input("x", (8, 64), "fp16")
    middle = hx.cast(hx.bitwise_and(hx.cast(hx.relu(x), dtype="int32"), hx.const(np.int32(7))), dtype="fp16")
    save_graph(hx.graph(hx.relu(middle)), tmp_path / "net.aimodel")
    lines = cli("check", tmp_path / "net.aimodel", "--target", "M4,M1").out.splitlines()
    counts = {
        row: [line.split()[-1] for line in lines if line.startswith(row)] for row in ("segments", "engine segments")
    }
    assert counts == {"segments": ["3"], "engine segments": ["2"]}


def test_info_shows_functions_and_files(cli: Cli, asset: Path) -> None:
    ended = cli("info", asset)
    assert (ended.code, ended.err) == (0, "")
    assert "written by tests 1.0" in ended.out
    record = json.loads(cli("info", asset, "--json").out)
    assert (record["format"], record["asset"]["hash_fits"], record["asset"]["loads_today"]) == ("aimodel", True, True)
    assert record["functions"]["main"]["outputs"] == [{"name": "y", "type": "f32[4, 10]"}]


@pytest.mark.parametrize(
    "command",
    [("check", "--target", "h13"), ("check",), ("explain", "--target", "h16"), ("fit",), ("run", "--target", "h14"),
     ("compare", "--targets", "h13,ieee", "--tolerance", "1"), ("estimate", "--target", "M1")],
)  # fmt: skip
def test_a_command_takes_an_asset(cli: Cli, asset: Path, command: tuple[str, ...]) -> None:
    ended = cli(command[0], asset, *command[1:])
    assert (ended.code, ended.err) == (0, "")
    assert cli(command[0], asset, *command[1:], "--function", "main").code == 0


def test_an_asset_is_compiled_and_emitted(cli: Cli, asset: Path, tmp_path: Path) -> None:
    assert cli("compile", asset, "-o", tmp_path / "net.hxp").code == 0
    assert cli("run", tmp_path / "net.hxp").code == 0
    assert cli("emit", asset, "--target", "h13", "-o", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "model.mil").exists()


def test_another_function_is_named(cli: Cli, tmp_path: Path) -> None:
    writer = AssetWriter()
    for name in ("first", "second"):
        f = Function(writer, name)
        x = f.input(name, (3,))
        f.finish({"y": f.op("primitive.exp", x)})
    save_asset(tmp_path / "two.aimodel", writer.bytes(), {})
    assert "second" in cli("run", tmp_path / "two.aimodel", "--function", "second", "--json").out
    ended = cli("run", tmp_path / "two.aimodel", "--function", "third")
    assert ended.code == 1
    assert "got the function 'third', need one of first, second" in ended.err


def test_a_function_of_another_model_is_an_error(cli: Cli, model: Path) -> None:
    ended = cli("check", model, "--function", "main")
    assert ended.code == 1
    assert "or a Core AI asset" in ended.err


@pytest.mark.parametrize("name", ["repair", "strip"])
def test_the_commands_write_an_asset(cli: Cli, name: str, tmp_path: Path) -> None:
    save_asset(tmp_path / "old.aimodel", as_the_first_converters(with_locations()), {"author": "somebody"})
    assert "loaders of OS 27 beta 2 and later abort on it" in cli("info", tmp_path / "old.aimodel").out
    ended = cli(name, tmp_path / "old.aimodel", "-o", tmp_path / "new.aimodel")
    assert (ended.code, ended.err) == (0, "")
    asset = open_asset(tmp_path / "new.aimodel")
    assert (asset.hash_fits, asset.is_of_the_first_converters, asset.metadata["author"]) == (True, False, "somebody")
    assert cli("run", tmp_path / "new.aimodel").code == 0


def test_an_output_of_another_kind_is_refused(cli: Cli, tmp_path: Path) -> None:
    save_asset(tmp_path / "old.aimodel", perceptron(np.random.default_rng(0))[0], {})
    assert "need a folder that ends in .aimodel" in cli("strip", tmp_path / "old.aimodel", "-o", tmp_path / "new").err
    assert cli("repair", tmp_path / "none.aimodel", "-o", tmp_path / "new.aimodel").code == 1


def test_the_command_writes_an_asset(cli: Cli, model: Path, tmp_path: Path) -> None:
    ended = cli("emit", model, "-o", tmp_path / "net.aimodel")
    assert (ended.code, ended.err) == (0, "")
    assert cli("emit", tmp_path / "net.aimodel", "--target", "M4", "-o", tmp_path / "half.aimodel").code == 0
    assert cli("check", tmp_path / "half.aimodel", "--target", "M4").code == 0
    assert "need a folder that ends in .aimodel" in cli("emit", model, "--format", "aimodel", "-o", tmp_path / "x").err
    assert "need a chip or a device" in cli("emit", model, "-o", tmp_path / "y").err


def test_emit_stores_weights_in_fewer_bits(cli: Cli, heavy: Path, tmp_path: Path) -> None:
    whole, small = tmp_path / "whole.aimodel", tmp_path / "small.aimodel"
    assert cli("emit", heavy, "-o", whole).code == 0
    ended = cli("emit", heavy, "--compress", "palette4:g32", "-o", small)
    assert (ended.code, ended.err) == (0, "")
    assert "1 weight as palette4:g32" in ended.out
    record = json.loads(cli("emit", heavy, "--compress", "int8", "--target", "M4", "-o", small, "--json").out)
    assert [w["encoding"] for w in record["weights"]] == ["int8"]
    assert record["bytes"] < 0.4 * json.loads(cli("emit", heavy, "-o", whole, "--json").out)["bytes"]
    # Read in, it is stored in fewer bits in MIL as well.
    assert cli("emit", small, "--target", "M4", "-o", tmp_path / "mil").code == 0
    assert "constexpr_affine_dequantize" in (tmp_path / "mil" / "model.mil").read_text()


def test_emit_stores_weights_of_mil_in_fewer_bits(cli: Cli, heavy: Path, tmp_path: Path) -> None:
    ended = cli("emit", heavy, "--target", "M4", "--compress", "palette4:g32", "-o", tmp_path / "mil")
    assert (ended.code, ended.err) == (0, "")
    assert "constexpr_lut_to_dense" in (tmp_path / "mil" / "model.mil").read_text()


@pytest.mark.parametrize("output", ["net.aimodel", "net.mlpackage", "mil"])
def test_emit_writes_nothing_that_computes_another_function(cli: Cli, tmp_path: Path, output: str) -> None:
    """In each channel one weight is a thousand times the others, which two bits leave one number."""
    weight = np.random.default_rng(1).standard_normal((64, 96)).astype(np.float32)
    weight[0] = 2000
    model = linear_model(tmp_path / "wide.onnx", [2, 64], weight)
    np.save(tmp_path / "x.npy", np.float32([[0, *[1] * 63]] * 2))
    given = (model, "--target", "M4", "--compress", "palette2", "-o", tmp_path / output)
    ended = cli("emit", *given, "--input", f"x={tmp_path / 'x.npy'}")
    assert ended.code == 1
    assert "on 1 calibration input, need at most 0.1, so nothing was written" in ended.err
    assert not (tmp_path / output).exists()
    assert cli("emit", *given, "--input", f"x={tmp_path / 'x.npy'}", "--force").code == 0
    assert (tmp_path / output).exists()


def test_emit_writes_several_functions(cli: Cli, heavy: Path, model: Path, tmp_path: Path) -> None:
    two, again = tmp_path / "two.aimodel", tmp_path / "again.aimodel"
    ended = cli("emit", heavy, "--also", f"other={model}", "--also", f"third={heavy}", "-o", two)
    assert (ended.code, ended.err) == (0, "")
    said = [line.split(":")[0].strip() for line in ended.out.splitlines()[1:]]
    assert said == ["function main", "function other", "function third"]
    assert cli("run", two, "--function", "other").code == 0
    record = json.loads(cli("emit", two, "--compress", "palette4", "-o", again, "--json").out)
    assert list(record["functions"]) == ["main", "other", "third"]
    assert [(w["function"], w["encoding"]) for w in record["weights"]] == [("main", "palette4"), ("third", "palette4")]
    assert record["bytes"] < 6144 / 2 + 4000  # the weight once, in four bits
    assert list(open_asset(again).public()) == ["main", "other", "third"]
    chosen = json.loads(cli("emit", two, "--function", "other", "-o", again, "--json").out)
    assert list(chosen["functions"]) == ["main"]


def test_emit_gives_each_function_the_shapes_of_its_inputs(cli: Cli, tmp_path: Path) -> None:
    writer = AssetWriter()
    for name in ("first", "second"):
        f = Function(writer, name)
        x = f.input(name, (None, 3))
        f.finish({"y": f.op("primitive.exp", x)})
    save_asset(tmp_path / "two.aimodel", writer.bytes(), {})
    given = ("--input-shape", "first:2x3", "--input-shape", "second:4x3")
    ended = cli("emit", tmp_path / "two.aimodel", *given, "-o", tmp_path / "fixed.aimodel")
    assert (ended.code, ended.err) == (0, "")
    assert [line.strip() for line in ended.out.splitlines()[1:]] == [
        "function first: first: fp32[2, 3] -> y: fp32[2, 3]",
            "function second: second: fp32[4, 3] -> y: fp32[4, 3]",
    ]  # fmt: skip
    ended = cli("emit", tmp_path / "two.aimodel", *given, "--input-shape", "z:1", "-o", tmp_path / "fixed.aimodel")
    assert "got a shape for 'z', need inputs of first, second" in ended.err


@pytest.mark.parametrize(
    ("also", "output", "said"),
    [("other", "net.aimodel", "got 'other', need NAME=MODEL"), ("main=MODEL", "net.aimodel", "got the function 'main' twice"),
     ("other=MODEL", "mil", "which have one function, need an asset or package")],
)  # fmt: skip
def test_emit_refuses_functions_that_cannot_be(
    cli: Cli, heavy: Path, tmp_path: Path, also: str, output: str, said: str
) -> None:
    ended = cli("emit", heavy, "--also", also.replace("MODEL", str(heavy)), "-o", tmp_path / output)
    assert ended.code != 0
    assert said in " ".join(ended.err.split())
    assert not (tmp_path / output).exists()


@pytest.mark.parametrize(
    ("mode", "more", "said"),
    [("palette5", (), "got 'palette5', need none"), ("auto", (), "which hexane compress finds, need int8"),
     ("int8", ("--target", "h11", "--netplist"), "--compress: got it for a netplist, need MIL or a Core AI asset")],
)  # fmt: skip
def test_emit_refuses_what_is_no_way_to_store_weights(
    cli: Cli, heavy: Path, tmp_path: Path, mode: str, more: tuple[str, ...], said: str
) -> None:
    output = tmp_path / ("net" if more else "net.aimodel")
    ended = cli("emit", heavy, "--compress", mode, *more, "-o", output)
    assert ended.code == 1
    assert said in ended.err
    assert not output.exists()
