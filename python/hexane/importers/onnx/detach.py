"""Takes large weights out of a serialised model before protobuf parses it, which would copy each of them twice.

Only what is certain is taken out: wherever the bytes are not plainly those of a model with weights, the whole goes to protobuf,
which then says what is wrong.
"""

from collections.abc import Iterator
from typing import NamedTuple

MIN_MODEL = 1 << 20  # bytes; smaller models are parsed as fast
MIN_TENSOR = 1 << 16

# Field numbers of onnx.proto.
_MODEL_GRAPH, _MODEL_FUNCTIONS = 7, 25
_GRAPH_INITIALIZER = 5
_TENSOR_RAW_DATA = 9
_BYTES = 2  # the wire type of strings, bytes and messages


class _Field(NamedTuple):
    number: int
    wire: int
    begin: int  # of the key
    payload: int  # of the value, behind its length
    end: int


def detach(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    """The model without the raw_data of its large initializers, and that data by the initializer's index."""
    try:
        return _detach(data) if len(data) >= MIN_MODEL else (bytes(data), {})
    except ValueError:
        return bytes(data), {}


def _detach(data: memoryview) -> tuple[bytes, dict[int, memoryview]]:
    fields = list(_fields(data, 0, len(data)))
    graphs = [f for f in fields if f.number == _MODEL_GRAPH]
    if len(graphs) != 1 or graphs[0].wire != _BYTES or any(f.number == _MODEL_FUNCTIONS for f in fields):
        raise ValueError("not one graph, or functions, whose inlining copies the graph")
    graph = graphs[0]
    taken: dict[int, memoryview] = {}
    pieces: list[memoryview | bytes] = []
    kept = graph.payload
    index = 0
    for field in _fields(data, graph.payload, graph.end):
        if field.number != _GRAPH_INITIALIZER:
            continue
        raw = _raw_data(data, field) if field.wire == _BYTES and field.end - field.payload >= MIN_TENSOR else None
        if raw is not None:
            rest = bytes(data[field.payload : raw.begin]) + bytes(data[raw.end : field.end])
            pieces += [data[kept : field.begin], _key(_GRAPH_INITIALIZER), _varint(len(rest)), rest]
            kept = field.end
            taken[index] = data[raw.payload : raw.end]
        index += 1
    pieces.append(data[kept : graph.end])
    length = sum(map(len, pieces))
    head, tail = data[: graph.begin], data[graph.end :]
    return b"".join([head, _key(_MODEL_GRAPH), _varint(length), *pieces, tail]), taken


def _raw_data(data: memoryview, tensor: _Field) -> _Field | None:
    """The tensor's one raw_data."""
    found = [f for f in _fields(data, tensor.payload, tensor.end) if f.number == _TENSOR_RAW_DATA]
    return found[0] if len(found) == 1 and found[0].wire == _BYTES else None


def _fields(data: memoryview, at: int, end: int) -> Iterator[_Field]:
    """The fields of a message. Raises ValueError for bytes that are none."""
    while at < end:
        key, payload = _read_varint(data, at, end)
        number, wire = key >> 3, key & 7
        if wire == 0:
            stop = _read_varint(data, payload, end)[1]
        elif wire == _BYTES:
            size, payload = _read_varint(data, payload, end)
            stop = payload + size
        elif wire in (1, 5):
            stop = payload + (8 if wire == 1 else 4)
        else:
            raise ValueError("groups")
        if stop > end or number == 0:
            raise ValueError("past the end")
        yield _Field(number, wire, at, payload, stop)
        at = stop


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
    raise ValueError("an unfinished number")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])


def _key(number: int) -> bytes:
    return _varint(number << 3 | _BYTES)
