"""A model one of whose inputs is a number, a tensor without axes, in every command."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from command import Cli, save_model

W = np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32)


@pytest.fixture
def scaled(tmp_path: Path) -> Path:
    nodes = [helper.make_node("MatMul", ["x", "W"], ["m"]), helper.make_node("Mul", ["m", "s"], ["y"])]
    ports = [("x", TensorProto.FLOAT, [8, 64]), ("s", TensorProto.FLOAT, [])]
    np.savez(tmp_path / "in.npz", x=np.full((8, 64), 255, np.float32), s=np.float32(1 / 255))
    return save_model(tmp_path / "m.onnx", nodes, ports, [("y", TensorProto.FLOAT, [8, 64])], [("W", W)])


@pytest.mark.parametrize(
    "command",
    [
        "run", "run --profile", "run --dtype auto", "estimate --target M4,host", "compare --target M4",
        "compare --with m.onnx", "check --target M4 --input in.npz", "explain --target M4",
        "quantize --input in.npz --output q.onnx", "compress --mode int8 --output c.onnx --input in.npz",
        "compile --runtime c99 --output m.hxp",
    ],
)  # fmt: skip
def test_a_number_goes_in_without_axes(cli: Cli, scaled: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.chdir(scaled.parent)
    name, *options = command.split()
    ended = cli(name, scaled, *options)
    assert ended.code == 0, ended.err
