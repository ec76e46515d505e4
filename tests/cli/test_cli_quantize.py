"""`hexane quantize`: its table, its file, and what it refuses."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import hexane as hx
from command import Cli, save_model
from hexane.cli.quantize import HEAD


def network(path: Path) -> Path:
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["y"], name="head"),
    ]
    rng = np.random.default_rng(1)
    w, v = (rng.standard_normal(s).astype(np.float32) * 0.1 for s in ((32, 16, 3, 3), (8, 32, 1, 1)))
    x, y = (("x", TensorProto.FLOAT, [1, 16, 8, 8]), ("y", TensorProto.FLOAT, [1, 8, 8, 8]))
    return save_model(path, nodes, [x], [y], [("w", w), ("v", v)])


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    np.savez(tmp_path / "inputs.npz", x=np.random.default_rng(0).standard_normal((4, 16, 8, 8)).astype(np.float32))
    return tmp_path / "inputs.npz"


def test_each_layer_has_a_line_and_the_file_runs(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "q.onnx"
    ended = cli("quantize", model, "--calibration", inputs, "-o", output)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].split() == ["layer", "op", "integers", "scales", "input", "range", "error"]  # no outputs' error
    assert lines[1].split()[:4] == ["stem", "Conv", "int8", "32"]
    assert lines[2].split()[:4] == ["head", "Conv", "int8", "8"]
    assert "2 layers of 2 in integers; relative error 0.0" in lines[3]
    named = [line.strip().partition(":")[0] for line in lines[lines.index("columns:") + 1 :]]
    assert named == list(HEAD[2:-1])
    assert "on 4 calibration inputs" in lines[3]
    with np.load(inputs) as data:
        x = data["x"][:1]
    np.testing.assert_array_equal(hx.compile(output)(x), hx.compile(hx.quantize_model(model, inputs).model)(x))


def test_json_has_what_the_options_ask_for(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    args = (
        "--uint8",
        "--per-tensor",
        "--method",
        "minmax",
        "--float-layers",
        "he*",
        "--json",
        "-o",
        tmp_path / "q.onnx",
    )
    record = json.loads(cli("quantize", network(tmp_path / "net.onnx"), "--calibration", inputs, *args).out)
    stem, head = record["layers"]
    assert (stem["dtype"], stem["scales"], head["dtype"], head["error"]) == ("uint8", 1, "float", None)
    assert record["inputs"] == 4
    assert 0 < record["error"] < 0.05
    kinds = {t.data_type for t in onnx.load(tmp_path / "q.onnx").graph.initializer}
    assert TensorProto.UINT8 in kinds
    assert TensorProto.INT8 not in kinds


def test_what_it_refuses(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model = network(tmp_path / "net.onnx")
    before = model.read_bytes()
    for output, message in (
        (model, "got the model itself as the output"),
        (tmp_path / "q.hxp", "need a name that ends in .onnx"),
    ):
        ended = cli("quantize", model, "--calibration", inputs, "-o", output)
        assert ended.code == 1
        assert message in ended.err
    ended = cli("quantize", model, "--calibration", tmp_path / "absent", "-o", tmp_path / "q.onnx")
    assert "absent: No such file or directory" in ended.err
    ended = cli("quantize", model, "--calibration", inputs, "-o", tmp_path / "absent" / "q.onnx")
    assert ended.code == 1
    assert "--output" in ended.err
    assert model.read_bytes() == before
    assert not (tmp_path / "q.onnx").exists()


def test_a_tolerance_a_plot_and_weights_alone(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "q.onnx"
    plot = tmp_path / "errors.svg"
    args = ("--calibration", inputs, "--tolerance", 0.02, "--plot", plot, "--json", "-o", output)
    record = json.loads(cli("quantize", model, *args).out)
    assert 0 < record["error"] <= 0.02
    assert all(layer["output_error"] > 0 for layer in record["layers"])
    assert b"error of each layer in integers" in plot.read_bytes()
    ended = cli("quantize", model, "--weights-only", "-o", output)
    assert ended.out.partition("\n\n")[0].endswith(
        "2 layers of 2 with weights in integers; error not measured: give --calibration or --input"
    )
    assert "DequantizeLinear" in {n.op_type for n in onnx.load(output).graph.node}


def test_dynamic_ranges_need_no_inputs(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model, output = network(tmp_path / "net.onnx"), tmp_path / "q.onnx"
    ended = cli("quantize", model, "--dynamic", "--float-layers", "stem", "-o", output)
    assert ended.out.partition("\n\n")[0].endswith(
        "1 layer of 2 in integers; error not measured: give --calibration or --input"
    )
    assert [n.op_type for n in onnx.load(output).graph.node].count("ConvInteger") == 1
    record = json.loads(cli("quantize", model, "--dynamic", "--calibration", inputs, "--json", "-o", output).out)
    assert 0 < record["error"] < 0.05
    with np.load(inputs) as data:
        x = data["x"][:1]
    whole, got = hx.compile(model)(x), hx.compile(output)(x)
    assert 0 < np.linalg.norm(whole - got) / np.linalg.norm(whole) < 0.05


def test_options_that_do_not_fit_each_other(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    model = network(tmp_path / "net.onnx")
    for args, message in (
        (("--int8", "--int16", "--calibration", inputs), "got --int8 and --int16"),
        ((), "--calibration: got none"),
        (("--calibration", inputs, "--plot", "x.gif"), "need one that ends in"),
        (("--dynamic", "--sensitivity"), "--sensitivity: got it with --dynamic"),
        (("--weights-only", "--plot", "x.png"), "--plot: got it with --weights-only"),
    ):
        ended = cli("quantize", model, *args, "-o", tmp_path / "q.onnx")
        assert ended.code == 2
        assert message in ended.err
    ended = cli("quantize", model, "--calibration", inputs, "--tolerance", 0, "-o", tmp_path / "q.onnx")
    assert (ended.code, "need a number above 0" in ended.err) == (1, True)
    assert not (tmp_path / "q.onnx").exists()


def test_a_result_with_a_large_error_is_written_only_by_force(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    output = tmp_path / "q.onnx"
    args = ("--calibration", inputs, "--method", "percentile", "--percentile", 60, "-o", output)
    ended = cli("quantize", network(tmp_path / "net.onnx"), *args)
    assert ended.code == 1
    assert "-> not written; 2 layers of 2 in integers; relative error 0." in ended.out
    assert "on 4 calibration inputs, need at most 0.1, so nothing was written; give --tolerance" in ended.err
    assert not output.exists()
    record = json.loads(cli("quantize", tmp_path / "net.onnx", *args, "--json").out)
    assert (record["file_bytes"], record["error"] > 0.1) == (None, True)
    assert cli("quantize", tmp_path / "net.onnx", *args, "--force").code == 0
    assert output.exists()


def test_a_target_says_parts_and_latency_before_and_after(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    args = ("--calibration", inputs, "--target", "M1,A14", "-o", tmp_path / "q.onnx")
    ended = cli("quantize", network(tmp_path / "net.onnx"), *args)
    assert ended.code == 0, ended.err
    before = hx.estimate(tmp_path / "net.onnx", "M1")
    assert f"M1 (h13) before: runs whole on the engine; about {before.latency_us:.0f} us (" in ended.out
    after = hx.estimate(tmp_path / "q.onnx", "M1")
    outcome = hx.preflight(tmp_path / "q.onnx", "M1").outcome
    assert f"M1 (h13) after: {outcome}; about {after.latency_us:.0f} us (" in ended.out
    slower = after.latency_us >= 1.1 * before.latency_us
    assert (" times as long on M1 (h13) as before: `hexane compress`" in ended.out) == slower
    record = json.loads(cli("quantize", tmp_path / "net.onnx", *args, "--json").out)
    one, _ = record["targets"]
    assert (one["target"], one["before"]["parts"], one["after"]["parts"]) == ("h13", 1, outcome.parts)
    assert one["after"]["latency_us"] == after.latency_us


def test_a_network_that_leaves_the_engine_in_integers_is_said(cli: Cli, tmp_path: Path, inputs: Path) -> None:
    """DynamicQuantizeLinear and ConvInteger are the host's."""
    args = ("--dynamic", "--target", "M1", "-o", tmp_path / "q.onnx")
    ended = cli("quantize", network(tmp_path / "net.onnx"), *args)
    assert ended.code == 0, ended.err
    assert "on the CPU" in ended.out
    assert "`hexane compress` stores weights in fewer bits" in ended.out


