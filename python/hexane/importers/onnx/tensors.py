"""Reads untrusted tensors: element types, data, and external data, which may not lie outside the model's folder."""

import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, external_data_helper, helper, numpy_helper

from hexane.dtypes import DType, dtype
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, tensor_type
from hexane.importers.files import check_memory, open_inside


def check_text(text: str) -> str:
    """Returns the text. Raises Error for a text that is not UTF-8, which protobuf returns as bytes."""
    if not isinstance(text, str):
        raise Error(f"[import] got the text {text!r:.60}, need UTF-8")
    return text


@cache
def element_type(code: int) -> DType:
    """Returns the dtype of an ONNX element type. Raises Error for strings, complex numbers and unknown codes."""
    if code == TensorProto.UNDEFINED or code not in TensorProto.DataType.values():
        raise Error(f"element type: got {code}, need one that ONNX defines")
    name = TensorProto.DataType.Name(code)
    if code == TensorProto.STRING:
        raise UnsupportedError("element type: got strings, need numbers: Hexane computes no strings")
    try:
        return dtype(helper.tensor_dtype_to_np_dtype(code))
    except Error:
        raise UnsupportedError(f"element type: got {name}, need one that Hexane has") from None


def read_tensor(tensor: TensorProto, folder: Path | None, detached: memoryview | None = None) -> Array:
    """Returns a tensor's array in its declared shape. `detached`: the data, if the proto lacks them.

    Raises Error if the amount of data does not fit the shape.
    """
    kind = tensor_type(element_type(tensor.data_type), tuple(tensor.dims))
    if tensor.HasField("segment"):
        raise Error("got a tensor in segments, need it whole")
    if external_data_helper.uses_external_data(tensor):
        raw: Any = _external(tensor, kind.bytes, folder)
    elif detached is not None or tensor.HasField("raw_data"):
        raw = tensor.raw_data if detached is None else detached
        if len(raw) != kind.bytes:
            raise Error(f"got {len(raw)} bytes of data, need {kind.bytes} for {kind}")
    else:
        return _typed(tensor, kind.size)
    if kind.dtype.bits % 8 == 0 and np.little_endian:
        return np.ndarray(kind.shape, kind.dtype.numpy, raw)
    # The onnx package converts packed sub-byte elements, and all data on big-endian machines.
    whole = TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=bytes(raw))
    return np.asarray(numpy_helper.to_array(whole))


def _typed(tensor: TensorProto, size: int) -> Array:
    """Returns the elements in a typed field (float_data, ...). Packed dtypes have several elements per entry."""
    field = helper.tensor_dtype_to_field(tensor.data_type)
    per_item = {4: 2, 2: 4}.get(element_type(tensor.data_type).bits, 1)
    count, need = len(getattr(tensor, field)), -(-size // per_item)
    if count != need:
        raise Error(f"got {count} values in {field}, need {need}")
    _check_range(tensor, field)
    try:
        return np.ascontiguousarray(numpy_helper.to_array(tensor)).reshape(tuple(tensor.dims))
    except (ValueError, TypeError, OverflowError) as error:
        raise Error(f"got data that does not convert: {error}") from None


def _check_range(tensor: TensorProto, field: str) -> None:
    """Raises Error for an entry beyond the range of its dtype. Small integers and 16-bit floats are stored in larger
    integers."""
    kind = element_type(tensor.data_type)
    narrow = kind.bits in (8, 16) if field == "int32_data" else kind.bits == 32 and field == "uint64_data"
    if not narrow or kind.kind == "bool":
        return
    least, most = (-(1 << kind.bits - 1), 1 << kind.bits - 1) if kind.kind == "int" else (0, 1 << kind.bits)
    data = getattr(tensor, field)
    if data and not (least <= min(data) and max(data) < most):
        raise Error(f"got the values {min(data)} to {max(data)} in {field}, need {least} to {most - 1} for {kind}")


def _external(tensor: TensorProto, need: int, folder: Path | None) -> Array:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = check_text(entries.get("location", ""))
    if folder is None:
        raise Error(f"got external data in {location!r}, need the model as a file to know its folder")
    offset, length = _number(entries, "offset", 0), _number(entries, "length", need)
    if length != need:
        raise Error(f"external data in {location!r}: got the length {length}, need {need}")
    descriptor = open_inside(folder, location, "external data")
    with os.fdopen(descriptor, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if offset + length > size:
            raise Error(
                f"external data in {location!r}: got bytes {offset}..{offset + length} of {size}, need them inside"
            )
        check_memory(f"external data in {location!r}", length)
        # Read, not mapped: a rewrite of the file would change mapped weights, or cut them off.
        array = np.fromfile(file, np.uint8, length, offset=offset)
    if array.size != length:
        raise Error(f"external data in {location!r}: got {array.size} bytes, need {length}")
    return array


def external_bytes(tensor: TensorProto) -> int:
    """Returns the bytes of a tensor's external data; 0 for a tensor without external data, or of an unreadable type."""
    if not external_data_helper.uses_external_data(tensor):
        return 0
    try:
        return tensor_type(element_type(tensor.data_type), tuple(tensor.dims)).bytes
    except Error:
        return 0  # reading the tensor reports the error


def _number(entries: dict[str, str], key: str, default: int) -> int:
    text = check_text(entries.get(key, str(default)))
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise Error(f"external data: got the {key} {text[:40]!r}, need a number of bytes")
    return int(text)
