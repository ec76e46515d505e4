"""A bad request is told from a fault by the class of its error: InputError, UnsupportedError."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from command import linear_model, weights
from onnx_models import model, node

X = np.random.default_rng(1).uniform(0, 255, (2, 24)).astype(np.float32)


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("nets")
    return {
        "fixed": hx.compile(linear_model(folder / "fixed.onnx", [2, 24], weights(24))),
        "open": hx.compile(linear_model(folder / "open.onnx", ["rows", 24], weights(24))),
    }


BAD: dict[str, Callable[[Any], Any]] = {
    "shape": lambda net: net(X[:, :23].copy()),
    "rank": lambda net: net(X[0]),
    "dtype": lambda net: net(X.astype(np.int8)),
    "no array": lambda net: net(None),
    "too many": lambda net: net(X, X),
    "none": lambda net: net(),
    "name": lambda net: net(other=X),
    "mapping": lambda net: net({"x": X, "other": X}),
    "twice": lambda net: net(X, x=X),
}


@pytest.mark.parametrize("kind", ["fixed", "open"])
@pytest.mark.parametrize("case", BAD)
def test_an_array_that_does_not_fit_is_an_input_error(nets: dict[str, Any], kind: str, case: str) -> None:
    good = nets[kind](X)
    with pytest.raises(hx.InputError, match=r"^\[.*got .*, need|^\[.*missing") as raised:
        BAD[case](nets[kind])
    assert isinstance(raised.value, ValueError)
    np.testing.assert_array_equal(nets[kind](X), good)


@pytest.mark.parametrize(
    "given",
    [{"x": X[:, :23].copy()}, {"x": X.astype(np.float64)}, {"x": X[:, ::-1]}, {}, {"x": X, "z": X}],
    ids=["shape", "dtype", "strides", "none", "name"],
)
def test_a_buffer_that_does_not_fit_is_an_input_error(nets: dict[str, Any], given: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError):
        nets["fixed"].bind(**given)


def test_a_submitted_call_raises_an_input_error(nets: dict[str, Any]) -> None:
    with pytest.raises(hx.InputError):
        nets["fixed"].submit(X[0]).result()


def unknown_op() -> Any:
    return model([node("NoSuchOp", "x", "y")], {"x": X}, ["y"])


def text_input() -> Any:
    return model([node("Identity", "x", "y")], {"x": np.array(["a"], object)}, ["y"])


def on_host() -> hx.Graph:
    return hx.graph({"y": hx.tan(hx.input("x", (2, 3)))})


@pytest.mark.parametrize(
    "ask",
    [
        lambda: hx.compile(unknown_op()),
        lambda: hx.compile(text_input()),
        lambda: hx.compile(3),
        lambda: hx.compile(b"GGUF\x03\x00\x00\x00"),
        lambda: hx.estimate(on_host(), "h13"),
        lambda: hx.explain(on_host(), "h13"),
        lambda: hx.compile(on_host(), target="h13", fallback="error"),
    ],
    ids=["op", "dtype", "type", "kind", "no op to estimate", "no op to explain", "fallback"],
)
def test_a_model_that_cannot_be_compiled_is_unsupported(ask: Callable[[], Any]) -> None:
    with pytest.raises(hx.UnsupportedError) as raised:
        ask()
    assert not isinstance(raised.value, ValueError)


def test_a_damaged_file_and_a_wrong_option_are_neither(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\xff" * 100)
    for ask in (lambda: hx.compile(tmp_path / "net.onnx"), lambda: hx.compile(hx.input("x", (2,)) + 1, target="none")):
        with pytest.raises(hx.Error) as raised:
            ask()
        assert type(raised.value) is hx.Error
