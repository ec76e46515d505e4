"""The digits that fp16 loses of each channel's weights, by which scales and shifts fold into products."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.lowering import channel_scales
from hexane.lowering.affine import Affine

LARGEST = 65504.0
# The shape of weights, and that of the channels among them.
SHAPES = {
    "columns": ((7, 11), (1, 11)),
    "columns without leading axes": ((7, 11), (11,)),
    "rows": ((11, 7), (11, 1)),
    "filters": ((11, 3, 3, 2), (11, 1, 1, 1)),
    "inputs": ((5, 11, 3), (1, 11, 1)),
    "repeated": ((11, 4, 2), (11, 4, 1)),
}


def by_definition(numbers: Any, channel: Any, count: int) -> Any:
    """sqrt(sum of squared errors / sum of squares) of each channel, one number after the other, in fp64."""
    lost, size = np.zeros(count), np.zeros(count)
    for number, place in zip(numbers.ravel(), np.broadcast_to(channel, numbers.shape).ravel(), strict=True):
        wide = float(number)
        narrow = float(np.float16(min(max(wide, -LARGEST), LARGEST)))
        lost[place] += (wide - narrow) ** 2
        size[place] += wide**2
    return np.sqrt(lost / np.where(size > 0, size, 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("case", SHAPES)
def test_the_loss_of_a_channel_is_that_of_the_definition(case: str, dtype: Any) -> None:
    shape, channels = SHAPES[case]
    rng = np.random.default_rng(3)
    channel = np.arange(np.prod(channels)).reshape(channels) % 11
    for _ in range(5):  # from numbers that fp16 loses altogether to numbers beyond it
        scale = (10.0 ** rng.uniform(-12, 8, 11))[channel]
        numbers = (rng.standard_normal(shape) * scale).astype(dtype)
        got = channel_scales._lost(numbers, channel, 11)
        np.testing.assert_allclose(got, by_definition(numbers, channel, 11), rtol=1e-9)


def test_a_shift_alone_keeps_the_weights() -> None:
    """Whatever fp16 loses of them, it loses it without the shift, too."""
    weights = np.full((4, 3), 1e-7, np.float32)
    maker = hx.graph(hx.matmul(hx.input("x", (2, 4)), weights)).outputs[0].value.node
    shift = Affine(np.ones(3), np.arange(3.0))
    operands = channel_scales.scaled_operands(maker, shift, True)
    assert operands is not None
    assert operands[1] == maker.inputs[1]
    too_large = Affine(np.ones(3), np.full(3, 1e6))
    assert channel_scales.scaled_operands(maker, too_large, True) is None
