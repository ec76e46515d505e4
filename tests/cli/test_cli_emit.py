"""`hexane emit`, and what other commands make of what it wrote."""

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from command import Cli, linear_model, save_model, weights


@pytest.fixture
def halves(tmp_path: Path) -> Path:
    """exp, an inverse hyperbolic sine, which the engine does not have, and exp."""
    nodes = [
        helper.make_node(op, [a], [b], name=f"{op}{a}")
        for op, a, b in (("Exp", "x", "a"), ("Asinh", "a", "b"), ("Exp", "b", "y"))
    ]
    ports = [("x", TensorProto.FLOAT, [1, 8])], [("y", TensorProto.FLOAT, [1, 8])]
    return save_model(tmp_path / "halves.onnx", nodes, *ports)


@pytest.mark.parametrize("count", [1, 2, 4, 6])
def test_advice_names_further_ops(cli: Cli, tmp_path: Path, count: int) -> None:
    nodes = [helper.make_node("Softmax", [f"x{i}"], [f"x{i + 1}"], name=f"s{i}", axis=1) for i in range(count)]
    ports = [("x0", TensorProto.FLOAT, [1, 6])], [(f"x{count}", TensorProto.FLOAT, [1, 6])]
    path = save_model(tmp_path / "net.onnx", nodes, *ports)
    (line,) = [
        line
        for line in cli("emit", path, "--target", "M1", "-o", tmp_path / "out").out.splitlines()
        if line.startswith("unconfirmed: softmax at s0: got an axis of 6; ")
    ]
    further = [f"softmax at s{i}" for i in range(1, min(count, 4))]
    if count > 4:
        further.append(f"{count - 4} more ops")
    assert line.partition("; the same advice for ")[2] == ", ".join(further)


def test_emit_writes_text_and_weights_that_run_reads(cli, model, x, tmp_path):
    ended = cli("emit", model, "--target", "h13", "-o", tmp_path / "out")
    assert (ended.code, ended.err) == (0, "")
    assert "out/model.mil: " in ended.out
    assert "x fp16[1, 3, 2, 4] -> y fp16[1, 10]" in ended.out
    assert sorted(p.relative_to(tmp_path / "out").as_posix() for p in (tmp_path / "out").rglob("*.*")) == [
        "model.mil",
        "weights/weights.bin",
    ]
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    ended = cli("run", tmp_path / "out" / "model.mil", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), x.reshape(1, -1) @ weights(24))


def test_text_is_compiled_and_checked_like_any_model(cli, model, tmp_path):
    cli("emit", model, "--target", "m1", "-o", tmp_path)
    assert cli("compile", tmp_path / "model.mil", "-o", tmp_path / "plan.hxp", "--target", "m1").code == 0
    assert "runs whole on the engine" in cli("check", tmp_path / "model.mil", "--target", "h13").out
    record = json.loads(cli("info", tmp_path / "model.mil", "--json").out)
    assert (record["format"], record["outputs"][0]["dtype"]) == ("mil", "fp16")
    assert record["ops"]
    assert cli("emit", tmp_path / "model.mil", "--target", "h13", "-o", tmp_path / "again").code == 0
    assert (tmp_path / "again" / "model.mil").read_text() == (tmp_path / "model.mil").read_text()
    assert (tmp_path / "again" / "weights" / "weights.bin").read_bytes() == (
        tmp_path / "weights" / "weights.bin"
    ).read_bytes()


def test_several_pieces_have_a_folder_each_and_the_host_is_named(cli, halves, tmp_path):
    ended = cli("emit", halves, "--target", "h13", "-o", tmp_path / "out")
    assert ended.code == 0
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["segment_0", "segment_2"]
    assert "segment_0/model.mil: 1 op, no weights; x fp16[1, 8] -> value_" in ended.out
    assert "segment 1 runs on the CPU, 1 op: asinh at Asinha does not run on the engine" in ended.out
    assert cli("run", tmp_path / "out" / "segment_2" / "model.mil").code == 0


