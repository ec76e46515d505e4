"""Products whose operands are known when a program is compiled, and whose bias is not."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


BIAS = _numbers(4)
PRODUCTS: dict[str, Callable[[Any], Any]] = {
    "more axes than the chip takes": lambda b: hx.matmul(_numbers(1, 6, 2), _numbers(1, 1, 2, 2, 4), b),
    "axes that cannot be folded": lambda b: hx.matmul(_numbers(3, 6, 2), _numbers(1, 2, 1, 2, 4), b),
    "rows in front": lambda b: hx.matmul(_numbers(2, 3, 2, 2, 6, 2), _numbers(2, 4), b),
    "params": lambda b: hx.matmul(hx.param("x", _numbers(1, 6, 2)), hx.param("w", _numbers(1, 1, 2, 2, 4)), b),
    "linear": lambda b: hx.linear(_numbers(2, 3, 2, 6, 2), _numbers(4, 2), b),
    "convolution": lambda b: hx.conv(_numbers(1, 3, 8, 8), _numbers(4, 3, 3, 3), b),
    "convolution with depth": lambda b: hx.conv(_numbers(1, 3, 8, 8, 8), _numbers(4, 3, 3, 3, 3), b),
    "transposed convolution": lambda b: hx.conv_transpose(_numbers(1, 3, 8, 8), _numbers(3, 4, 3, 3), b),
}


@pytest.mark.parametrize("chip", ["h11", "h13", "h17s"])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_of_constants_with_a_computed_bias_runs_on_every_chip(name: str, chip: str) -> None:
    y = PRODUCTS[name](hx.input("b", (4,)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hx.FallbackWarning)
        warnings.simplefilter("ignore", hx.HazardWarning)
        got = hx.compile(y, target=chip)(b=BIAS)
    want = hx.compile(y)(b=BIAS)
    assert got.shape == want.shape
    assert np.abs(got - want).max() <= 2e-2 * np.abs(want).max()
