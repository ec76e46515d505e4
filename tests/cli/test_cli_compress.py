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
    for words in ("M1 (h13)", "2 weights: 17.0 KiB in fp16 -> 8.81 KiB", "0 streamed", "2 random inputs of the seed 0"):
        assert words in lines[3]
    named = {line.strip().partition(":")[0] for line in lines[lines.index("columns:") + 1 :] if line[2] != " "}
    assert named == set(lines[0].split()) - {"layer", "encoding"}
    assert "  target: folds: the weights become fp16 before the network runs" in ended.out
    assert "streams:" not in ended.out


def test_another_name_of_an_encoding_is_explained(cli: Cli, tmp_path: Path) -> None:
    ended = cli("compress", network(tmp_path / "net.onnx"), "--mode", "int4", "-o", tmp_path / "m.onnx", "--force")
    assert ended.out.splitlines()[0] == "int4 is another name of palette4"
    package = cli("emit", tmp_path / "net.onnx", "--compress", "int4", "-o", tmp_path / "m.mlpackage", "--force")
    assert ", 2 weights as palette4, " in package.out


def test_a_network_of_small_weights_has_one_line(cli: Cli, tmp_path: Path) -> None:
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv")
    x, y = (("x", TensorProto.FLOAT, [1, 4, 8, 8]), ("y", TensorProto.FLOAT, [1, 8, 8, 8]))
    path = save_model(tmp_path / "n.onnx", [node], [x], [y], [("w", np.ones((8, 4, 1, 1), np.float32))])
    ended = cli("compress", path, "--target", "M4", "-o", tmp_path / "m.mil")
    assert ended.code == 0, ended.err
    assert ended.out.startswith(f"{tmp_path}/m.mil and {tmp_path}/weights/m.bin: ")
    assert ended.out.endswith("; nothing compressed: every weight that can be encoded has fewer than 4096 numbers\n")
    ended = cli("compress", path, "--layer", "*fc*=none", "-o", tmp_path / "m.onnx")
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.endswith(
        "--layer: got the pattern '*fc*', but no layer can be compressed: every weight that can be encoded has fewer"
        " than 4096 numbers\n"
    )


def test_the_files_of_a_program_in_mil_are_named(cli: Cli, tmp_path: Path) -> None:
    ended = cli(
        "compress", network(tmp_path / "net.onnx"), "--target", "M1", "--mode", "int8", "-o", tmp_path / "m.mil"
    )
    text, weights = tmp_path / "m.mil", tmp_path / "weights" / "m.bin"
    size = text.stat().st_size + weights.stat().st_size
    assert f"\n{text} and {weights}: {size / 1024:.1f} KiB for M1 (h13); 2 weights: " in ended.out
    made = cli("emit", tmp_path / "net.onnx", "--target", "M1", "-o", tmp_path / "out").out
    assert f" of weights in {tmp_path}/out/weights/weights.bin; x " in made
    assert (tmp_path / "out" / "weights" / "weights.bin").is_file()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--bytes", "1M"), "whole weights take 17.0 KiB in fp16, within the 1.00 MiB of --bytes"),
        (("--tolerance", "1e-7"), "no encoding keeps the outputs within the relative error 1e-07"),
        (("--mode", "none"), "every layer has the mode none"),
        (("--layer", "*=none"), "every layer has the mode none"),
    ],
)
def test_a_network_that_stays_whole_says_why(cli: Cli, tmp_path: Path, options: tuple[str, ...], why: str) -> None:
    ended = cli("compress", network(tmp_path / "net.onnx"), *options, "-o", tmp_path / "m.onnx")
    assert ended.code == 0, ended.err
    assert [line for line in ended.out.splitlines() if line.endswith(f" for this CPU; nothing compressed: {why}")]
    legend = " ".join(ended.out.split())
    assert "after: bytes of the weights in the encoding, not of the file; none: in fp16" in legend
    assert "on this CPU: whole: the weights are not compressed" in legend


def test_mil_that_is_written_has_the_encodings_and_reads_back(cli: Cli, tmp_path: Path) -> None:
    output = tmp_path / "m.mil"
    ended = cli(
        "compress", network(tmp_path / "net.onnx"), "--target", "M4", "--mode", "palette4", "--force", "-o", output
    )
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
        (("--target", "M4", "--mode", "int3", "-o", "m.mil"), "mode: got 'int3', need none, auto, int8"),
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


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).standard_normal((4, 16, 8, 8))
    x[:, 5] *= 100
    np.savez(tmp_path / "inputs.npz", x=x.astype(np.float32))
    return tmp_path / "inputs.npz"


def test_calibration_fits_scales_of_blocks_and_errors_are_measured_on_it(
    cli: Cli, tmp_path: Path, inputs: Path
) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "m.hxp"
    args = ("--mode", "blockwise4:b16", "--calibration", inputs, "--json", "-o", output)
    record = json.loads(cli("compress", model, *args).out)
    assert record["measured_on"] == "4 calibration inputs"
    x = np.load(inputs)["x"][1:2]
    feeds = [{"x": one[None]} for one in np.load(inputs)["x"]]
    got = hx.load(output)(x)
    np.testing.assert_array_equal(
        got, hx.compile(model, compress=hx.Compression("blockwise4:b16", calibration=feeds))(x)
    )
    want, plain = hx.compile(model)(x), hx.compile(model, compress="blockwise4:b16")(x)
    assert np.linalg.norm(got - want) < 0.8 * np.linalg.norm(plain - want)


