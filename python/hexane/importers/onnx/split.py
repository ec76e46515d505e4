"""Splits a serialised model into nodes and initializers before protobuf parses it. protobuf would hold all of them at
once, in twelve times the file's size, and would copy each weight twice.

A split needs certainty: if the bytes are not clearly a model, protobuf parses them all and reports the error.
"""

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar, overload

import onnx
from google.protobuf.message import DecodeError

from hexane.errors import Error
from hexane.importers.onnx.file_bytes import MIN_PAYLOAD, FileBytes, Payload

MIN_MODEL = 1 << 20  # bytes; protobuf alone parses smaller models as fast as a split does
MIN_TENSOR = 1 << 16

# Field numbers of onnx.proto.
_MODEL_GRAPH = 7
_GRAPH_NODE, _GRAPH_INITIALIZER = 1, 5
_TENSOR_RAW_DATA = 9
_BYTES = 2  # the wire type of strings, bytes and messages.
_HEAD = 20  # Most bytes of a field before its value.

T = TypeVar("T")


class Tensor(NamedTuple):
    """An initializer. raw: its data, if the proto lacks them."""

    proto: onnx.TensorProto
    raw: memoryview | None = None


@dataclass(frozen=True, slots=True)
class ModelParts:
    """A serialised model: the nodes and initializers of its graph, and all other fields."""

    rest: bytes
    nodes: Sequence[onnx.NodeProto]
    initializers: Sequence[Tensor]


class _Messages(Sequence[T]):
    """A sequence of messages, each parsed at every access."""

    def __init__(
        self,
        data: memoryview,
        begins: Sequence[int],
        ends: Sequence[int],
        parse: Callable[[memoryview, int, int], T],
    ) -> None:
        self._data, self._begins, self._ends, self._parse = data, begins, ends, parse

    def __len__(self) -> int:
        return len(self._begins)

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[T]: ...
    def __getitem__(self, index: Any) -> Any:
        begins, ends = self._begins[index], self._ends[index]
        if isinstance(index, slice):
            return _Messages(self._data, begins, ends, self._parse)
        return self._parse(self._data, begins, ends)

    def __iter__(self) -> Iterator[T]:
        data, parse = self._data, self._parse
        return (parse(data, begin, end) for begin, end in zip(self._begins, self._ends, strict=True))


def split(data: memoryview, file: FileBytes | None = None) -> ModelParts | None:
    """Returns the parts of a large model, or None for a small model and for bytes that are not clearly a model. file:
    reads the bytes of data as they are needed."""
    try:
        return _split(data, file) if len(data) >= MIN_MODEL else None
    except ValueError:
        return None


def _split(data: memoryview, file: FileBytes | None) -> ModelParts:
    graph_begin, payload, graph_end = _graph(data, file)
    places = {_GRAPH_NODE: (array("q"), array("q")), _GRAPH_INITIALIZER: (array("q"), array("q"))}
    pieces: list[memoryview | bytes] = []
    kept = payload
    if file:
        file.need(payload + _HEAD)
    for number, wire, begin, inner, end in _fields(data, payload, graph_end):
        if file:
            if number == _GRAPH_INITIALIZER and end - inner >= MIN_PAYLOAD:
                _take_payload(file, inner, end)
            file.need(end + _HEAD)
        if number in places:
            if wire != _BYTES:
                raise ValueError("a message of another type")
            begins, ends = places[number]
            begins.append(inner)
            ends.append(end)
            if kept < begin:
                pieces.append(data[kept:begin])
            kept = end
    pieces.append(data[kept:graph_end])
    length = sum(map(len, pieces))
    key = _varint(_MODEL_GRAPH << 3 | _BYTES)
    rest = b"".join([data[:graph_begin], key, _varint(length), *pieces, data[graph_end:]])
    return ModelParts(
        rest,
        _Messages(data, *places[_GRAPH_NODE], _parse_node),
        _Messages(data, *places[_GRAPH_INITIALIZER], partial(_parse_tensor, file.payloads if file else {})),
    )


def _graph(data: memoryview, file: FileBytes | None) -> tuple[int, int, int]:
    """Returns the start of the graph's field, the start of its value, and the end of both."""
    fields: list[tuple[int, int, int]] = []
    if file:
        file.need(_HEAD)
    for number, wire, begin, payload, end in _fields(data, 0, len(data)):
        if number == _MODEL_GRAPH:
            if fields or wire != _BYTES:
                raise ValueError("not one graph")
            fields.append((begin, payload, end))
            if file:
                file.need_rest(end)
        elif file and not fields:
            file.need(end + _HEAD)
    if not fields:
        raise ValueError("no graph")
    return fields[0]


def _take_payload(file: FileBytes, message: int, end: int) -> None:
    """Reads the data of a large tensor into an array."""
    fields = 0
    file.need(message + _HEAD)
    for number, wire, begin, payload, stop in _fields(file.data, message, end):
        if number == _TENSOR_RAW_DATA:
            fields += 1
            if fields > 1:
                raise ValueError("data in two fields")
            if wire == _BYTES and stop - payload >= MIN_PAYLOAD:
                file.take(message, begin, payload, stop)
        file.need(stop + _HEAD)


def _parse_node(data: memoryview, begin: int, end: int) -> onnx.NodeProto:
    node: onnx.NodeProto = _parse(onnx.NodeProto(), data[begin:end])
    return node


def _parse_tensor(payloads: Mapping[int, Payload], data: memoryview, begin: int, end: int) -> Tensor:
    if (taken := payloads.get(begin)) is not None:
        proto = _parse(onnx.TensorProto(), bytes(data[begin : taken.begin]) + bytes(data[taken.end : end]))
        return Tensor(proto, taken.data)
    data = data[begin:end]
    if len(data) >= MIN_TENSOR:
        try:
            fields = [field for field in _fields(data, 0, len(data)) if field[0] == _TENSOR_RAW_DATA]
        except ValueError:
            fields = []
        if len(fields) == 1 and fields[0][1] == _BYTES:
            _, _, begin, payload, end = fields[0]
            return Tensor(_parse(onnx.TensorProto(), bytes(data[:begin]) + bytes(data[end:])), data[payload:end])
    return Tensor(_parse(onnx.TensorProto(), data))


def _parse(message: Any, data: memoryview | bytes) -> Any:
    try:
        message.ParseFromString(data)
    except DecodeError:
        kind = type(message).__name__
        raise Error(f"[import] got {len(data)} bytes that do not parse, need a {kind} of an ONNX model") from None
    return message


def _fields(data: memoryview, at: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """Yields the fields of a message: number, wire type, start, start of the value, end.

    Raises ValueError for invalid bytes.
    """
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
        yield number, wire, at, payload, stop
        at = stop


def _read_varint(data: memoryview, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 64:
        byte = data[at]
        if byte < 0x80:
            return value | byte << shift, at + 1
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
    raise ValueError("an unfinished number")


def _varint(value: int) -> bytes:
    result = bytearray()
    while value >= 0x80:
        result.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*result, value])
