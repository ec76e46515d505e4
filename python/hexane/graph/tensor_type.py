"""The dtype and shape of a tensor."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DType, dtype
from hexane.errors import Error
from hexane.system.limits import MAX_BYTES, MAX_RANK

Array = np.ndarray[Any, np.dtype[Any]]
_INT = frozenset((int,))  # bool is left out: True is equal to 1


@dataclass(frozen=True, slots=True)
class TensorType:
    """The dtype and shape of an array. size: the number of elements. bytes: their bits, rounded up to whole bytes."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return (self.size * self.dtype.bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


def tensor_type(spec: object, shape: Sequence[int]) -> TensorType:
    """A checked TensorType. Raises Error for negative dims, a rank above 8, or more than 2^40 bytes."""
    kind = dtype(spec)
    if type(shape) is tuple and _INT.issuperset(map(type, shape)) and (not shape or min(shape) >= 0):
        return _tensor_type(kind, shape)
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise Error(f"[shape] got {shape!r}, need a sequence of integers")
    dims = []
    for d in shape:
        if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d < 0:
            raise Error(f"[shape] {tuple(shape)}: got the dim {d!r}, need integers that are not negative")
        dims.append(int(d))
    return _tensor_type(kind, tuple(dims))


@lru_cache(maxsize=1 << 12)  # a graph has many tensors of few types, which then share one object
def _tensor_type(kind: DType, dims: tuple[int, ...]) -> TensorType:
    if len(dims) > MAX_RANK:
        raise Error(f"[shape] {dims}: got rank {len(dims)}, need at most {MAX_RANK}")
    if prod(max(d, 1) for d in dims) * kind.bits > MAX_BYTES * 8:
        raise Error(f"[shape] {kind}{list(dims)}: got more than {MAX_BYTES} bytes, need less")
    return TensorType(kind, dims)
