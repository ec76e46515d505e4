"""Constants as messages: inline numbers, or an offset in the weight file."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from hexane import _core
from hexane.dtypes import DType
from hexane.graph import Array
from hexane.importers.coreml.program import DTYPE_OF, STRING

WEIGHTS = "weights/weight.bin"  # Path of the weight file next to the protobuf.
LEAST_IN_FILE = 10  # Elements; smaller constants are stored inline, and so are bools.
NUMBER_OF = {name: number for number, name in DTYPE_OF.items()}
_EARLY = ("fp16", "fp32", "int8", "uint8")  # dtypes in weight files before iOS 18
_INTS = ("int32", "int16", "uint16")
_ENDS = 64  # bytes at each end of an array that are compared first


class Weights:
    """The weight file. Equal arrays are stored once."""

    def __init__(self) -> None:
        self._arrays: list[tuple[str, Array]] = []
        self._known: dict[tuple[str, int], tuple[Array, int]] = {}  # by an array's `id()`; keeps the array
        self._alike: dict[tuple[str, int, bytes, bytes], list[int]] = {}
        self._blobs: list[tuple[int, Any]] = []

    def add(self, array: Array, dtype: DType, blob: Any) -> None:
        """Adds an array. blob: the message that receives the array's offset."""
        key = (dtype.name, id(array))
        if key not in self._known:
            self._known[key] = array, self._index(np.ascontiguousarray(array), dtype)
        self._blobs.append((self._known[key][1], blob))

    def _index(self, array: Array, dtype: DType) -> int:
        data = array.reshape(-1).view(np.uint8)
        alike = self._alike.setdefault((dtype.name, data.size, data[:_ENDS].tobytes(), data[-_ENDS:].tobytes()), [])
        for index in alike:
            if np.array_equal(self._arrays[index][1].reshape(-1).view(np.uint8), data):
                return index
        alike.append(len(self._arrays))
        self._arrays.append((dtype.name, array))
        return alike[-1]

    def settle(self) -> _core.WeightFile | None:
        """Returns the file, or None if it would be empty. Writes its offset into each array's message."""
        if not self._arrays:
            return None
        file = _core.WeightFile(self._arrays)
        offsets = file.offsets
        for index, blob in self._blobs:
            blob.fileName, blob.offset = f"@model_path/{WEIGHTS}", offsets[index]
        return file


def fill_type(message: Any, dtype: DType, shape: Iterable[int]) -> None:
    """Fills a ValueType."""
    tensor, dims = message.tensorType, tuple(shape)
    tensor.dataType, tensor.rank = NUMBER_OF[dtype.name], len(dims)
    for extent in dims:
        tensor.dimensions.add().constant.size = extent


def fill_text(value: Any, text: str) -> None:
    value.type.tensorType.dataType = STRING
    value.immediateValue.tensor.strings.values.append(text)


def fill_array(value: Any, array: Array, dtype: DType, weights: Weights, system: int) -> None:
    """Fills a Value, inline or with an array of the weight file."""
    fill_type(value.type, dtype, array.shape)
    if array.size >= LEAST_IN_FILE and dtype.kind != "bool" and (system >= 18 or dtype.name in _EARLY):
        weights.add(array, dtype, value.blobFileValue)
        return
    tensor, flat = value.immediateValue.tensor, array.reshape(-1)
    if dtype.kind == "bool":
        tensor.bools.values.extend(flat.tolist())
    elif dtype.name == "fp32":
        tensor.floats.values.extend(flat.tolist())
    elif dtype.name in _INTS:
        tensor.ints.values.extend(flat.tolist())
    else:
        tensor.bytes.values = _packed(flat, dtype) if dtype.bits < 8 else flat.tobytes()


def _packed(flat: Array, dtype: DType) -> bytes:
    """Packs elements of less than a byte, from the lowest bits up."""
    numbers = flat.astype(np.int64)
    bits = (numbers[:, None] >> np.arange(dtype.bits)) & 1
    return np.packbits(bits.reshape(-1).astype(np.uint8), bitorder="little").tobytes()
