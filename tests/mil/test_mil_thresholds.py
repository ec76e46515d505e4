"""thresholded_relu: MIL keeps x from alpha on, the catalogue above alpha."""

import numpy as np
import pytest

import hexane as hx
from hexane.mil.forms import WRITE
from hexane.targets.query import load_chip
from hexane.validate import judge

ALPHA = 0.3


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_the_number_beside_the_threshold_is_written(dtype: str) -> None:
    node = hx.thresholded_relu(hx.input("x", (3,), dtype), alpha=ALPHA).value.node
    written = WRITE["thresholded_relu"](node)
    assert written is not None
    kind = node.types[0].dtype.numpy.type
    x = np.array([np.nextafter(kind(ALPHA), kind(0)), kind(ALPHA), np.nextafter(kind(ALPHA), kind(1))])
    np.testing.assert_array_equal(x >= kind(written.arguments["alpha"]), x > kind(ALPHA))


@pytest.mark.parametrize("dtype", ["fp16", "fp32"])
def test_a_chip_runs_it_in_both_dtypes(dtype: str) -> None:
    node = hx.thresholded_relu(hx.input("x", (2, 8), dtype), alpha=ALPHA).value.node
    assert judge(node, load_chip("h15")).verdict == "native"
