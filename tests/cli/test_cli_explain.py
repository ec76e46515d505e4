"""`hexane explain`: its text, its files, and what it says to wrong ones."""

import json
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper

import hexane as hx
from command import Cli, save_model


def network(path: Path) -> Path:
    """relu(conv(x)) + x, with names."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="stem/conv", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="stem/relu"),
        helper.make_node("Add", ["r", "x"], ["y"], name="join"),
    ]
    weights = np.random.default_rng(1).standard_normal((8, 8, 3, 3)).astype(np.float32)
    x, y = (("x", TensorProto.FLOAT, [1, 8, 16, 16]), ("y", TensorProto.FLOAT, [1, 8, 16, 16]))
    return save_model(path, nodes, [x], [y], [("w", weights)])


def test_a_summary_and_a_table_of_layers(cli: Cli, tmp_path: Path) -> None:
    ended = cli("explain", network(tmp_path / "net.onnx"), "--target", "M1")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("net.onnx on M1 (h13), schedule apple: 1 segment, 2 layers, 1 partition\n")
    for words in (
        "on-chip memory: at most",
        "of 2.00 MiB",
        "main memory: ",
        "most operations: layer 0",
        "stem/conv, stem/relu",
    ):
        assert words in ended.out


def test_the_story_of_a_node_by_name_and_number(cli: Cli, tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx")
    by_name = cli("explain", model, "--target", "h13", "--node", "stem/relu")
    assert "post_activation of convolution at stem/conv [simple_activation; guide ch22, table 22.3]" in by_name.out
    assert (
        "computed in the engine's arithmetic: products in fixed point, rounded to 2^-16 one by one; then relu: no"
        " rounding (equal to a chip's results to the bit)" in by_name.out
    )
    assert "bytes in use at once (a partition ends before 1887436)" in by_name.out
    assert "bytes after packing (the chip has 2097152)" in by_name.out
    by_number = cli("explain", model, "--target", "h13", "--node", "0")
    assert by_number.out.startswith("layer 0: convolution at stem/conv, stem/relu: Conv")
    wrong = cli("explain", model, "--target", "h13", "--node", "stem/rely")
    assert wrong.code == 1
    assert "--node: got 'stem/rely', need the number of a layer below 2, an op below op3, or a name" in wrong.err
    assert "for example stem/relu" in wrong.err


def test_json_of_all_and_of_a_node(cli: Cli, tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx")
    record = json.loads(cli("explain", model, "--target", "h13", "--json").out)
    assert (record["model"], record["target"], len(record["layers"])) == ("net.onnx", "h13", 2)
    story = json.loads(cli("explain", model, "--target", "h13", "--json", "--node", "op1").out)
    assert [line["verdict"] for line in story["lines"] if line["phase"] == "fusion"] == ["fused"]


def test_page_and_trace_are_files_and_never_the_model(cli: Cli, tmp_path: Path) -> None:
    model, trace, page = network(tmp_path / "net.onnx"), tmp_path / "order.json", tmp_path / "net.html"
    files = ("--trace", trace, "--html", page)
    assert cli("explain", model, "--target", "h17s", "--schedule", "optimal", *files).code == 0
    written = json.loads(trace.read_text())
    assert (written["otherData"]["target"], written["otherData"]["schedule"]) == ("h17s", "optimal")
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "<title>net.onnx on h17s</title>" in page.read_text()
    for option, what in (("--trace", "trace"), ("--html", "page")):
        ended = cli("explain", model, "--target", "h17s", option, model)
        assert ended.code == 1
        assert f"got the model itself as the {what}" in ended.err
        ended = cli("explain", model, "--target", "h17s", option, tmp_path / "no" / "file")
        assert ended.code == 1
        assert "file" in ended.err
    ended = cli("explain", model, "--target", "h17s", "--trace", page, "--html", page)
    assert "got one file for the page and the trace, need two" in ended.err


def test_wrong_targets_and_models_are_errors(cli: Cli, tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx")
    assert "'host', which is no chip" in cli("explain", model, "--target", "host").err
    assert "h99" in cli("explain", model, "--target", "h99").err
    assert cli("explain", model).code == 2
    tan = [helper.make_node("Tan", ["x"], ["y"], name="wave")]
    nothing = save_model(
        tmp_path / "tan.onnx", tan, [("x", TensorProto.FLOAT, [1, 4])], [("y", TensorProto.FLOAT, [1, 4])]
    )
    ended = cli("explain", nothing, "--target", "h13")
    assert ended.code == 1
    assert "got a network of which no op runs on the engine: tan at wave" in ended.err


def test_descriptors_as_text_and_json(cli: Cli, tmp_path: Path) -> None:
    model = network(tmp_path / "net.onnx")
    ended = cli("explain", model, "--target", "M1", "--descriptors")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("net.onnx on M1 (h13): 2 task descriptors of version 7\nExperimental: ")
    assert "common.ConvCfg.Kw = 3" in ended.out
    record = json.loads(cli("explain", model, "--target", "M1", "--descriptors", "--json").out)
    assert [task["kind"] for task in record["segments"][0]["tasks"]] == ["Conv", "ElementWise"]
    hx.write_hwx(tmp_path / "net.hwx", model, "M1")
    assert "2 task descriptors of version 7; --json has their fields" in cli("info", tmp_path / "net.hwx").out
    tasks = json.loads(cli("info", tmp_path / "net.hwx", "--json").out)["tasks"]
    assert tasks[0]["common.ConvCfg.Kw"] == 3
    refused = cli("explain", model, "--target", "M2", "--descriptors")
    assert refused.code != 0
    assert "got task descriptors of version 11, need version 7" in refused.err
    both = cli("explain", model, "--target", "M1", "--descriptors", "--node", "0")
    assert "got --node, --html, --trace or --hypothesis as well, need it alone" in both.err
