"""MIL programs as Core ML stores them: functions, blocks and operations, read from protobuf or from MIL text."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hexane import _core
from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array

# The names of MILSpec.DataType's codes, without the code of strings.
DTYPE_OF = {
    1: "bool", 10: "fp16", 11: "fp32", 12: "fp64", 13: "bf16", 21: "int8", 22: "int16", 23: "int32", 24: "int64",
    25: "int4", 31: "uint8", 32: "uint16", 33: "uint32", 34: "uint64", 35: "uint4", 36: "uint2", 37: "uint1",
    38: "uint6", 39: "uint3", 40: "fp8e4m3", 41: "fp8e5m2",
}  # fmt: skip
STRING = 2
OPSETS = {"CoreML5": 15, "CoreML6": 16, "CoreML7": 17, "CoreML8": 18, "CoreML9": 26}
MOST_BLOCKS = 32  # levels of nested blocks.
Weights = Callable[[str], Any]  # Returns the bytes of a weight file.


class Declared(NamedTuple):
    """The declared type of a value. dims: the extents of a tensor, each None if unknown; None for an unknown rank,
    and for a list, a tuple, a dictionary or a string. For a state, dtype and dims describe the state's tensor."""

    dtype: DType | None
    dims: tuple[int | None, ...] | None = None
    is_state: bool = False

    def __str__(self) -> str:
        dims = "?" if self.dims is None else ", ".join("?" if d is None else str(d) for d in self.dims)
        return f"{self.dtype}[{dims}]"


class Constant(NamedTuple):
    """A constant operand: an array, a text, or a list of arrays and texts. stored: file and offset of its data; None
    for data in the program itself."""

    value: Any
    dtype: DType | None = None
    stored: tuple[str, int] | None = None