def test_a_program_that_would_stay_beside_those_of_another_model_is_an_error(cli, model, halves, tmp_path):
    def files():
        return {p: p.read_bytes() for p in sorted((tmp_path / "out").rglob("*.*"))}

    for first, second, stays in ((model, halves, "model.mil"), (halves, model, "segment_0/model.mil")):
        assert cli("emit", first, "--target", "h13", "-o", tmp_path / "out").code == 0
        assert cli("emit", first, "--target", "h13", "-o", tmp_path / "out").code == 0, "the same files, again"
        before = files()
        ended = cli("emit", second, "--target", "h13", "-o", tmp_path / "out")
        assert (ended.code, f"out/{stays}: got a program of another model" in ended.err) == (1, True)
        assert files() == before
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64])
def test_rows_of_tokens_are_the_hosts_and_the_rest_is_written(cli, tmp_path, kind):
    nodes = [helper.make_node("Gather", ["w", "ids"], ["rows"], name="embed"), helper.make_node("Exp", ["rows"], ["y"])]
    ports = [("ids", kind, [1, 5])], [("y", TensorProto.FLOAT, [1, 5, 2])]
    path = save_model(tmp_path / "model.onnx", nodes, *ports, [("w", np.ones((7, 2), np.float32))])
    ended = cli("emit", path, "--target", "h13", "-o", tmp_path / "out")
    assert (ended.code, "out/model.mil: 1 op" in ended.out) == (0, True)
    kind_name = f"int{32 if kind == TensorProto.INT32 else 64}"
    why = f"the engine cannot receive {kind_name}: {kind_name}[1, 5] comes from outside the engine"
    assert f"segment 0 runs on the CPU, 1 op: gather at embed: {why}" in ended.out


def test_emit_prints_one_json_object(cli, halves, tmp_path):
    record = json.loads(cli("emit", halves, "--target", "h13", "-o", tmp_path, "--json").out)
    first, second = record["programs"]
    assert first["inputs"] == [{"name": "x", "user_name": "x", "dtype": "fp16", "shape": [1, 8]}]
    assert second["outputs"] == [{"name": "y", "user_name": "y", "dtype": "fp16", "shape": [1, 8]}]
    assert [part["segment"] for part in record["host"]] == [1]
    assert (first["segment"], second["segment"], record["target"]) == (0, 2, "h13")


def test_a_model_that_the_engine_computes_nothing_of_is_an_error(cli, tmp_path):
    ports = [("x", TensorProto.FLOAT, [1, 8])], [("y", TensorProto.FLOAT, [1, 8])]
    path = save_model(tmp_path / "model.onnx", [helper.make_node("Asinh", ["x"], ["y"])], *ports)
    ended = cli("emit", path, "--target", "h13", "-o", tmp_path / "out")
    assert ended.code == 1
    assert "h13: got a network of which no op runs on the engine" in ended.err
    assert not (tmp_path / "out").exists()


def test_what_cannot_be_written_is_an_error(cli, model, tmp_path):
    (tmp_path / "file").write_text("")
    ended = cli("emit", model, "--target", "h13", "-o", tmp_path / "file")
    assert ended.code == 1
    assert "need a folder that can be written to" in ended.err


def test_a_mistake_in_the_text_is_named_by_file_line_and_column(cli, model, tmp_path):
    cli("emit", model, "--target", "h13", "-o", tmp_path)
    text = tmp_path / "model.mil"
    text.write_text(text.read_text().replace("matmul(", "mutmal("))
    ended = cli("run", text)
    assert ended.code == 1
    assert ended.err.startswith(f"error: [{text}:")
    assert "got the op mutmal" in ended.err


def test_a_target_that_is_no_chip_is_an_error(cli, model, tmp_path):
    assert cli("emit", model, "--target", "host", "-o", tmp_path).code == 1


def test_emit_without_fixed_shapes_says_which_to_give(cli, tmp_path):
    path = linear_model(tmp_path / "open.onnx", ["rows", 24], weights(24))
    assert cli("emit", path, "--target", "h13", "-o", tmp_path).code == 1
    assert cli("emit", path, "--target", "h13", "-o", tmp_path, "--input-shape", "x:2x24").code == 0


