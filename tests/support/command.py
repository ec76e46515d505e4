"""The command `hexane` in tests: run in this process or another, and small models for it."""

import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.main import get_command


class Ended(NamedTuple):
    code: int
    out: str
    err: str


Cli = Callable[..., Ended]


@cache
def command() -> Any:
    """What the process of `hexane` makes of its functions once, in a hundredth of a second."""
    from hexane.cli.main import app

    return get_command(app)


def changed(arguments: tuple[object, ...], **options: object) -> tuple[object, ...]:
    """The arguments with other values of these options, which they have: changed(("--dim", 32), dim=64)."""
    result = list(arguments)
    for name, value in options.items():
        result[result.index("--" + name.replace("_", "-")) + 1] = value
    return tuple(result)


def options_of(name: str) -> list[str]:
    return [option for one in command().commands[name].params for option in (*one.opts, *one.secondary_opts)]


def in_this_process(capsys: pytest.CaptureFixture[str]) -> Cli:
    """in_this_process(capsys)("run", path, ...) runs the command."""

    def run(*args: object) -> Ended:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            command()([str(a) for a in args], prog_name="hexane")
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0, *capsys.readouterr())

    return run


def spawn(*args: object, **options: object) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "hexane", *map(str, args)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **options)


def weights(rows: int, columns: int = 10) -> np.ndarray:
    """Small integers: products of them are exact."""
    return np.random.default_rng(7).integers(-3, 4, (rows, columns)).astype(np.float32)


def save_model(path: Path, nodes, inputs, outputs, constants=()) -> Path:
    """inputs and outputs: (name, element type, shape)."""
    values = [[helper.make_tensor_value_info(*port) for port in ports] for ports in (inputs, outputs)]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants]
    graph = helper.make_graph(nodes, "g", *values, tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def linear_model(path: Path, shape, matrix: np.ndarray) -> Path:
    """y = flatten(x) @ matrix."""
    nodes = [helper.make_node("Flatten", ["x"], ["flat"]), helper.make_node("MatMul", ["flat", "w"], ["y"])]
    ports = ("x", TensorProto.FLOAT, shape), ("y", TensorProto.FLOAT, [shape[0], matrix.shape[1]])
    return save_model(path, nodes, ports[:1], ports[1:], [("w", matrix)])
