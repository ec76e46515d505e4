"""Integers in ONNX ops: exponents, means and lengths, exact or refused."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

import hexane as hx
from hexane.importers.onnx import import_onnx
from onnx_models import model, rand


@pytest.mark.parametrize("constant", [False, True])
@pytest.mark.parametrize(
    ("base", "exponent", "wanted"),
    [
        (np.int32([4999, -7, 3]), np.float32([2, 3, 0]), [24990001, -343, 1]),
        (np.int32([2, 9, 2]), np.float32([0.5, 0.5, -1]), [1, 3, 0]),
        (np.int64([3, 94906265, -1]), np.float32([30, 2, 3]), [3**30, 94906265**2, -1]),
        (np.float32([-1, -1, 1, 2]), np.int64([16777217, 2**40 + 1, 2**62, -(2**62)]), [-1, -1, 1, 0]),
        (np.float32([-1, -1]), np.int32([16777217, 16777218]), [-1, 1]),
        (np.float32([-1, -1]), np.uint64([2**64 - 1, 2**64 - 2]), [-1, 1]),
        (np.float16([-1, 8]), np.float32([2049, 1 / 3]), [-1, 2]),
        (np.int8([-1, 1, 2]), np.int32([200, 1000, 6]), [1, 1, 64]),
        (np.int32([1, -1]), np.int64([2**40, 2**40 + 1]), [1, -1]),
        (np.uint8([3, 1]), np.int8([-1, -1]), [0, 1]),
    ],
    ids=str,
)
def test_a_power_does_not_round_its_exponent(base: Any, exponent: Any, wanted: list[float], constant: bool) -> None:
    parts = (
        {"inputs": {"x": base}, "constants": {"y": exponent}} if constant else {"inputs": {"x": base, "y": exponent}}
    )
    net = hx.compile(import_onnx(model([helper.make_node("Pow", ["x", "y"], ["z"])], outputs=["z"], **parts)))
    found = net(*((base,) if constant else (base, exponent)))
    assert found.dtype == base.dtype
    assert found.tolist() == wanted


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
def test_the_mean_of_integers_does_not_wrap(dtype: str) -> None:
    limits = np.iinfo(dtype)
    x = np.array([[limits.max, limits.max, limits.max - 1], [limits.min, limits.min, limits.min + 1], [1, 1, 0]], dtype)
    if limits.min < 0:
        x = np.concatenate([x, np.array([[-1, -1, 0], [-3, -4, -3], [limits.min, limits.max, 0]], dtype)])
    net = hx.compile(import_onnx(model([helper.make_node("ReduceMean", ["x"], ["y"], axes=[1])], {"x": x}, ["y"])))
    sums = [sum(map(int, row)) for row in x]
    assert net(x).ravel().tolist() == [abs(s) // 3 * (1 if s > 0 else -1) for s in sums]


@pytest.mark.parametrize("length", [-1, -6, 6, 2**40])
@pytest.mark.parametrize("op", ["ReverseSequence", "GRU", "LSTM", "RNN"])
def test_lengths_beyond_the_sequence_are_refused(op: str, length: int) -> None:
    """Constants at import, others when they arrive."""
    x, dtype = rand(5, 2, 3), np.int64 if op == "ReverseSequence" else np.int32
    lengths = np.array([2, length if op == "ReverseSequence" else np.clip(length, -6, 6)], dtype)
    gates = {"GRU": 3, "LSTM": 4, "RNN": 1}.get(op, 0)
    weights = {} if not gates else {"w": rand(1, gates * 4, 3), "r": rand(1, gates * 4, 4)}
    names = ["x", "w", "r", "", "n"] if gates else ["x", "n"]
    attrs = {"hidden_size": 4} if gates else {"batch_axis": 1, "time_axis": 0}
    nodes = [helper.make_node(op, names, ["y"], **attrs)]
    with pytest.raises(hx.Error, match=rf"lengths: got {lengths[1]}, need 0 to 5"):
        hx.compile(import_onnx(model(nodes, {"x": x}, ["y"], {**weights, "n": lengths})))
    net = hx.compile(import_onnx(model(nodes, {"x": x, "n": lengths}, ["y"], weights)))
    net(x, np.array([0, 5], dtype))
    with pytest.raises(hx.Error, match="index: got"):
        net(x, lengths)