def test_a_netplist_is_written_with_its_weights_and_run(cli, model, x, tmp_path):
    ended = cli("emit", model, "--target", "h12", "--netplist", "-o", tmp_path / "out")
    assert (ended.code, ended.err) == (0, "")
    assert "out/net.plist: " in ended.out
    assert " of the netplist for " in ended.out
    assert " of the model, " in ended.out
    assert "x fp16[1, 3, 2, 4] -> y fp16[1, 1, 1, 10]" in ended.out
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["net.plist", "weights.0"]
    np.save(tmp_path / "x.npy", x.astype(np.float16))
    ended = cli("run", tmp_path / "out" / "net.plist", "--input", f"x={tmp_path / 'x.npy'}", "--output", tmp_path)
    assert (ended.code, ended.err) == (0, "")
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy").reshape(1, -1), x.reshape(1, -1) @ weights(24))
    assert cli("check", tmp_path / "out" / "net.plist", "--target", "h13").code == 0
    assert json.loads(cli("info", tmp_path / "out" / "net.plist", "--json").out)["format"] == "netplist"


def test_a_netplist_without_its_weights_says_which_file_is_missing(cli, model, tmp_path):
    cli("emit", model, "--target", "h13", "--netplist", "-o", tmp_path)
    (tmp_path / "weights.0").unlink()
    ended = cli("run", tmp_path / "net.plist")
    assert ended.code == 1
    assert "weights.0" in ended.err
    (tmp_path / "net.plist").write_text("no list")
    assert "got no property list" in cli("run", tmp_path / "net.plist").err


@pytest.mark.parametrize("suffix", ["mlmodel", "mlmodelc"])
def test_a_folder_is_not_called_like_a_core_ml_model(cli, model, tmp_path, suffix):
    ended = cli("emit", model, "--target", "h13", "-o", tmp_path / f"net.{suffix}")
    assert (ended.code, "got the name of a Core ML model" in ended.err) == (1, True)
    assert not list(tmp_path.glob(f"*.{suffix}"))


def test_a_chip_that_takes_no_mil_needs_a_netplist(cli, model, tmp_path):
    ended = cli("emit", model, "--target", "iPhone XS", "-o", tmp_path / "out")
    assert ended.code == 1
    assert "[emit] got iPhone XS (h11), which takes no programs in MIL, need --netplist as well" in ended.err
    assert not (tmp_path / "out").exists()
    assert cli("emit", model, "--target", "iPhone XS", "--netplist", "-o", tmp_path / "out").code == 0


SORTS = [
    *[(op, dtype, "aimodel") for op in ("ArgMax", "ArgMin", "TopK") for dtype in ("DOUBLE", "FLOAT", "INT8")],
    *[("TopK", dtype, "h16") for dtype in ("INT8", "UINT8", "INT16", "UINT16", "FLOAT16")],
]


@pytest.mark.parametrize(("op", "dtype", "form"), SORTS)
def test_what_is_written_of_sorts_is_read_back(cli: Cli, tmp_path: Path, op: str, dtype: str, form: str) -> None:
    kind = getattr(TensorProto, dtype)
    x = np.random.default_rng(5).integers(0, 99, (3, 40)).astype(helper.tensor_dtype_to_np_dtype(kind))
    k, outputs = [numpy_helper.from_array(np.array([7]), "k")], ["v", "i"]
    nodes = [helper.make_node(op, ["x", "k"], outputs)]
    if op != "TopK":
        k, outputs = [], ["i"]
        nodes = [helper.make_node(op, ["x"], outputs, axis=1)]
    ports = [helper.make_empty_tensor_value_info(name) for name in outputs]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", kind, x.shape)], ports, k)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "m.onnx")
    place = tmp_path / ("m.aimodel" if form == "aimodel" else "mil")
    options = () if form == "aimodel" else ("--target", form)
    assert cli("emit", tmp_path / "m.onnx", "-o", place, *options).code == 0
    net = hx.compile(place if form == "aimodel" else place / "model.mil")
    found = net(x.astype(net.inputs[0].dtype.numpy))
    order = np.argsort(x if op == "ArgMin" else -x.astype(np.float64), axis=1, kind="stable")
    places = order[:, :7] if op == "TopK" else order[:, :1]
    np.testing.assert_array_equal(found["i"] if op == "TopK" else found, places)
    if op == "TopK":
        np.testing.assert_array_equal(found["v"], np.take_along_axis(x, places, 1))
