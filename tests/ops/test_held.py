"""Numbers of attributes in a dtype that does not reach so far: its largest number, not infinity, and no warning."""

import warnings
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.dtypes import BF16, FP16
from hexane.ops import OPS
from hexane.ops.compose import held, lift
from hexane.ops.rewriter import Rewriter


@pytest.mark.parametrize(
    ("number", "dtype", "want"),
    [
        (1e9, np.float16, 65504.0), (-3.4e38, np.float16, -65504.0), (-np.inf, np.float16, -np.inf),
        (3, np.int32, 3), (0.5, np.float16, 0.5), (-1e300, BF16.numpy, -3.3895313892515355e38),
    ],
)  # fmt: skip
def test_a_finite_number_stays_finite(number: float, dtype: Any, want: float) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = held(number, dtype)
    assert found.dtype == np.dtype(dtype)
    assert float(found) == want


def test_a_scalar_beside_fp16_stays_finite() -> None:
    x = hx.input("x", (3,), "fp16").value
    (_, number) = lift([x, -1e9], ())
    assert number is not None
    assert number.node.data == np.float16(-65504)


def test_hidden_of_attention_in_fp16_stays_finite() -> None:
    shape = (1, 2, 5, 8)
    query, key, value = (hx.input(n, shape, "fp16").value for n in ("query", "key", "value"))
    shown = hx.input("shown", (1, 1, 5, 5), "bool").value
    expand = OPS["scaled_dot_product_attention"].expand
    assert expand is not None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attrs = {"scale": 0.5, "causal": False, "zero_hidden": False, "hidden": -3.4e38}
        made = expand(Rewriter(), query, key, value, shown, **attrs)
    numbers = [n.data for n in hx.graph(hx.Tensor(made)).nodes if n.op == "const" and n.types[0].dtype is FP16]
    assert {float(v) for v in numbers if v is not None} == {0.5, -65504.0}
