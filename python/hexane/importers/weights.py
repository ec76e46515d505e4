"""Weights of folders as constants of graphs."""

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array, constant


def as_tensor(weight: Array | Tensor) -> Tensor:
    """Returns the weight as a tensor in fp32. An encoded weight already is a tensor. Read-only arrays are not
    copied."""
    if isinstance(weight, Tensor):
        return weight
    held = hx.const(weight) if weight.flags.writeable else Tensor(constant(weight))
    return held if weight.dtype == np.float32 else hx.cast(held, dtype="fp32")


def as_fp32(array: Array, stored: bool) -> Array:
    """Returns a weight in fp32. stored: a matrix in 16 bits keeps its dtype, and `as_tensor` widens it."""
    if stored and array.ndim == 2 and array.itemsize == 2:
        return array
    return array.astype(np.float32, copy=False)
