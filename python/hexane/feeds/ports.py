"""The inputs for which files are read. Arrays in other dtypes are converted if no number is lost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from ml_dtypes import finfo

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array

ANY = "..."  # a dim that stands for any number of dims


class Port(Protocol):
    """An input. A free dim is None or a name."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int | str | None, ...]: ...
    @property
    def dtype(self) -> DType: ...


@dataclass(frozen=True, slots=True)
class InputPort:
    """A Port that only stores the fields."""

    name: str
    shape: tuple[int | str | None, ...]
    dtype: DType

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join('?' if d is None else str(d) for d in self.shape)}]"


class _Input(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def dims(self) -> Sequence[int | str | None] | None: ...


def port_of(entry: _Input) -> InputPort:
    """The port of an entry, whose `dims` are None if even the rank is free."""
    return InputPort(entry.name, (ANY,) if entry.dims is None else tuple(entry.dims), entry.dtype)


def is_open(port: Port) -> bool:
    """True if it has free dims."""
    return any(not isinstance(d, int) for d in port.shape)


def fits(shape: Sequence[int], need: Sequence[Any]) -> bool:
    if ANY in need:
        return True
    return len(shape) == len(need) and all(not isinstance(n, int) or d == n for d, n in zip(shape, need, strict=True))


def converted(array: Array, dtype: DType) -> Array | None:
    """The array in this dtype and in this machine's byte order. None if numbers would be lost: floats that would become
    infinite, integers outside of the dtype, and floats for an integer dtype."""
    need = dtype.numpy
    if array.dtype.kind == "V" and array.dtype.itemsize == need.itemsize and need.kind == "V":
        return array.view(need)  # npy files have no name for bfloat16 and similar dtypes
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == need:
        return array
    whole = array.dtype.kind in "iub"
    if dtype.kind == "float" and (whole or _is_float(array)):
        return _whole_as_floats(array, need) if whole else _floats_as_floats(array, need)
    if dtype.kind in ("int", "uint") and need.kind in "iu" and whole and dtype.bits == 8 * need.itemsize:
        ends = np.iinfo(need)
        inside = not array.size or (int(array.min()) >= ends.min and int(array.max()) <= ends.max)
        return array.astype(need) if inside else None
    return None


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or any(array.dtype == one.numpy for one in DTYPES.values() if one.kind == "float")


def _floats_as_floats(array: Array, need: np.dtype[Any]) -> Array | None:
    with np.errstate(over="ignore"):
        result = array.astype(need)
    return result if bool((np.isfinite(result) | ~np.isfinite(array)).all()) else None


def _whole_as_floats(array: Array, need: np.dtype[Any]) -> Array | None:
    with np.errstate(over="ignore"):
        result = array.astype(need)
    exact: int = 2 ** (finfo(need).nmant + 1)  # type: ignore[no-untyped-call]  # all integers up to it are exact
    if array.dtype.kind == "b" or not array.size or max(-int(array.min()), int(array.max())) <= exact:
        return result if bool(np.isfinite(result).all()) else None
    large = (array > exact) | (array < -exact) if array.dtype.kind == "i" else array > exact
    same = all(
        np.isfinite(y) and int(y) == int(x) for x, y in zip(array[large], result[large].astype(np.float64), strict=True)
    )
    return result if same else None


def fitting(port: Port, array: Array, source: object, where: str) -> Array:
    """The array in the port's dtype. Raises Error if it has another shape, or if the conversion would lose numbers.
    source: where the array is from."""
    result = converted(array, port.dtype) if fits(array.shape, port.shape) else None
    if result is None:
        alike = array.dtype != port.dtype.numpy and fits(array.shape, port.shape)
        lost = ": it does not hold all of these numbers" if alike and array.dtype.kind in "fiu" else ""
        raise Error(f"{where}: got {array.dtype}{list(array.shape)} from {source}, need {port}{lost}")
    return result
