"""`hexane check --input`: what a chip makes of the numbers that a user gives."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from command import Cli
from hexane.build import graph as graph_of
from hexane.cli.given import Known
from hexane.cli.on_inputs import run_on_inputs
from hexane.report.on_inputs import scale_line, scales_given
from hexane.targets.query import load_chip


@pytest.fixture
def classifier(tmp_path: Path) -> Path:
    """A row of scores behind a norm that is written out, as exporters write RMSNorm."""
    rng = np.random.default_rng(3)
    numbers = {
        "two": np.float32(2),
        "axes": np.array([-1]),
        "epsilon": np.float32(1e-6),
        "weight": (rng.standard_normal((64, 5)) / 8).astype(np.float32),
    }
    nodes = [
        helper.make_node("Pow", ["x", "two"], ["squares"], "squares"),
        helper.make_node("ReduceMean", ["squares", "axes"], ["mean"], "mean"),
        helper.make_node("Add", ["mean", "epsilon"], ["shifted"], "shifted"),
        helper.make_node("Sqrt", ["shifted"], ["root"], "root"),
        helper.make_node("Div", ["x", "root"], ["normal"], "normal"),
        helper.make_node("MatMul", ["normal", "weight"], ["y"], "scores"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in (("x", [4, 64]), ("y", [4, 5]))]
    constants = [numpy_helper.from_array(np.asarray(a), name) for name, a in numbers.items()]
    graph = helper.make_graph(nodes, "classifier", ports[:1], ports[1:], constants)
    path = tmp_path / "classifier.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    np.savez(tmp_path / "in.npz", x=(rng.standard_normal((4, 64)) * 500).astype(np.float32))
    return path


def test_inputs_say_that_a_repaired_network_is_right(cli: Cli, classifier: Path) -> None:
    ended = cli("check", classifier, "--target", "M1,M4", "--input", classifier.with_name("in.npz"))
    assert ended.code == 0
    assert "repaired, 1 place (--repair off leaves them)" in ended.out
    assert "M1 (h13): outputs within 1%: y: top-1 equal in 4 of 4 rows" in ended.out
    assert "beyond fp16 (65504), 3 layers: pow at squares" in ended.out


def test_calibration_names_the_input_that_ran(cli: Cli, classifier: Path) -> None:
    inputs = np.load(classifier.with_name("in.npz"))["x"]
    np.savez(classifier.with_name("several.npz"), x=np.stack([inputs, inputs / 2]))
    ended = cli("check", classifier, "--target", "M1", "--calibration", classifier.with_name("several.npz"))
    assert re.search(r"\non several.npz, input [01], the worst of 2 inputs, in the engine's arithmetic", ended.out)


def test_a_sum_that_fp16_holds_is_not_called_too_large(cli: Cli, tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"], "product"), helper.make_node("Exp", ["a"], ["y"], "power")]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 64]) for n in "xy"]
    graph = helper.make_graph(
        nodes, "net", ports[:1], ports[1:], [numpy_helper.from_array(np.full((64, 64), 1 / 64, "f"), "w")]
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    ended = cli("check", path, "--target", "M1", "--value", "x=20")
    assert "the sum of 64 products is 20; exp of it is more than fp16 holds" in ended.out
    assert "the numbers that exp reads have to be smaller: subtract their largest before it" in ended.out


def test_inputs_name_the_op_that_breaks_the_outputs(cli: Cli, classifier: Path) -> None:
    inputs = ("--input", classifier.with_name("in.npz"), "--repair", "off")
    ended = cli("check", classifier, "--target", "M1", *inputs)
    assert ended.code == 3
    assert ended.out.startswith("M1 (h13): outputs are wrong on these inputs: the first wrong op is pow at squares")
    assert "M1 (h13): outputs off by more than 1%" in ended.out
    assert "why: overflow: M1 (h13): pow at squares" in ended.out
    record = json.loads(cli("check", classifier, "--target", "M1", *inputs, "--json").out)
    assert record["ok"] is False
    (target,) = record["targets"]
    assert target["on_inputs"]["ok"] is False
    ranges = {r["where"]: r["fp16"] for r in record["ranges"]}
    assert ranges["squares"] == "beyond"
    assert record["repairs"] == []


def test_nan_in_an_input_is_refused(cli: Cli, classifier: Path) -> None:
    np.savez(classifier.with_name("nan.npz"), x=np.full((4, 64), np.nan, np.float32))
    ended = cli("check", classifier, "--target", "M1", "--input", classifier.with_name("nan.npz"))
    assert (ended.code, "input 'x': got 256 NaN, need numbers" in ended.err) == (1, True)


def test_without_inputs_the_report_says_what_depends_on_them(cli: Cli, classifier: Path) -> None:
    ended = cli("check", classifier, "--target", "M1", "--repair", "off")
    assert ended.code == 0
    assert "unknown without inputs: whether fp16 holds the results of 2 ops (pow, real_div)" in ended.out
    assert "not judged" not in cli("check", classifier, "--target", "M1").out


@pytest.mark.parametrize("op", ["Mul", "Div", "DequantizeLinear"])
def test_without_inputs_the_report_names_a_scale_that_is_one(cli: Cli, tmp_path: Path, op: str) -> None:
    """It depends on data, and is no alarm."""
    kind = TensorProto.INT8 if op == "DequantizeLinear" else TensorProto.FLOAT
    ports = [
        helper.make_tensor_value_info(*port)
        for port in (("x", kind, [4, 64]), ("s", TensorProto.FLOAT, []), ("y", TensorProto.FLOAT, [4, 64]))
    ]
    nodes = [helper.make_node(op, ["x", "s"], ["scaled"], "scale"), helper.make_node("Relu", ["scaled"], ["y"], "end")]
    path = tmp_path / "scaled.onnx"
    graph = helper.make_graph(nodes, "scaled", ports[:2], ports[2:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    ended = cli("check", path, "--target", "M1", "--fail-on", "rejected,segments=9")
    assert ended.code == 0
    assert "depends on the inputs: the scale 's' (" in ended.out


def test_operands_of_one_size_are_no_scales() -> None:
    x, y, s = (hx.input(name, shape) for name, shape in (("x", (4, 8)), ("y", (4, 8)), ("s", (4, 1))))
    assert scale_line(graph_of(x * y - x / y)) == ""
    assert list(scales_given(graph_of({"one": (x + 1.0) / hx.exp(s), "two": y * hx.reshape(s, shape=(4, 1))}))) == ["s"]


@pytest.fixture
def overflowing(tmp_path: Path) -> Path:
    """exp of a product with weights, which is beyond fp16 on in.npz and within it on small.npz."""
    rng = np.random.default_rng(5)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Exp", ["a"], ["e"], "power"),
        helper.make_node("MatMul", ["e", "w"], ["s"], "scores"),
        helper.make_node("Sigmoid", ["s"], ["y"], "gate"),
    ]
    ports = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 64]) for n in ("x", "y")]
    weight = numpy_helper.from_array(rng.standard_normal((64, 64)).astype(np.float32), "w")
    graph = helper.make_graph(nodes, "net", ports[:1], ports[1:], [weight])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    x = rng.standard_normal((4, 64)).astype(np.float32)
    np.savez(tmp_path / "in.npz", x=x * 3)
    np.savez(tmp_path / "small.npz", x=x / 10)
    return path


@pytest.mark.parametrize("option", ["--input", "--calibration"])
def test_compile_warns_of_wrong_outputs_on_the_inputs(cli: Cli, overflowing: Path, option: str) -> None:
    plan, inputs = overflowing.with_suffix(".hxp"), overflowing.with_name("in.npz")
    ended = cli("compile", overflowing, "--target", "M4", "-o", plan, option, inputs)
    assert ended.code == 0
    assert plan.is_file()
    where = "these inputs" if option == "--input" else "in.npz"
    assert (
        f"[compile] M4 (h16g): outputs are wrong on {where}: the first wrong op is conv at product, power" in ended.err
    )
    assert "M4 (h16g): outputs off by more than 1%: y: " in ended.out
    assert "why: overflow: M4 (h16g): conv at product, power" in ended.out


@pytest.mark.parametrize("command", ["compile", "check"])
def test_the_worst_input_of_a_calibration_is_judged(cli: Cli, overflowing: Path, command: str) -> None:
    several = overflowing.with_name("several.npz")
    small, large = (np.load(overflowing.with_name(name))["x"] for name in ("small.npz", "in.npz"))
    np.savez(several, x=np.stack([small, small, large, small]))
    given = ["-o", overflowing.with_suffix(".hxp")] if command == "compile" else []
    ended = cli(command, overflowing, "--target", "M4", "--calibration", several, *given)
    assert "outputs are wrong on several.npz, input 2, the worst of 4 inputs: the first" in ended.out + ended.err


@pytest.mark.parametrize("command", ["compile", "check"])
def test_no_op_is_blamed_for_an_infinite_input(cli: Cli, classifier: Path, command: str) -> None:
    """The model's own outputs are NaN; the engine's arithmetic has other numbers there."""
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    x[:, 3] = np.inf
    np.savez(classifier.with_name("inf.npz"), x=x)
    given = ["-o", classifier.with_suffix(".hxp")] if command == "compile" else []
    ended = cli(command, classifier, "--target", "M1", "--input", classifier.with_name("inf.npz"), *given)
    assert (
        "M1 (h13): outputs are wrong on these inputs: input x holds 4 infinite numbers; the outputs of the model in its"
        " own dtypes are not finite either\n" in ended.out + ended.err
    )
    assert "why: " not in ended.out
    assert "first wrong op" not in ended.out + ended.err
    told = cli(command, classifier, "--target", "M1", "--input", classifier.with_name("inf.npz"), *given, "--json")
    record = json.loads(told.out)
    one = record["on_inputs"] if command == "compile" else record["targets"][0]["on_inputs"]
    assert (one["ok"], one["infinite_inputs"], one["model_is_finite"]) == (False, {"x": 4}, False)
    assert one["parting"]["layer"] is None


def test_compile_says_that_outputs_are_right_on_the_inputs(cli: Cli, overflowing: Path) -> None:
    plan, inputs = overflowing.with_suffix(".hxp"), overflowing.with_name("small.npz")
    ended = cli("compile", overflowing, "--target", "M4", "-o", plan, "--input", inputs)
    assert (ended.code, ended.err) == (0, "")
    assert "on these inputs, in the engine's arithmetic on this CPU:\n  M4 (h16g): outputs within 1%: y: " in ended.out
    ended = cli("compile", overflowing, "--target", "M4", "-o", plan, "--input", inputs, "--json")
    assert json.loads(ended.out)["on_inputs"]["ok"]


def test_compile_without_inputs_names_the_ops_that_depend_on_them(cli: Cli, overflowing: Path) -> None:
    ended = cli("compile", overflowing, "--target", "M4", "-o", overflowing.with_suffix(".hxp"))
    assert "unknown without inputs: whether fp16 holds the results of 1 op (exp): --input F.npz tells" in ended.out


def test_json_without_inputs_needs_no_second_reading(
    cli: Cli, overflowing: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hexane.cli.compile.judged", None)
    ended = cli("compile", overflowing, "--target", "M4", "-o", overflowing.with_suffix(".hxp"), "--json")
    assert (ended.code, ended.err) == (0, "")


@pytest.mark.parametrize(
    ("options", "limited"),
    [
        (("--stream-input",), "inputs that are needed at once; --sram limits the sum of the arena and scratch"),
        (
            ("--stream-input", "--runtime", "c99"),
            "inputs that are needed at once; --sram limits the sum of the arena and the caller's outputs",
        ),
        (
            ("--stream-input", "--stream-output", "--runtime", "c99"),
            "inputs and outputs that are needed at once; --sram limits the arena",
        ),
    ],
    ids=["host", "c99", "both"],
)
def test_compile_says_what_the_bytes_of_streams_count(
    cli: Cli, tmp_path: Path, options: tuple[str, ...], limited: str
) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, 16, 16]) for name in "xy"]
    graph = helper.make_graph([relu], "g", ports[:1], ports[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "r.onnx")
    ended = cli("compile", tmp_path / "r.onnx", "-o", tmp_path / "r.hxp", "--sram", "64K", *options)
    assert ended.code == 0, ended.err
    assert f"the arena includes the rows of {limited}\n" in ended.out


def test_compile_needs_a_reason_for_calibration(cli: Cli, overflowing: Path) -> None:
    plan, inputs = overflowing.with_suffix(".hxp"), overflowing.with_name("in.npz")
    ended = cli("compile", overflowing, "-o", plan, "--calibration", inputs)
    assert ended.code == 1
    assert "got it for the host, need --dtype auto as well, or a chip as --target" in ended.err


@pytest.mark.parametrize("name", ["mil", "net.mlpackage", "net.aimodel"])
def test_emit_warns_of_wrong_outputs_on_the_inputs(cli: Cli, overflowing: Path, name: str) -> None:
    inputs = overflowing.with_name("in.npz")
    ended = cli("emit", overflowing, "--target", "M4", "-o", overflowing.with_name(name), "--input", inputs)
    assert ended.code == 0
    assert "[emit] M4 (h16g): outputs are wrong on these inputs: the first wrong op" in ended.err
    assert "why: overflow: M4 (h16g): conv at product, power" in ended.out


def test_an_input_that_is_missing_beside_a_fixed_one_leaves_the_outputs_unjudged() -> None:
    """A feed also has the inputs that became constants."""
    a, b = hx.input("a", (2,), "fp32"), hx.input("b", (2,), "fp32")
    feed = {"a": np.ones(2, np.float32), "size": np.array(3)}
    assert run_on_inputs(graph_of({"y": hx.exp(a + b)}), [load_chip("M4")], Known(arrays=feed), "check") is None


@pytest.mark.parametrize(("number", "words"), [(np.inf, "4 infinite numbers"), (np.nan, "4 NaN")])
@pytest.mark.parametrize("targets", ["M1,ieee", "M1,M5"])
def test_compare_blames_no_op_for_an_input_that_is_not_finite(
    cli: Cli, classifier: Path, targets: str, number: float, words: str
) -> None:
    x = np.random.default_rng(1).standard_normal((4, 64)).astype(np.float32)
    x[:, 3] = number
    np.savez(classifier.with_name("x.npz"), x=x)
    ended = cli("compare", classifier, "--targets", targets, "--input", classifier.with_name("x.npz"))
    assert "why: " not in ended.out
    if ended.code == 3:
        said = f"  input x holds {words}; the outputs of the model in its own dtypes are not finite either\n"
        assert said in ended.out
    assert (ended.code == 3) is (targets == "M1,ieee"), ended.out