@pytest.mark.parametrize(
    ("options", "dtype", "of"),
    [
        ((), "int8", "the layer's activations and weights"),
        (("--uint8",), "uint8", "the layer's activations and weights"),
        (("--int16",), "int16", "the layer's activations; its weights are int8"),
        (("--weights-only",), "int8", "the layer's stored weights; products are in floats"),
        (("--dynamic", "--uint8"), "uint8", "the layer's stored weights; its activations become uint8 at run time"),
    ],
)
def test_the_legend_says_whose_dtype_the_integers_are(
    cli: Cli, tmp_path: Path, inputs: Path, options: tuple[str, ...], dtype: str, of: str
) -> None:
    """The file's numbers have these dtypes."""
    output = tmp_path / "q.onnx"
    ended = cli("quantize", network(tmp_path / "net.onnx"), "--calibration", inputs, *options, "-o", output)
    legend = " ".join(ended.out.partition("columns:")[2].split())
    assert f"integers: dtype of {of}; float: it is not quantised" in legend
    assert {line.split()[2] for line in ended.out.splitlines()[1:3]} == {dtype}
    graph = onnx.load(output).graph
    made = {onnx.helper.tensor_dtype_to_np_dtype(one.data_type).name for one in graph.initializer}
    weights = "uint8" if "uint8" in options or dtype == "uint8" else "int8"
    assert {dtype, weights} <= made
    assert ("DynamicQuantizeLinear" in {node.op_type for node in graph.node}) == ("--dynamic" in options)
