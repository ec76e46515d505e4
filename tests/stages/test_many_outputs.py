"""The work to compile a graph grows with its outputs, not with their square."""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest

import hexane as hx
from onnx_models import model, node, rand


def lines_run(function: Callable[[], Any]) -> int:
    """How many lines of this package a call takes: work that no load on the machine changes."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        count += event == "line"
        return trace if "hexane" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def wide(kind: str, count: int) -> onnx.ModelProto:
    names = [f"y{i}" for i in range(count)]
    x, weights = {"x": rand(count, 3)}, {}
    if kind == "one split":
        nodes = [node("Split", "x", " ".join(names), axis=0)]
    elif kind == "one value":
        nodes = [node("Relu", "x", "r"), *(node("Identity", "r", name) for name in names)]
    else:
        weights = {f"w{i}": np.float32(i) for i in range(count)}
        nodes = [node("Add", f"x w{i}", name) for i, name in enumerate(names)]
    return model(nodes, x, names, weights)


@pytest.mark.parametrize("kind", ["apart", "one value", "one split"])
def test_outputs_are_compiled_in_linear_time(kind: str) -> None:
    hx.compile(wide(kind, 10), threads=1)  # what is computed once for all
    few, many = (lines_run(lambda count=count: hx.compile(wide(kind, count), threads=1)) for count in (100, 400))
    assert many < 4.4 * few


def test_every_output_of_many_has_its_own_array() -> None:
    x, net = rand(500, 3), hx.compile(wide("one split", 500), threads=1)
    np.testing.assert_array_equal(np.concatenate(list(net(x).values())), x)
