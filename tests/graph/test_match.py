"""Patterns: what they match, and what rewriting makes of matches."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Value
from hexane.graph.printer import print_graph
from hexane.ops.match import Pattern, about, number, op, rewrite

X, Y = hx.input("x", (2, 3)), hx.input("y", (2, 3))
GATED = op("mul", "a", op("sigmoid", "a"))


def found(pattern: Pattern, y: hx.Tensor) -> list[dict[str, Value]]:
    """What names are bound to, for each match of y, which is the one output."""
    made = y.value.node.op
    if pattern.ops is not None and made not in pattern.ops:
        return []
    return [dict(bound) for bound in pattern.match(hx.graph(y), y.value, {})]


@pytest.mark.parametrize("y", [X * hx.sigmoid(X), hx.sigmoid(X) * X], ids=["left", "right"])
def test_operands_of_a_commutative_op_stand_in_either_order(y: hx.Tensor) -> None:
    assert found(GATED, y) == [{"a": X.value}]


def test_operands_of_other_ops_have_their_order() -> None:
    pattern = op("sub", "a", op("sigmoid", "a"))
    assert found(pattern, X - hx.sigmoid(X))
    assert not found(pattern, hx.sigmoid(X) - X)


def test_a_name_is_one_value() -> None:
    assert not found(GATED, X * hx.sigmoid(Y))
    assert len(found(op("add", "a", "b"), X + Y)) == 2


@pytest.mark.parametrize(("exponent", "fits"), [(2.0, True), (2.0000002, False), (3.0, False)])
def test_a_number_is_exact(exponent: float, fits: bool) -> None:
    assert bool(found(op("pow", "a", 2.0), X ** np.float32(exponent))) == fits


def test_about_is_6_digits() -> None:
    assert found(op("mul", "a", about(1.0)), X * np.float32(1.0000005))
    assert not found(op("mul", "a", about(1.0)), X * np.float32(1.00001))


def test_a_number_has_to_fit() -> None:
    pattern = op("add", "a", number(lambda v: v > 0, "n"))
    assert found(pattern, X + 1.0)[0]["n"].node.op == "const"
    assert not found(pattern, X - 1.0 + np.float32(-1))


def test_a_number_that_widens_the_other_operand_does_not_match() -> None:
    row = hx.input("row", (3,))
    assert found(op("mul", "a", 2.0), row * np.full((1,), 2, "f"))
    assert not found(op("mul", "a", 2.0), row * np.full((1, 1), 2, "f"))


def test_an_op_has_no_other_inputs_than_those_given() -> None:
    weight, bias = np.ones((3, 4), "f"), np.ones(4, "f")
    assert found(op("matmul", "a", "b"), hx.matmul(X, weight))
    assert not found(op("matmul", "a", "b"), hx.matmul(X, weight, bias))
    assert found(op("matmul"), hx.matmul(X, weight, bias)) == [{}]


def test_what_has_another_reader_is_not_alone() -> None:
    y = hx.sigmoid(X)
    pattern = op("mul", "a", op("sigmoid", "a", alone=True, name="gate"))
    alone = hx.graph(X * y)
    value = (X * y).value
    assert [m["gate"] for m in pattern.match(alone, value, {})] == [y.value]
    assert not pattern.match(hx.graph([X * y, y]), value, {})


def test_either_takes_each_of_its_patterns() -> None:
    square = op("square", "a") | op("mul", "a", "a") | op("pow", "a", 2.0)
    for y in (hx.square(X), X * X, X**2.0):
        assert {m["a"] for m in found(square, y)} == {X.value}
    assert not found(square, X * Y)


def test_a_pattern_may_ask_what_else_a_value_is() -> None:
    pattern = op("add", "a", Pattern(name="b", fits=lambda value, bound: value.dtype is bound["a"].dtype))
    assert found(pattern, X + Y)


def test_a_match_that_is_not_taken_is_followed_by_the_next() -> None:
    graph = hx.graph(X + Y)
    taken = rewrite(
        graph, op("add", "a", "b"), lambda m: m.make("sub", [m["a"], m["b"]]) if m["a"] == Y.value else None
    )
    assert taken.outputs[0].value.node.inputs == (Y.value, X.value)


def test_a_result_of_another_type_is_not_taken() -> None:
    graph = hx.graph(hx.input("row", (3,)) * np.ones((2, 3), "f"))
    assert rewrite(graph, op("mul", "a", "b"), lambda m: m.make("relu", [m["a"]])).outputs[0].value.shape == (2, 3)
    assert rewrite(graph, op("mul"), lambda m: None) is graph


def test_results_are_made_of_what_values_have_become() -> None:
    y = X * hx.sigmoid(X)
    graph = rewrite(hx.graph(y * hx.sigmoid(y)), GATED, lambda m: m.make("silu", [m["a"]]))
    assert "silu(%0)" in print_graph(graph)
    assert [node.op for node in graph.nodes] == ["input", "silu", "silu"]
