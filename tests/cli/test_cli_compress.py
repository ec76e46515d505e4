"""`hexane compress`: its table, its files, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

import hexane as hx
from command import Cli, save_model
from hexane.importers.mil import load_mil_file
from hexane.ops.encodings import encoding_of, is_encoded

pytestmark = pytest.mark.filterwarnings("ignore")


def network(path: Path) -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], name="head/conv"),
    ]
    rng = np.random.default_rng(1)
    w, v = (rng.standard_normal(s).astype(np.float32) * 0.1 for s in ((32, 16, 3, 3), (128, 32, 1, 1)))
    x, y = (("x", TensorProto.FLOAT, [1, 16, 8, 8]), ("y", TensorProto.FLOAT, [1, 128, 8, 8]))
    return save_model(path, nodes, [x], [y], [("w", w), ("v", v)])


def test_each_layer_has_a_line_and_the_totals_follow(cli: Cli, tmp_path: Path) -> None:
    ended = cli(
        "compress", network(tmp_path / "net.onnx"), "--target", "M1", "--mode", "int8", "-o", tmp_path / "m.mil"
    )
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["layer", "encoding", "before", "after", "error", "target"]
    assert "conv at stem/conv" in lines[1]
    assert "folds on this chip: no bandwidth gained" in lines[1]
    assert "conv at head/conv" in lines[2]
    for words in ("M1 (h13)", "2 weights 17.0 KiB -> 8.81 KiB in fp16", "0 streamed", "2 random inputs of the seed 0"):
        assert words in lines[3]


def test_mil_that_is_written_has_the_encodings_and_reads_back(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "m.mil"
    ended = cli("compress", network(tmp_path / "net.onnx"), "--target", "M4", "--mode", "palette4", "-o", output)
    assert ended.code == 0, ended.err
    graph = load_mil_file(output)
    assert [encoding_of(n.values[0]).bits for n in graph.nodes if is_encoded(n)] == [4, 4]
    assert (tmp_path / "weights" / "m.bin").stat().st_size < 8704 // 2 + 2048
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)
    want = hx.compile(network(tmp_path / "net.onnx"), target="M4", compress="palette4", io="fp16")(x.astype(np.float16))
    np.testing.assert_array_equal(hx.compile(output, target="M4")(x.astype(np.float16)), want)


def test_a_plan_computes_what_compile_gives_and_json_has_everything(cli: Cli, tmp_path: Path) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "m.hxp"
    args = ("--mode", "palette4", "--layer", "*head*=none", "--json", "-o", output)
    record = json.loads(cli("compress", model, "--target", "M4", *args).out)
    assert [layer["encoding"] for layer in record["layers"]] == ["palette4", "none"]
    assert [layer["streams"] for layer in record["layers"]] == [True, False]
    assert record["bytes_before"] == 2 * (4608 + 4096)
    assert record["bytes_after"] == 4608 // 2 + 32 + 2 * 4096
    assert 0 < record["error"] < 0.5
    assert record["layers"][1]["error"] == 0
    x = np.random.default_rng(0).standard_normal((1, 16, 8, 8)).astype(np.float32)
    asked = hx.Compression("palette4", per_layer={"*head*": "none"})
    np.testing.assert_array_equal(hx.load(output)(x), hx.compile(model, target="M4", compress=asked)(x))


@pytest.mark.parametrize("tolerance", [0.1, 0.01])
def test_auto_stays_within_the_tolerance(cli: Cli, tmp_path: Path, tolerance: float) -> None:
    args = ("--target", "M4", "--tolerance", tolerance, "--json", "-o", tmp_path / "m.mil")
    record = json.loads(cli("compress", network(tmp_path / "net.onnx"), *args).out)
    assert 0 < record["error"] <= tolerance
    assert record["bytes_after"] < record["bytes_before"]


def test_a_budget_is_kept(cli: Cli, tmp_path: Path) -> None:
    args = ("--target", "M4", "--bytes", "6K", "--json", "-o", tmp_path / "m.mil")
    record = json.loads(cli("compress", network(tmp_path / "net.onnx"), *args).out)
    assert 4096 < record["bytes_after"] <= 6 * 1024
    assert 0 < record["error"] < 0.5


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--target", "M4", "-o", "m.zip"), "got '.zip', need a name that ends in .mil, .hxp or .onnx"),
        (("--target", "host", "-o", "m.mil"), "takes no programs in MIL, need a .hxp or .onnx"),
        (("--target", "A12", "-o", "m.mil"), "takes no programs in MIL, need a .hxp or .onnx"),
        (("--target", "M4", "--mode", "int3", "-o", "m.mil"), "mode: got 'int3', need one of none, int8"),
        (("--target", "M4", "--tolerance", "-1", "-o", "m.mil"), "tolerance: got -1.0, need a number above 0"),
        (("--target", "M4", "--bytes", "6 KB", "-o", "m.mil"), "bytes: got '6 KB', need a number of bytes"),
        (("--target", "M4", "--bytes", "100", "-o", "m.mil"), "bytes: got 100, need at least "),
        (("--target", "M4", "--layer", "nope=int8", "-o", "m.mil"), "got the pattern 'nope', which fits no layer"),
    ],
)
def test_what_is_wrong_is_said(cli: Cli, tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    ended = cli("compress", network(tmp_path / "net.onnx"), *args[:-1], tmp_path / args[-1])
    assert ended.code == 1
    assert said in ended.err
    assert not (tmp_path / args[-1]).exists()


def test_a_layer_needs_a_pattern_and_a_mode(cli: Cli, tmp_path: Path) -> None:
    args = ("--target", "M4", "--layer", "conv", "-o", tmp_path / "m.mil")
    ended = cli("compress", network(tmp_path / "net.onnx"), *args)
    assert (ended.code, "need PATTERN=MODE" in ended.err) == (2, True)


def test_a_model_that_the_host_shares_is_refused_as_mil(cli: Cli, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tan", ["x"], ["t"], name="tan"),
        helper.make_node("MatMul", ["t", "w"], ["y"], name="mm"),
    ]
    ports = (("x", TensorProto.FLOAT, [2, 64]), ("y", TensorProto.FLOAT, [2, 64]))
    w = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    model = save_model(tmp_path / "net.onnx", nodes, ports[:1], ports[1:], [("w", w)])
    ended = cli("compress", model, "--target", "M4", "--mode", "int8", "-o", tmp_path / "m.mil")
    assert ended.code == 1
    assert "some of the host, need one that" in ended.err
