"""`hexane check --measured`: Core ML's plan next to the forecast, against the stand-in for Core ML."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import hexane as hx
from coreml_stand_in import coreml_stand_in
from hexane.cli.main import app
from hexane.runtime import coreml_library

DEVICES = {"relu": ("cpu", "cpu,gpu"), "conv": ("ne", "cpu,gpu,ne"), "cast": ("cpu", "cpu,ne")}


def check(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    with pytest.raises(SystemExit):
        app(["check", *map(str, args), "--target", "M1", "--measured"], prog_name="hexane")
    ended = capsys.readouterr()
    return ended.out + ended.err


@pytest.fixture
def network(tmp_path: Path) -> Path:
    weight = np.random.default_rng(1).standard_normal((8, 3, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node("Conv", ["x", "w"], ["c"], "stem/conv"),
            helper.make_node("Relu", ["c"], ["r"], "stem/relu"),
            helper.make_node("Sigmoid", ["r"], ["y"], "last"),
        ],
        "net",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 16, 16))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (1, 8, 14, 14))],
        [numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_the_plan_stands_next_to_the_forecast(capsys: pytest.CaptureFixture[str], network: Path) -> None:
    with coreml_stand_in(DEVICES):
        record = json.loads(check(capsys, network, "--json"))["measured"]
    by_op = {op["op"]: op for op in record["operations"]}
    assert by_op["ios16.conv"]["forecast"] == "engine"
    assert by_op["ios16.conv"]["agrees"] is True
    assert by_op["ios16.relu"] | {"cost": 0} == {
        "op": "ios16.relu", "result": by_op["ios16.relu"]["result"], "preferred": "cpu", "supported": ["cpu", "gpu"],
        "cost": 0, "forecast": "engine", "agrees": False,
    }  # fmt: skip
    assert "ios16.const" not in by_op
    known = [op["agrees"] for op in record["operations"] if op["agrees"] is not None]
    assert record["agree"] == sum(known) / len(known)


def test_the_table_says_where_the_two_differ(capsys: pytest.CaptureFixture[str], network: Path, tmp_path: Path) -> None:
    package = tmp_path / "Net.mlpackage"
    hx.save_coreml(str(network), package)
    with coreml_stand_in(DEVICES):
        said = check(capsys, package)
    assert "Core ML plans 2 of 5 operations for the Neural Engine; the forecast for M1" in said
    (row,) = [line for line in said.splitlines() if line.lstrip().startswith("ios16.relu")]
    assert "differs" in row
    (row,) = [line for line in said.splitlines() if line.lstrip().startswith("ios16.conv")]
    assert "differs" not in row


@pytest.mark.skipif(coreml_library.missing() == "", reason="this machine has Core ML")
def test_other_systems_are_told(capsys: pytest.CaptureFixture[str], network: Path) -> None:
    assert "[check] Core ML: got" in check(capsys, network)
