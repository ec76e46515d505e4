"""Importing a graph of a million nodes takes at most twice the memory that onnx.load takes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from hexane.importers.onnx import import_onnx, split
from turns import share

MILLION = 1_000_000

# Prints by how many bytes the peak of a fresh process grows.
MEASURE = """
import resource, sys
{imports}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
before = peak()
kept = {load}(sys.argv[1])
print(peak() - before)
"""


def node(op: str, inputs: list[str], output: str) -> onnx.NodeProto:
    result = onnx.NodeProto(op_type=op)
    result.input.extend(inputs)
    result.output.append(output)
    return result


def weight(name: str, value: float) -> onnx.TensorProto:
    return TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1], raw_data=np.float32(value).tobytes())


def large(kind: str, count: int) -> onnx.ModelProto:
    """From the input t0 to the output z."""
    steps, weights = [], [weight("one", 1)]
    if kind == "chain":
        steps = [node("Add", [f"t{i}", "one"], f"t{i + 1}") if i % 2 else node("Relu", [f"t{i}"], f"t{i + 1}")
                 for i in range(count)]  # fmt: skip
    elif kind == "mesh":
        steps = [node("Mul" if i % 2 else "Add", [f"t{i}", f"t{max(0, i - 7)}"], f"t{i + 1}") for i in range(count)]
    elif kind == "constants that fold":
        steps = [node("Add", [f"c{i}", "one"], f"c{i + 1}") for i in range(count)]
        steps.append(node("Add", ["t0", f"c{count}"], f"t{count}"))
        weights.append(weight("c0", 0))
    else:
        steps = [node("Add", [f"t{i}", f"w{i}"], f"t{i + 1}") for i in range(count)]
        weights = [weight(f"w{i}", i) for i in range(count)]
    steps.append(node("Relu", [f"t{count}"], "z"))
    ports = [helper.make_tensor_value_info("t0", TensorProto.FLOAT, [4])], [helper.make_empty_tensor_value_info("z")]
    graph = helper.make_graph(steps, "large", *ports, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def growth(path: Path, imports: str, load: str) -> int:
    code = MEASURE.format(imports=imports, load=load)
    result = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=True)
    return int(result.stdout)


KINDS = ["chain", "mesh", "constants that fold", "weights"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", share(KINDS))
def test_a_million_nodes_take_at_most_twice_the_memory_of_onnx_load(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    path.write_bytes(large(kind, MILLION).SerializeToString())
    theirs = growth(path, "import onnx", "onnx.load")
    ours = growth(path, "import hexane; from hexane.importers.onnx import import_onnx", "import_onnx")
    print(f"{kind}: {ours / 1e6:.0f} MB, onnx.load {theirs / 1e6:.0f} MB")
    assert ours <= 2 * theirs


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_split_and_its_proto_give_the_same_graph(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_MODEL", 0)
    proto = large(kind, 300)
    assert str(import_onnx(proto.SerializeToString())) == str(import_onnx(proto))


def test_nodes_of_a_file_that_is_split_may_be_in_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "MIN_MODEL", 0)
    proto = large("chain", 300)
    proto.graph.node.reverse()
    assert len(import_onnx(proto.SerializeToString()).nodes) == 303