Operand = str | Constant  # the name of a value, or a constant


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation. op: the name in MIL. inputs: the operands of each argument, several if the argument is a tuple.
    label: the converter's name of the operation."""

    op: str
    inputs: Mapping[str, tuple[Operand, ...]]
    results: tuple[tuple[str, Declared], ...]
    label: str = ""
    blocks: tuple["Block", ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    inputs: tuple[tuple[str, Declared], ...]
    operations: tuple[Operation, ...]
    outputs: tuple[str, ...]


def every_operation(block: Block) -> Iterator[Operation]:
    """Yields the operations of a block, each followed by the operations in its inner blocks."""
    for operation in block.operations:
        yield operation
        for inner in operation.blocks:
            yield from every_operation(inner)


@dataclass(frozen=True, slots=True)
class Program:
    """A function. opset: the iOS version, 15 to 18 or 26 for ML programs, 11 to 14 for most other models."""

    name: str
    opset: int
    block: Block
    attributes: Mapping[str, Any] = field(default_factory=dict)


def read_function(name: str, function: Any, weights: Weights) -> Program:
    """Returns a function of a MILSpec.Program. Raises Error for an incomplete program."""
    blocks = function.block_specializations
    if not blocks:
        raise Error(f"[coreml] function {name!r}: got no block, need one")
    key = function.opset if function.opset in blocks else max(blocks, key=lambda k: OPSETS.get(k, 0))
    opset = OPSETS.get(function.opset) or OPSETS.get(key)
    if opset is None:
        raise Error(f"[coreml] function {name!r}: got the opset {function.opset!r}, need one of {', '.join(OPSETS)}")
    inputs = tuple((port.name, declared(port.type)) for port in function.inputs)
    body = _block(blocks[key], weights, 0)
    return Program(name, opset, Block(inputs, body.operations, body.outputs))


def _block(block: Any, weights: Weights, depth: int) -> Block:
    if depth > MOST_BLOCKS:
        raise Error(f"[coreml] got blocks in blocks, more than {MOST_BLOCKS} deep")
    inputs = tuple((port.name, declared(port.type)) for port in block.inputs)
    operations = tuple(_operation(operation, weights, depth) for operation in block.operations)
    return Block(inputs, operations, tuple(block.outputs))


def _operation(operation: Any, weights: Weights, depth: int) -> Operation:
    inputs: dict[str, tuple[Operand, ...]] = {}
    label = ""
    try:
        for name, value in operation.attributes.items():
            if name == "name":
                label = str(_constant(value, weights).value)
            else:
                inputs[name] = (_constant(value, weights),)
        for name, argument in operation.inputs.items():
            inputs[name] = tuple(
                _constant(b.value, weights) if b.HasField("value") else b.name for b in argument.arguments
            )
    except Error as error:
        raise Error(f"[coreml] {operation.type} {label!r}: {error}") from None
    results = tuple((port.name, declared(port.type)) for port in operation.outputs)
    blocks = tuple(_block(block, weights, depth + 1) for block in operation.blocks)
    return Operation(operation.type, inputs, results, label, blocks)


def declared(kind: Any) -> Declared:
    """Returns the declared type of a ValueType."""
    if kind.HasField("stateType"):
        return declared(kind.stateType.wrappedType)._replace(is_state=True)
    if not kind.HasField("tensorType"):
        return Declared(None)
    tensor = kind.tensorType
    if tensor.dataType == STRING:
        return Declared(None)
    if tensor.dataType not in DTYPE_OF:
        raise Error(f"[coreml] got the data type {tensor.dataType}, need one of {', '.join(map(str, DTYPE_OF))}")
    dims = tuple(None if d.HasField("unknown") else int(d.constant.size) for d in tensor.dimensions)
    variadic = any(d.unknown.variadic for d in tensor.dimensions if d.HasField("unknown"))
    return Declared(DTYPES[DTYPE_OF[tensor.dataType]], None if variadic else dims)


def _constant(value: Any, weights: Weights) -> Constant:
    kind = value.type
    if value.HasField("blobFileValue"):
        at = value.blobFileValue
        return _from_file(declared(kind), at.fileName, at.offset, weights)
    given = value.immediateValue
    for several in ("tuple", "list"):
        if given.HasField(several):
            return Constant([_constant(v, weights).value for v in getattr(given, several).values])
    if kind.tensorType.dataType == STRING:
        texts = list(given.tensor.strings.values)
        return Constant(texts if kind.tensorType.rank else (texts[0] if texts else ""))
    of = declared(kind)
    if of.dtype is None or of.dims is None or None in of.dims:
        raise Error("got a constant of an unknown type, need a tensor of a known shape")
    return Constant(_immediate(given.tensor, of), of.dtype)


def _shape(kind: Declared) -> tuple[int, ...]:
    shape = tuple(d for d in kind.dims or () if d is not None)
    if kind.dims is None or len(shape) != len(kind.dims):
        raise Error(f"got a constant {kind}, need known dims")
    return shape


def _from_file(kind: Declared, path: str, offset: int, weights: Weights) -> Constant:
    shape, dtype = _shape(kind), kind.dtype
    if dtype is None:
        raise Error("got a text in a file, need a tensor")
    name, data = _core.blob_read(weights(path), offset)
    if name != dtype.name:
        raise Error(f"got {name} at offset {offset} of {path}, need {dtype}")
    elements = data.view(dtype.numpy)
    if elements.size != prod(shape):
        raise Error(f"got {elements.size} elements at offset {offset} of {path}, need {prod(shape)}")
    return Constant(elements.reshape(shape), dtype, (path, offset))


def _immediate(tensor: Any, kind: Declared) -> Array:
    shape, dtype = _shape(kind), kind.dtype
    assert dtype is not None
    count = prod(shape)
    fields = ("floats", "ints", "bools", "longInts", "doubles")
    values = next((getattr(tensor, name).values for name in fields if tensor.HasField(name)), None)
    if values is not None:
        elements = np.array(values)
        if elements.size == 0 and count == 1:  # proto3 does not store a zero
            elements = np.zeros(1)
    elif tensor.HasField("bytes") or count == 0:
        data = np.frombuffer(tensor.bytes.values, np.uint8)
        elements = (
            unpacked(data, dtype.bits, count, signed=dtype.kind == "int").view(dtype.numpy)
            if (dtype.bits < 8)
            else _whole(data, dtype, count)
        )
    else:
        elements = np.zeros(count)
    if elements.size == 1 and count > 1:
        elements = np.broadcast_to(elements, count)
    if elements.size != count:
        raise Error(f"got {elements.size} elements, need {count} for {kind}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(elements.astype(dtype.numpy, copy=False)).reshape(shape)


def _whole(data: Array, dtype: DType, count: int) -> Array:
    if data.size == 0 and count == 1:
        return np.zeros(1, dtype.numpy)
    if data.size % dtype.numpy.itemsize:
        raise Error(f"got {data.size} bytes for {dtype}, need whole elements")
    return data.view(dtype.numpy)


def unpacked(data: Array, bits: int, count: int, signed: bool = False) -> Array:
    """Unpacks `count` integers of less than a byte to one byte each, from the lowest bits up. Raises Error if the data
    are too short."""
    if data.size * 8 < bits * count:
        raise Error(f"got {data.size} bytes, need {count} integers of {bits} bits")
    of_each = np.unpackbits(data, bitorder="little")[: bits * count].reshape(count, bits)
    numbers = np.zeros(count, np.uint8)
    for i in range(bits):
        numbers |= of_each[:, i] << i
    if signed:
        top = np.uint8(1 << (bits - 1))
        numbers = ((numbers ^ top) - top).astype(np.uint8)
    return numbers.view(np.int8) if signed else numbers
