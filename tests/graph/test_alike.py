"""When two graphs say the same."""

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.graph.alike import what_it_says
from hexane.graph.origins import source_scope


def _layer(source: str, factor: float = 2.0, name: str = "x", columns: int = 3, output: str = "y") -> Graph:
    with source_scope(source):
        x = hx.input(name, (2, columns))
        return hx.graph({output: hx.softmax(x * factor, axis=1)}, name=source)


def test_equal_layers_say_the_same_wherever_they_come_from() -> None:
    assert what_it_says(_layer("layers.0")) == what_it_says(_layer("layers.1"))
    assert hash(what_it_says(_layer("layers.0"))) == hash(what_it_says(_layer("layers.1")))


@pytest.mark.parametrize("change", [{"factor": 3.0}, {"name": "z"}, {"columns": 4}, {"output": "z"}], ids=str)
def test_layers_of_other_numbers_names_or_shapes_do_not(change: dict[str, object]) -> None:
    assert what_it_says(_layer("layers.0")) != what_it_says(_layer("layers.0", **change))  # type: ignore[arg-type]


def test_the_order_of_operands_counts() -> None:
    x, y = hx.input("x", (2,)), hx.input("y", (2,))
    first, second = (Graph((x.value, y.value), hx.graph(made).outputs) for made in (x - y, y - x))
    assert what_it_says(first) != what_it_says(second)


def test_params_of_one_name_are_not_the_same() -> None:
    def made() -> Graph:
        return hx.graph(hx.input("x", (2,)) + hx.param("w", np.ones(2, np.float32)))

    assert what_it_says(made()) != what_it_says(made())
