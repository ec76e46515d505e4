"""Passes run only on graphs that contain what they need."""

import numpy as np
import pytest

import hexane as hx
from hexane.errors import Error
from hexane.graph import Graph
from hexane.passes.fuse.fuse_silu import fuse_silu
from hexane.passes.needs import has, has_groups, has_narrow_products, has_square_matrices, has_squares, has_volumes
from hexane.passes.order import ORDER, Pass
from hexane.passes.run import run_checked
from hexane.targets import Target, load_target

X = hx.input("x", (1, 4, 6, 6))
SILU = hx.graph(hx.mul(X, hx.sigmoid(X)))


def weights(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ones(shape, np.float32)


def test_a_graph_must_have_one_op_of_each_group() -> None:
    assert has("mul", "relu|sigmoid")(SILU)
    assert not has("mul", "relu|tanh")(SILU)


def test_a_name_that_is_no_op_is_refused() -> None:
    with pytest.raises(AssertionError, match="sigmoyd"):
        has("mul", "sigmoyd")


def test_a_pass_is_not_run_on_a_graph_without_its_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Graph, target: Target) -> Graph:
        raise AssertionError("run")

    monkeypatch.delenv("HEXANE_VERIFY")
    host = load_target("host")
    assert run_checked([Pass(fails, needs=has("conv"))], SILU, host) is SILU
    with pytest.raises(AssertionError, match="run"):
        run_checked([Pass(fails, needs=has("sigmoid"))], SILU, host)


def test_a_pass_that_is_skipped_although_it_has_work_is_found() -> None:
    with pytest.raises(Error, match="after fuse_silu"):
        run_checked([Pass(fuse_silu, needs=has("conv"))], SILU, load_target("host"))


def test_a_pass_has_the_same_needs_everywhere() -> None:
    for p in ORDER:
        assert p.needs is next(other for other in ORDER if other.run is p.run).needs or p.name == "fuse_bias"


@pytest.mark.parametrize(
    ("test", "has_it", "lacks_it"),
    [
        (has_groups, hx.conv(X, weights(4, 1, 3, 3), groups=4), hx.conv(X, weights(4, 4, 3, 3))),
        (
            has_volumes,
            hx.conv(hx.input("v", (1, 2, 4, 4, 4)), weights(2, 2, 1, 1, 1)),
            hx.conv(X, weights(4, 4, 3, 3)),
        ),
        (has_narrow_products, hx.cast(X, dtype="fp16"), hx.relu(X)),
        (has_narrow_products, hx.relu(hx.input("b", (2, 2), "bf16")), hx.relu(X)),
        (has_squares, X * X, hx.relu(X)),
        (has_squares, hx.matmul(X, X), hx.matmul(X, weights(6, 6))),
        (has_square_matrices, hx.matmul(X, weights(6, 6)), hx.matmul(X, weights(6, 5))),
    ],
)
def test_other_needs(test: object, has_it: hx.Tensor, lacks_it: hx.Tensor) -> None:
    assert callable(test)
    assert test(hx.graph(has_it))
    assert not test(hx.graph(lacks_it))
