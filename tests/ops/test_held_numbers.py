"""Integers that a dtype does not hold are refused with every NumPy: before 2 it lets them wrap."""

import numpy as np
import pytest

import hexane as hx
from hexane.dtypes import integers
from hexane.ops.compose import held
from hexane.ops.fold import Folder


@pytest.mark.parametrize(("kind", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127), ("uint64", 0, 2**64 - 1)])
def test_the_ends_of_a_dtype_are_held_and_the_next_are_not(kind: str, low: int, high: int) -> None:
    dtype = np.dtype(kind)
    made = integers([[low, high]], dtype)
    assert (made.dtype, made.tolist()) == (dtype, [[low, high]])
    for number in (low - 1, high + 1):
        with pytest.raises(OverflowError):
            integers([0, number], dtype)
        with pytest.raises(hx.Error, match=r"need a number that .* holds"):
            held(number, dtype)


def test_an_array_of_a_scalar_s_dtype_is_not_wrapped() -> None:
    x = hx.input("x", (2,), "uint8").value
    with pytest.raises(hx.Error, match="got 300, need a number that uint8 holds"):
        Folder("here").add(x, 300)


def test_a_constant_of_a_graph_s_text_is_not_wrapped() -> None:
    text = str(hx.graph({"y": hx.add(hx.input("x", (2,), "uint8"), np.array([3, 200], np.uint8))}))
    assert "200" in text
    with pytest.raises(hx.Error, match=r"\[line \d+\]"):
        hx.parse(text.replace("200", "300"))