def test_an_onnx_file_has_the_fitted_scales(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "small.onnx"
    ended = cli("compress", model, "--mode", "blockwise4:b16", "--calibration", inputs, "-o", output)
    assert ended.code == 0, ended.err
    assert "on 4 calibration inputs" in ended.out
    feeds = [{"x": one[None]} for one in np.load(inputs)["x"]]
    want = hx.compile(model, compress=hx.Compression("blockwise4:b16", calibration=feeds))(**feeds[0])
    np.testing.assert_allclose(hx.compile(output)(**feeds[0]), want, rtol=1e-4, atol=1e-4 * np.abs(want).max())


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({"z": np.zeros((1, 16, 8, 8), np.float32)}, "got the arrays z, need x"),
        ({"x": np.zeros((1, 16, 8, 9), np.float32)}, "need float32[1, 16, 8, 8]"),
        ({"x": np.full((1, 16, 8, 8), 1e39)}, "got float64[1, 16, 8, 8] for 'x'"),
    ],
    ids=["name", "shape", "dtype"],
)
def test_calibration_has_to_fit_the_model(cli: Cli, tmp_path: Path, arrays: dict[str, np.ndarray], said: str) -> None:
    np.savez(tmp_path / "in.npz", **arrays)
    args = ("--mode", "blockwise", "--calibration", tmp_path / "in.npz", "-o", tmp_path / "m.hxp")
    ended = cli("compress", network(tmp_path / "net.onnx"), *args)
    assert ended.code != 0
    assert f"[input] calibration {tmp_path / 'in.npz'}" in ended.err
    assert said in ended.err


def language_model(path: Path) -> Path:
    """A table of tokens that ends the network too, as a language model has it."""
    nodes = [
        helper.make_node("Gather", ["table", "x"], ["a"], name="embed"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="inner"),
        helper.make_node("Transpose", ["table"], ["t"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["b", "t"], ["y"], name="logits"),
    ]
    rng = np.random.default_rng(2)
    weights = [(name, rng.standard_normal(shape).astype(np.float32)) for name, shape in
               (("table", (480, 96)), ("w", (96, 96)))]  # fmt: skip
    return save_model(path, nodes, [("x", TensorProto.INT64, [1, 8])], [("y", TensorProto.FLOAT, [1, 8, 480])], weights)


ALL_MODES = (
    "int8", "palette2", "palette8", "palette4:g16", "palette4:v2", "palette4:int8", "blockwise4:b32", "blockwise8:b32",
    "sparse:0.5+palette4",
)  # fmt: skip


@pytest.mark.parametrize("mode", ALL_MODES)
def test_a_weight_too_large_to_be_folded_is_compressed_the_same(
    cli: Cli, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table of 49,152 tokens of 576 numbers: the limit of folding is lowered here, as the table is small."""
    model = language_model(tmp_path / "net.onnx")
    tokens = np.random.default_rng(0).integers(0, 480, (4, 8))
    np.savez(tmp_path / "tokens.npz", x=tokens)
    args = ("--mode", mode, "--calibration", tmp_path / "tokens.npz", "--force", "--json", "-o")
    first = cli("compress", model, *args, tmp_path / "first.hxp")
    assert first.code == 0, first.err
    monkeypatch.setattr("hexane.ops.fold.MAX_GROWTH_BYTES", 64)
    second = cli("compress", model, *args, tmp_path / "second.hxp")
    assert second.code == 0, second.err
    assert json.loads(first.out)["layers"] == json.loads(second.out)["layers"]
    x = tokens[:1]
    np.testing.assert_array_equal(hx.load(tmp_path / "first.hxp")(x), hx.load(tmp_path / "second.hxp")(x))


@pytest.mark.parametrize("name", ["m.onnx", "m.mil", "m.hxp"])
def test_a_result_with_a_large_error_is_written_only_by_force(cli: Cli, tmp_path: Path, name: str) -> None:
    args = (network(tmp_path / "net.onnx"), "--target", "M4", "--mode", "palette1", "-o", tmp_path / name)
    ended = cli("compress", *args)
    assert ended.code == 1
    assert "conv at head/conv" in ended.out
    assert "not written" in ended.out
    assert "got a relative error 0.7" in ended.err
    assert "on 2 random inputs of the seed 0, need at most 0.1, so nothing was written; give --calibration" in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]
    assert cli("compress", *args, "--tolerance", "0.2").code == 1
    record = json.loads(cli("compress", *args, "--json").out)
    assert (record["file_bytes"], record["error"] > 0.5) == (None, True)
    assert cli("compress", *args, "--force").code == 0
    assert (tmp_path / name).exists()


def test_a_larger_tolerance_allows_a_larger_error(cli: Cli, tmp_path: Path) -> None:
    args = (network(tmp_path / "net.onnx"), "--tolerance", "0.3", "--json", "-o", tmp_path / "m.hxp")
    ended = cli("compress", *args)
    assert ended.code == 0, ended.err
    assert 0.1 < json.loads(ended.out)["error"] <= 0.3
