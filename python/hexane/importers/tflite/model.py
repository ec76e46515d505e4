"""The contents of a TFLite file: subgraphs of tensors and operators, buffers, signatures. Reading a file checks
the indices of buffers and operator codes, and the tensor indices of operators, subgraphs and signatures."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array
from hexane.importers.coreml.program import unpacked
from hexane.importers.tflite.schema import OPERATORS, TABLES, TYPES
from hexane.importers.tflite.sparse import dense
from hexane.importers.tflite.tables import Reader, Table
from hexane.system.limits import MAX_GROWTH_BYTES

# Dtypes by TensorType. Integers of 2 and 4 bits are unpacked to bytes.
DTYPE_OF = {
    "FLOAT32": "fp32", "FLOAT16": "fp16", "INT32": "int32", "UINT8": "uint8", "INT64": "int64", "BOOL": "bool",
    "INT16": "int16", "INT8": "int8", "FLOAT64": "fp64", "UINT64": "uint64", "UINT32": "uint32", "UINT16": "uint16",
    "INT4": "int8", "INT2": "int8", "UINT4": "uint8", "BFLOAT16": "bf16",
}  # fmt: skip
PACKED = {"INT4": 4, "INT2": 2, "UINT4": 4}
CUSTOM = 32
MOST_RANK = 8


@dataclass(frozen=True, slots=True)
class Grid:
    """The quantisation of a tensor: real = scales * (q - zeros), with one pair for all elements, or one for each index
    of `axis`. blocks: for weights quantised in blocks, the tensor indices of scales and zero points, and the block
    size."""

    scales: Array
    zeros: Array
    axis: int = 0
    blocks: tuple[int, int, int] | None = None

    @property
    def scale(self) -> np.float32:
        """The scale. Raises Error for several scales."""
        if self.scales.size != 1:
            raise Error(f"got {self.scales.size} scales, need one")
        return np.float32(self.scales[0])

    @property
    def zero(self) -> int:
        if self.zeros.size != 1:
            raise Error(f"got {self.zeros.size} zero points, need one")
        return int(self.zeros[0])


@dataclass(frozen=True)
class Tensor:
    """A TFLite file's tensor. dims: extents, None if open. raw: a constant's bytes; None for other
    tensors."""

    index: int
    name: str
    type: str
    shape: tuple[int, ...]
    dims: tuple[int | None, ...]
    grid: Grid | None
    is_variable: bool
    raw: Array | None
    sparsity: Table | None
    has_rank: bool = True

    @property
    def dtype(self) -> DType:
        """The dtype. Raises UnsupportedError for strings, resources, variants, complex numbers and 8-bit floats."""
        if self.type not in DTYPE_OF:
            raise UnsupportedError(f"got a tensor of {self.type}, need numbers")
        return DTYPES[DTYPE_OF[self.type]]

    @cached_property
    def data(self) -> Array | None:
        """The elements of a constant, None for other tensors. Raises Error if the file has fewer bytes than the shape
        needs, or for a sparse tensor far fewer."""
        if self.raw is None:
            return None
        count, dtype = prod(self.shape), self.dtype.numpy
        if count * dtype.itemsize > max(MAX_GROWTH_BYTES, 64 * self.raw.size):
            raise Error(
                f"tensor {self.name!r}: got the shape {self.shape} for {self.raw.size} bytes, need a smaller one"
            )
        raw, stored = self.raw, count
        if self.sparsity is not None:
            stored = -1
        if self.type in PACKED:
            bits = PACKED[self.type]
            flat = unpacked(raw, bits, raw.size * 8 // bits if stored < 0 else count, signed=self.type != "UINT4")
        else:
            need = (raw.size // dtype.itemsize if stored < 0 else count) * dtype.itemsize
            if raw.size < need:
                raise Error(f"tensor {self.name!r}: got {raw.size} bytes, need {need}")
            flat = np.ascontiguousarray(raw[:need]).view(np.uint8 if dtype == np.bool_ else dtype)
            flat = flat != 0 if dtype == np.bool_ else flat
        if self.sparsity is not None:
            return dense(flat, self.sparsity, self.shape)
        return flat.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class Operator:
    """An operator of a TFLite file. name: of the op, or a custom op's own name. options: the fields of its options
    table, all defaults if the file has no table; {} for a custom op, whose options are the bytes `custom`."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any]
    custom: bytes = b""
    is_custom: bool = False
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Subgraph:
    name: str
    tensors: tuple[Tensor, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[Operator, ...]


@dataclass(frozen=True, slots=True)
class TFLiteSignature:
    """A signature: names of inputs and outputs, with their tensor indices in the subgraph."""

    key: str
    subgraph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class File:
    subgraphs: tuple[Subgraph, ...]
    signatures: tuple[TFLiteSignature, ...]
    description: str = ""
    metadata: Mapping[str, bytes] = field(default_factory=dict)


def read_file(data: bytes) -> File:
    """Reads a file. Raises Error for a damaged file, in most cases with the byte or the tensor."""
    reader = Reader(data)
    root = reader.root()
    if root["version"] != 3:
        raise Error(f"[tflite] got version {root['version']}, need 3")
    buffers = [_buffer(reader, table) for table in root["buffers"]]
    codes = [_code(table) for table in root["operator_codes"]]
    graphs = tuple(_subgraph(i, t, buffers, codes, reader) for i, t in enumerate(root["subgraphs"]))
    if not graphs:
        raise Error("[tflite] got no subgraph, need at least one")
    signatures = tuple(_signature(table, graphs) for table in root["signature_defs"])
    metadata = {t["name"]: bytes(buffers[t["buffer"]]) for t in root["metadata"] if t["buffer"] < len(buffers)}
    return File(graphs, signatures, root["description"], metadata)


def _buffer(reader: Reader, table: Table) -> Array:
    data: Array = table["data"]
    offset, size = table["offset"], table["size"]
    if offset <= 1 or data.size:
        return data
    reader.check(offset, size, "buffer")
    return np.frombuffer(reader.data, np.uint8, size, offset)


def _code(table: Table) -> tuple[str, bool]:
    code = max(table["deprecated_builtin_code"], table["builtin_code"])
    if code == CUSTOM:
        return table["custom_code"] or "custom", True
    return (OPERATORS[code][0] if 0 <= code < len(OPERATORS) else f"operator {code}"), False


def _subgraph(i: int, table: Table, buffers: list[Array], codes: list[tuple[str, bool]], reader: Reader) -> Subgraph:
    where = f"[tflite] subgraph {i}"
    tensors = tuple(_tensor(where, n, t, buffers) for n, t in enumerate(table["tensors"]))

    def checked(indices: Array, what: str, optional: bool = False) -> tuple[int, ...]:
        for index in indices:
            if not (-1 if optional else 0) <= index < len(tensors):
                raise Error(f"{where}: {what}: got the tensor {index}, need one of {len(tensors)}")
        return tuple(int(v) for v in indices)

    operators = []
    for n, op in enumerate(table["operators"]):
        if op["opcode_index"] >= len(codes):
            raise Error(f"{where}: operator {n}: got the code {op['opcode_index']}, need one of {len(codes)}")
        name, custom = codes[op["opcode_index"]]
        what = f"{name} {n}"
        options = op["custom_options"]
        if custom and op["large_custom_options_offset"] > 1:
            start, size = op["large_custom_options_offset"], op["large_custom_options_size"]
            reader.check(start, size, "custom options")
            options = np.frombuffer(reader.data, np.uint8, size, start)
        operators.append(
            Operator(
                name,
                checked(op["inputs"], what, optional=True),
                checked(op["outputs"], what, optional=True),
                {} if custom else _options(name, op),
                bytes(options) if custom else b"",
                custom,
                checked(op["intermediates"], what, optional=True),
            )
        )
    inputs, outputs = (checked(table[k], k) for k in ("inputs", "outputs"))
    return Subgraph(table["name"], tensors, inputs, outputs, tuple(operators))


def _options(name: str, op: Table) -> Mapping[str, Any]:
    table = dict(OPERATORS).get(name, "")
    for union in ("builtin_options", "builtin_options2"):
        given: Mapping[str, Any] | None = op[union]
        if given is not None and op[f"{union}_table"] == table:
            return given
    fields = TABLES.get(table, ())
    return {f.name: np.zeros(0, f.type[1:-1]) if f.type.startswith("[") else "" if f.type == "string" else f.default
            for f in fields}  # fmt: skip


def _tensor(where: str, n: int, table: Table, buffers: list[Array]) -> Tensor:
    name = table["name"]
    what = f"{where}: tensor {n} {name!r}"
    shape = tuple(int(d) for d in table["shape"])
    if len(shape) > MOST_RANK or any(d < 0 for d in shape):
        raise Error(f"{what}: got the shape {shape}, need at most {MOST_RANK} dims, none negative")
    if not 0 <= table["type"] < len(TYPES):
        raise Error(f"{what}: got the type {table['type']}, need less than {len(TYPES)}")
    if table["buffer"] >= len(buffers):
        raise Error(f"{what}: got the buffer {table['buffer']}, need one of {len(buffers)}")
    if table["external_buffer"]:
        raise UnsupportedError(f"{what}: got weights in another file, need them in this one")
    signed = tuple(int(d) for d in table["shape_signature"])
    dims = (
        tuple(None if s < 0 else d for s, d in zip(signed, shape, strict=True)) if len(signed) == len(shape) else shape
    )
    raw = buffers[table["buffer"]]
    kind = TYPES[table["type"]]
    empty = not raw.size and (0 not in shape or not table["buffer"])
    grid = _grid(what, table["quantization"], shape)
    return Tensor(
        n, name, kind, shape, dims, grid, table["is_variable"], None if empty else raw, table["sparsity"], bool(shape)
        or table["has_rank"],
    )  # fmt: skip


def _grid(what: str, table: Table | None, shape: tuple[int, ...]) -> Grid | None:
    if table is None:
        return None
    blocks = None
    if table["details_table"] == "BlockwiseQuantization" and table["details"] is not None:
        block = table["details"]
        return Grid(np.ones(1, np.float32), np.zeros(1, np.int64), 0,
                    (block["scales"], block["zero_points"], block["block_size"]))  # fmt: skip
    if table["details"] is not None or table["details_type"] not in (0, 2):
        raise UnsupportedError(f"{what}: got {table['details_table']}, need one scale, one for each channel or block")
    scales, zeros, axis = table["scale"], table["zero_point"], table["quantized_dimension"]
    if not scales.size:
        return None
    if scales.size != zeros.size and zeros.size != 1:
        raise Error(f"{what}: got {scales.size} scales and {zeros.size} zero points, need as many")
    if scales.size > 1 and not (0 <= axis < len(shape) and shape[axis] == scales.size):
        raise Error(f"{what}: got {scales.size} scales for axis {axis} of {shape}, need one for each index")
    if zeros.size != scales.size:
        zeros = np.full(scales.size, zeros[0])
    return Grid(scales, zeros, axis, blocks)


def _signature(table: Table, graphs: tuple[Subgraph, ...]) -> TFLiteSignature:
    key, number = table["signature_key"], table["subgraph_index"]
    if number >= len(graphs):
        raise Error(f"[tflite] signature {key!r}: got the subgraph {number}, need one of {len(graphs)}")
    maps = []
    for kind in ("inputs", "outputs"):
        entries = {t["name"]: t["tensor_index"] for t in table[kind]}
        for name, index in entries.items():
            if index >= len(graphs[number].tensors):
                raise Error(
                    f"[tflite] signature {key!r}: got the tensor {index} for {name!r}, need one of the subgraph"
                )
        maps.append(entries)
    return TFLiteSignature(key, number, *maps)
