"""Reads the options of custom ops, which are a map of numbers in a FlexBuffer.

    values   w bytes each, then a byte for each: its type and, if the w bytes are an offset, the width
    before   offset of the keys, their width, the count (w bytes each)
    keys     an offset for each, back to text that ends in 0
    root     at the end: an offset back to the map, its type, its width

Format: google.github.io/flatbuffers/flatbuffers_internals.html, section FlexBuffers.
"""

import struct

from hexane.errors import Error

INT, UINT, FLOAT, INDIRECT_INT, INDIRECT_UINT, INDIRECT_FLOAT, MAP, BOOL = 1, 2, 3, 6, 7, 8, 9, 26
LETTERS = {INT: "bhiq", UINT: "BHIQ", FLOAT: " efd", BOOL: "BHIQ"}  # struct's letters, by width
INDIRECT = {INDIRECT_INT: INT, INDIRECT_UINT: UINT, INDIRECT_FLOAT: FLOAT}
MOST_KEYS = 256


def numbers(data: bytes) -> dict[str, float | int | bool]:
    """Returns the numbers and bools of the map by key, without other values. Raises Error for bytes that are no map."""
    try:
        return _numbers(data)
    except (struct.error, IndexError, ValueError, UnicodeDecodeError) as error:
        raise Error(f"got options that are no map of a FlexBuffer: {error}") from None


def _numbers(data: bytes) -> dict[str, float | int | bool]:
    width, packed = data[-1], data[-2]
    if width not in (1, 2, 4, 8) or packed >> 2 != MAP:
        raise ValueError("its end names no map")
    at = _back(data, len(data) - 2 - width, width)
    w = 1 << (packed & 3)
    count = _unsigned(data, at - w, w)
    if count > MOST_KEYS:
        raise ValueError(f"got {count} keys, need at most {MOST_KEYS}")
    keys, key_width = _back(data, at - 3 * w, w), _unsigned(data, at - 2 * w, w)
    if key_width not in (1, 2, 4, 8):
        raise ValueError(f"got keys of {key_width} bytes")
    found: dict[str, float | int | bool] = {}
    for i in range(count):
        start = _back(data, keys + i * key_width, key_width)
        name = data[start : data.index(0, start)].decode()
        kind, inner = data[at + count * w + i] >> 2, data[at + count * w + i] & 3
        place, log = at + i * w, w.bit_length() - 1
        if kind in INDIRECT:
            kind, place, log = INDIRECT[kind], _back(data, place, w), inner
        if kind not in LETTERS:
            continue
        (value,) = struct.unpack_from("<" + LETTERS[kind][log], data, place)
        found[name] = bool(value) if kind == BOOL else value
    return found


def _unsigned(data: bytes, at: int, width: int) -> int:
    if at < 0:
        raise ValueError("an offset leads before the beginning")
    return int.from_bytes(data[at : at + width], "little")


def _back(data: bytes, at: int, width: int) -> int:
    place = at - _unsigned(data, at, width)
    if not 0 <= place < len(data):
        raise ValueError("an offset leads outside")
    return place
