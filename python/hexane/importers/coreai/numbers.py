"""Decodes the numbers of constants to NumPy arrays, also numbers of less than a byte, 8-bit floats and complex
numbers."""

from math import prod
from typing import Any

import ml_dtypes
import numpy as np

from hexane.graph import Array
from hexane.system.large_pages import LargePages

# The dtype of each element type in computations.
DTYPE_OF = {
    "bool": "bool", "f64": "fp64", "f32": "fp32", "f16": "fp16", "bf16": "bf16", "tf32": "fp32",
    "f8E5M2": "fp8e5m2", "f8E4M3FN": "fp8e4m3",
    "si64": "int64", "si32": "int32", "si16": "int16", "si8": "int8", "si4": "int4", "si2": "int8",
    "ui64": "uint64", "ui32": "uint32", "ui16": "uint16", "ui8": "uint8", "ui6": "uint6", "ui4": "uint4",
    "ui3": "uint3", "ui2": "uint2", "ui1": "uint1", "f4E2M1FN": "fp32", "f8E8M0FN": "fp32",
}  # fmt: skip
# Element types whose NumPy dtype is ambiguous.
STORED = {"ui6": "uint6", "ui3": "uint3"}
_WHOLE: dict[str, Any] = {
    "bool": np.uint8, "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32, "f8E5M2": ml_dtypes.float8_e5m2, "f8E4M3FN": ml_dtypes.float8_e4m3fn, "f8E8M0FN": np.uint8,
    "si64": np.int64, "si32": np.int32, "si16": np.int16, "si8": np.int8,
    "ui64": np.uint64, "ui32": np.uint32, "ui16": np.uint16, "ui8": np.uint8,
}  # fmt: skip
BITS = {"si4": 4, "si2": 2, "ui6": 6, "ui4": 4, "ui3": 3, "ui2": 2, "ui1": 1, "f4E2M1FN": 4}
_SMALL: dict[str, Any] = {
    "si4": ml_dtypes.int4, "si2": np.int8, "ui4": ml_dtypes.uint4, "ui2": ml_dtypes.uint2, "ui1": np.uint8,
    "ui6": np.uint8, "ui3": np.uint8,
}  # fmt: skip
LARGE = 1 << 16  # bytes; smaller constants are copied, so that they do not keep the whole file in memory.
# For each width of packed numbers: the dtype that holds a group of numbers, one per byte, and the steps that unpack it.
# A step (low, shift) keeps the bits of `low` and shifts the upper bits of each half left.
_APART: dict[int, tuple[Any, tuple[tuple[int, int], ...]]] = {
    4: (np.uint16, ((0x000F, 4),)),
    2: (np.uint32, ((0x0000000F, 12), (0x00030003, 6))),
    1: (np.uint64, ((0x0F, 28), (0x0000000300000003, 14), (0x0001000100010001, 7))),
    6: (np.uint32, ((0x00000FFF, 4), (0x003F003F, 2))),
    3: (np.uint64, ((0x0FFF, 20), (0x0000003F0000003F, 10), (0x0007000700070007, 5))),
}  # fmt: skip
_CHUNK = 1 << 15  # groups or bytes decoded at once, few enough for the cache.
# The values of 4-bit floats: sign, two bits of exponent and one of significand.
_FP4 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def numbers(data: memoryview, element: str, shape: tuple[int, ...], room: LargePages | None = None) -> Array:
    """Returns the elements of a constant. If `data` has only one element, it is repeated. Large arrays whose layout is
    NumPy's are views of the file. room: memory for decoded arrays. Raises ValueError if the number of bytes does not
    fit the shape, and for an unknown element type."""
    count = prod(shape)
    if element.startswith("complex<"):
        parts = numbers(data, element[8:-1], (len(data) // _bytes(element[8:-1], 1),)).astype(np.float64)
        if parts.size not in (2, 2 * count):
            raise ValueError(f"got {len(data)} bytes of {element}, need {count} elements")
        pairs = parts.reshape(-1, 2)
        whole = (pairs[:, 0] + 1j * pairs[:, 1]).astype(np.complex128 if element == "complex<f64>" else np.complex64)
        return np.broadcast_to(whole, (count,)).reshape(shape).copy()
    if len(data) == _bytes(element, count):
        return _elements(data, element, count, room).reshape(shape)
    if count > 0 and len(data) == _bytes(element, 1):
        return np.broadcast_to(_elements(data, element, 1), (count,)).reshape(shape).copy()
    raise ValueError(f"got {len(data)} bytes, need {_bytes(element, count)} for {count} elements of {element}")


def packed(array: Array, element: str) -> bytes:
    """Returns the bytes of a constant: the inverse of `numbers`, except for types that it widens, such as f4E2M1FN.
    Elements of less than a byte are packed from the lowest bits up."""
    whole = np.ascontiguousarray(array)
    if element not in BITS:
        return whole.tobytes()
    bits = BITS[element]
    stream = np.unpackbits(whole.reshape(-1).astype(np.uint8)[:, None], axis=1, count=bits, bitorder="little")
    return np.packbits(stream.reshape(-1), bitorder="little").tobytes().ljust(_bytes(element, whole.size), b"\0")


def _bytes(element: str, count: int) -> int:
    """Returns the bytes that `count` elements occupy. Elements of three and six bits fill whole groups of three
    bytes."""
    if element in _WHOLE:
        return count * int(np.dtype(_WHOLE[element]).itemsize)
    if element not in BITS:
        raise ValueError(f"got elements of {element}, need a known type")
    bits = count * BITS[element]
    return -(-bits // 24) * 3 if BITS[element] in (3, 6) else -(-bits // 8)


def _elements(data: memoryview, element: str, count: int, room: LargePages | None = None) -> Array:
    array: Array
    if element in _WHOLE:
        array = np.frombuffer(data, _WHOLE[element], count)
        if element == "bool":
            return np.asarray(array != 0)
        if element == "f8E8M0FN":
            return np.asarray(np.ldexp(np.float32(1), array.astype(np.int32) - 127))
        return array if array.nbytes > LARGE and array.flags.aligned and data.readonly else array.copy()
    bits = BITS[element]
    array = _unpacked(np.frombuffer(data, np.uint8), bits, count, room or LargePages())
    if element == "f4E2M1FN":
        return np.asarray(_FP4[array])
    if element == "si2":
        return _with_sign(array, bits)
    return array.view(_SMALL[element])  # each element has one byte, with the number in the lowest bits


def whole_bytes(array: Array, room: LargePages | None = None) -> Array:
    """Returns integers of less than a byte as int8 or uint8, and other arrays unchanged. room: memory for the
    result."""
    if array.dtype == ml_dtypes.int4:
        return _with_sign(array.view(np.uint8), 4, room)
    small = array.dtype in (ml_dtypes.uint4, ml_dtypes.uint2)
    return array.view(np.uint8) if small else array


def _with_sign(array: Array, bits: int, room: LargePages | None = None) -> Array:
    """Sign-extends numbers in the lowest bits of bytes."""
    sign = np.uint8(1 << (bits - 1))
    signed = (room or LargePages()).array(array.shape, np.uint8)
    before, after = array.reshape(-1), signed.reshape(-1)
    for begin in range(0, after.size, _CHUNK):
        part = after[begin : begin + _CHUNK]
        np.bitwise_xor(before[begin : begin + _CHUNK], sign, out=part)
        part -= sign
    return signed.view(np.int8)


def _unpacked(data: Array, bits: int, count: int, room: LargePages) -> Array:
    """Unpacks `count` numbers of less than a byte to one byte each, the first from the lowest bits."""
    kind, steps = _APART[bits]
    size = 3 if bits in (3, 6) else 1  # bytes of a group
    groups = room.array((data.size // size,), kind)
    below = np.empty(min(_CHUNK, groups.size), kind)
    for begin in range(0, groups.size, _CHUNK):
        part = groups[begin : begin + _CHUNK]
        packed_part = data[begin * size : (begin + part.size) * size]
        part[...] = packed_part[size - 1 :: size]
        for i in reversed(range(size - 1)):
            part <<= kind(8)
            part |= packed_part[i::size]
        for low, shift in steps:
            stays = np.bitwise_and(part, kind(low), out=below[: part.size])
            part ^= stays
            part <<= kind(shift)
            part |= stays
    return groups.view(np.uint8)[:count]
