"""Finds the integers of a quantised value, with their scale, zero point and axis."""

from typing import NamedTuple

import numpy as np

from hexane.dtypes import FP32, DType
from hexane.graph import Array, Value
from hexane.ops.match import made_by
from hexane.ops.records.quant import BYTES


class Grid(NamedTuple):
    """One known scale and zero point: the real numbers are (q - zero) * scale."""

    scale: float
    zero: int


class Quantized(NamedTuple):
    """The operands of the dequantize that makes a value."""

    value: Value
    scale: Value
    zero: Value | None
    axis: int
    real: DType  # dtype of the real numbers

    @property
    def single(self) -> bool:
        return self.scale.type.rank == 0

    def same_grid(self, other: "Quantized") -> bool:
        """True if equal integers mean equal real numbers in both tensors. Constants with equal bits are the same
        value."""
        same = self.value.dtype is other.value.dtype and self.real is other.real and self.scale == other.scale
        return same and self.zero == other.zero and self.single and other.single

    @property
    def grid(self) -> Grid | None:
        """The grid of 8-bit integers with one constant, positive scale, or None."""
        return grid(self.scale, self.zero) if self.value.dtype in BYTES and self.real is FP32 else None


def dequantized(value: Value | None) -> Quantized | None:
    node = made_by(value, "dequantize")
    if node is None or node.inputs[0] is None or node.inputs[1] is None:
        return None
    return Quantized(node.inputs[0], node.inputs[1], node.inputs[2], node.attrs["axis"], node.types[0].dtype)


def grid(scale: Value | None, zero: Value | None) -> Grid | None:
    """Returns the grid if the scale is one constant, positive number, else None."""
    step, offset = known(scale), 0 if zero is None else known(zero)
    if step is None or offset is None or np.ndim(step) or np.ndim(offset):
        return None
    # Outside this range, integer * scale or number / scale might overflow or lose digits.
    return Grid(float(step), int(offset)) if 1e-30 < float(step) < 1e30 else None


def known(value: Value | None) -> Array | None:
    """Returns the array of a constant, or None for other values."""
    return None if value is None or value.node.op != "const" else value.node.data
