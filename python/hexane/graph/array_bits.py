"""Compares arrays by their bits, so that equal constants are one node."""

import numpy as np

from hexane import _core
from hexane.graph.tensor_type import Array

_SAMPLED_BYTES = 1 << 16  # Larger constants are first hashed at 64 places of 256 bytes each.
_KEY_BYTES = 64  # Constants up to this size are compared by their bytes, larger ones first by a hash.


def identity(array: Array) -> object:
    """A dictionary key that is equal for arrays of one dtype and shape with the same bytes. Large arrays of a mapped
    file are equal if they are at the same place: the file may be shorter by now, and then it must not be read."""
    if array.nbytes > _KEY_BYTES:
        in_memory = _core.FileMapping.of(array) is None
        return ArrayBits(array) if in_memory else (array.ctypes.data, array.strides)
    return array.base if _is_of(array, array.base) else array.tobytes()


def truths(array: Array) -> Array:
    """Returns the array with 1 in place of bool bytes other than 0, which mean true as well; other arrays are
    unchanged."""
    if array.dtype != np.bool_ or not (array.view(np.uint8) > 1).any():
        return array
    result: Array = array.view(np.uint8) != 0
    return result


class ArrayBits:
    """The bytes of an array as a dictionary key. A fast hash is compared first, then the bytes themselves.

    The hash of a large array covers only samples of its bytes. If the samples of two arrays have one hash, both arrays
    are hashed as a whole.
    """

    __slots__ = ("_digest", "array", "sample")

    def __init__(self, array: Array) -> None:
        self.array = array
        self._digest = b""
        raw = _raw(array)
        blocks = raw[: raw.size // 64 * 64].reshape(64, -1)[:, :256] if raw.size > _SAMPLED_BYTES else raw
        self.sample = _core.hash128(np.ascontiguousarray(blocks))

    @property
    def digest(self) -> bytes:
        self._digest = self._digest or _core.hash128(self.array)
        return self._digest

    def __hash__(self) -> int:
        return hash(self.sample)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ArrayBits) or self.sample != other.sample:
            return False
        if self.array is other.array:
            return True
        return self.digest == other.digest and np.array_equal(_raw(self.array), _raw(other.array))


def _is_of(array: Array, base: object) -> bool:
    """True if the array has exactly these bytes as its memory."""
    return type(base) is bytes and len(base) == array.nbytes


def _raw(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def reshaped_view(array: Array, shape: tuple[int, ...]) -> Array:
    """The array in another shape, without reading it, since its memory may not exist. Raises ValueError if strides
    cannot express the shape."""
    if _RESHAPES_WITHOUT_COPY:
        return np.reshape(array, shape, copy=False)
    view = array[...]
    try:
        view.shape = shape  # deprecated where reshape takes `copy`
    except AttributeError:
        raise ValueError("got strides that cannot express the shape, need a copy") from None
    return view


_RESHAPES_WITHOUT_COPY = tuple(map(int, np.__version__.split(".")[:2])) >= (2, 1)
