"""The numbers of constants: elements of less than a byte, of 8-bit floats and of complex numbers as NumPy has them."""

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from hexane.graph import Array

# What each element is while a network computes with it.
DTYPE_OF = {
    "bool": "bool", "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "tf32": "fp32",
    "f8E5M2": "fp8e5m2", "f8E4M3FN": "fp8e4m3",
    "si64": "int64", "si32": "int32", "si16": "int16", "si8": "int8", "si4": "int4", "si2": "int8",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "ui6": "uint6", "ui4": "uint4",
    "ui3": "uint3", "ui2": "uint2", "ui1": "uint1", "f4E2M1FN": "fp32", "f8E8M0FN": "fp32",
}  # fmt: skip
# Elements whose NumPy dtype does not say what they are.
STORED = {"ui6": "uint6", "ui3": "uint3"}
_WHOLE: dict[str, Any] = {
    "bool": np.uint8, "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32, "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E8M0FN": np.uint8,
    "si64": np.int64, "si32": np.int32, "si16": np.int16, "si8": np.int8,
    "ui64": np.uint64, "ui32": np.uint32, "ui16": np.uint16, "ui8": np.uint8,
}  # fmt: skip
BITS = {"si4": 4, "si2": 2, "ui6": 6, "ui4": 4, "ui3": 3, "ui2": 2, "ui1": 1, "f4E2M1FN": 4}
_SMALL: dict[str, Any] = {
    "si4": ml_dtypes.int4, "si2": np.int8, "ui4": ml_dtypes.uint4, "ui2": ml_dtypes.uint2, "ui1": ml_dtypes.uint1,
    "ui6": np.uint8, "ui3": np.uint8,
}  # fmt: skip
# Sign, two bits of exponent and one of significand.
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def numbers(data: memoryview, element: str, shape: tuple[int, ...]) -> Array:
    """The elements of a constant; bytes for one element stand for all. Raises ValueError for another number of bytes
    than the shape needs, and for elements that nobody knows."""
    count = prod(shape)
    if element.startswith("complex<"):
        parts = numbers(data, element[8:-1], (len(data) // _bytes(element[8:-1], 1),)).astype(np.float64)
        if parts.size not in (2, 2 * count):
            raise ValueError(f"got {len(data)} bytes of {element}, need {count} elements")
        pairs = parts.reshape(-1, 2)
        whole = (pairs[:, 0] + 1j * pairs[:, 1]).astype(np.complex128 if element == "complex<f64>" else np.complex64)
        return np.broadcast_to(whole, (count,)).reshape(shape).copy()
    if len(data) == _bytes(element, count):
        return _elements(data, element, count).reshape(shape)
    if count > 0 and len(data) == _bytes(element, 1):
        return np.broadcast_to(_elements(data, element, 1), (count,)).reshape(shape).copy()
    raise ValueError(f"got {len(data)} bytes, need {_bytes(element, count)} for {count} elements of {element}")


def packed(array: Array, element: str) -> bytes:
    """The bytes of a constant: the counterpart of `numbers`. Elements of less than a byte lie one behind the other, the
    first in the lowest bits."""
    whole = np.ascontiguousarray(array)
    if element not in BITS:
        return whole.tobytes()
    bits = BITS[element]
    stream = np.unpackbits(whole.reshape(-1).astype(np.uint8)[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(-1), bitorder="little").tobytes().ljust(_bytes(element, whole.size), b"\0")


def _bytes(element: str, count: int) -> int:
    """Bytes of so many elements. Those of three and six bits fill whole groups of three bytes."""
    if element in _WHOLE:
        return count * int(np.dtype(_WHOLE[element]).itemsize)
    if element not in BITS:
        raise ValueError(f"got elements of {element}, which nobody knows")
    bits = count * BITS[element]
    return -(-bits // 24) * 3 if BITS[element] in (3, 6) else -(-bits // 8)


def _elements(data: memoryview, element: str, count: int) -> Array:
    found: Array
    if element in _WHOLE:
        found = np.frombuffer(data, _WHOLE[element], count)
        if element == "bool":
            return np.asarray(found != 0)
        if element == "f8E8M0FN":
            return np.asarray(np.ldexp(np.float32(1), found.astype(np.int32) - 127))
        return found.copy()
    bits, raw = BITS[element], np.frombuffer(data, np.uint8)
    if 8 % bits == 0:
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        found = (raw[:, None] >> shifts & np.uint8((1 << bits) - 1)).reshape(-1)[:count]
    else:
        stream = np.unpackbits(raw, bitorder="little")[: count * bits].reshape(count, bits)
        found = (stream << np.arange(bits, dtype=np.uint8)).sum(axis=1).astype(np.uint8)
    if element == "f4E2M1FN":
        return np.asarray(_FP4[found])
    if element.startswith("si"):
        found = found.astype(np.int8) - ((found >> (bits - 1)).astype(np.int8) << bits)
    return np.asarray(found.astype(_SMALL[element]))
