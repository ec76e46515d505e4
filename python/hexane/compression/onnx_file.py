"""Writes compressed weights into the ONNX model that they come from, by DequantizeLinear or by Gather from a palette.

The model keeps its names, and its nodes except for unused ones. Only the weight inputs of layers change. A Reshape
follows a DequantizeLinear that a matrix product reads. Without the Reshape onnxruntime would fuse the pair to an op
that also rounds the other operand to 8 bits.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod
from typing import NamedTuple

import ml_dtypes
import numpy as np
import onnx

from hexane.compression.encode import without_mask
from hexane.compression.request import ALIASES, blocks_of, palette_of, zeros_of
from hexane.compression.weights import Weight, is_transposed, operand_of, with_tied_weights
from hexane.graph import Array, Graph, Value, constant
from hexane.importers.onnx import import_onnx
from hexane.importers.onnx.order import label, reads
from hexane.ops.encodings import is_encoded
from hexane.ops.float_tables import with_float_tables
from hexane.quant.network import INT16_IR, INT16_OPSET, LEAST_OPSET, Network, is_standard, showing
from hexane.quant.write import Writer, assembled

NIBBLE_OPSET, NIBBLE_IR = INT16_OPSET, INT16_IR  # The first versions with 4-bit integers and block scales.
ELSEWHERE = (
    "whole in the file, because it is no operand of a Conv, ConvTranspose, MatMul, Gemm or Gather outside functions"
)
LARGE_TABLE = 10  # A table is large if this multiple of its bytes exceeds the bytes of its indices.
COMBINED = f"its tables of combined indices take many bytes in the file; a model of opset {NIBBLE_OPSET} needs none"
NO_MASK = "dense in the file, since ONNX has no mask"
# The index of the weight operand, by ONNX op. Other ops that become products transform their weight first.
_OPERANDS = {"Conv": 1, "ConvTranspose": 1, "MatMul": 1, "Gemm": 1, "Gather": 0}


@dataclass(frozen=True, slots=True)
class StoredWeight:
    """The bytes of a weight in the file, with scales or table, and a remark for the user, or ""."""

    bytes: int
    remark: str


class _Place(NamedTuple):
    """The index of a node in the model, and the index of its weight operand. is_transposed: the operand is the
    transposed weight."""

    node: int
    operand: int
    is_transposed: bool


@dataclass(slots=True)
class _File:
    network: Network
    writer: Writer
    nibbles: bool  # True if the opset has 4-bit integers.
    reads: dict[tuple[int, int], str] = field(default_factory=dict)  # (node, operand) -> the operand's new input.


def least_opset(modes: Iterable[str]) -> int:
    """Returns the opset that weights in these modes need."""
    return NIBBLE_OPSET if any(blocks_of(ALIASES.get(mode, mode)) is not None for mode in modes) else LEAST_OPSET


def write_compressed(
    network: Network,
    graph: Graph,
    weights: Sequence[tuple[Weight, Value]],
    encodings: Sequence[str],
    shapes: Mapping[str, Sequence[int]] | None = None,
    input_values: Mapping[str, Array] | None = None,
) -> tuple[onnx.ModelProto, list[StoredWeight]]:
    """Returns the model with these weights as they are stored, and the bytes of each in the file.

    graph: the network imported with these shapes and values of inputs; the given weights are from this graph. A weight
    stays whole, with a remark, unless it is an operand of a Conv, ConvTranspose, MatMul, Gemm or Gather outside
    functions and subgraphs.
    """
    opsets = {entry.domain: entry.version for entry in network.proto.opset_import}
    opset = opsets.get("", opsets.get("ai.onnx", LEAST_OPSET))
    file = _File(network, Writer(network.names), opset >= NIBBLE_OPSET)
    graph = with_tied_weights(graph)
    readers = _readers(network, graph, {weight.value for weight, _ in weights}, shapes, input_values)
    nodes = list(network.nodes)
    stored = []
    decoders: dict[int, list[onnx.NodeProto]] = {}
    for (weight, value), encoding in zip(weights, encodings, strict=True):
        places = readers.get(weight.value, [])
        whole = weight.whole.type.bytes
        if value is weight.whole:
            masked = zeros_of(encoding) is not None and not without_mask(weight, encoding)
            stored.append(StoredWeight(whole, NO_MASK if masked else ""))
        elif not places:
            stored.append(StoredWeight(whole, ELSEWHERE))
        else:
            first, operand, _ = min(places)
            name = nodes[first].input[operand]
            before = len(file.writer.tensors)
            result, remark = _write(file, name, weight, value, encoding)
            transposed = ""
            if any(place.is_transposed for place in places):
                transposed = file.writer.node("Transpose", [result], f"{name}_turned_back", perm=[1, 0])
                transposed = _reshaped(file, transposed, name, weight.whole.shape[::-1])
            decoders.setdefault(first, []).extend(file.writer.nodes)
            file.writer.nodes = []
            file.reads |= {(at, i): transposed if is_transposed else result for at, i, is_transposed in places}
            added = sum(len(tensor.raw_data) for tensor in file.writer.tensors[before:])
            stored.append(StoredWeight(added, remark))
    return _assembled(file, decoders), stored


def _assembled(file: _File, decoders: dict[int, list[onnx.NodeProto]]) -> onnx.ModelProto:
    """Returns the model with the new inputs of nodes, without unused nodes."""
    for index, node in enumerate(file.network.nodes):
        file.writer.nodes += decoders.get(index, [])
        new = onnx.NodeProto()
        new.CopyFrom(node)
        for operand in range(len(new.input)):
            new.input[operand] = file.reads.get((index, operand), new.input[operand])
        file.writer.nodes.append(new)
    needed = _needed(file.writer.nodes, [output.name for output in file.network.proto.graph.output])
    file.writer.nodes = [node for node in file.writer.nodes if needed.intersection(node.output)]
    model = assembled(file.network.proto, file.writer)
    if file.nibbles:
        model.ir_version = max(model.ir_version, NIBBLE_IR)
    return model


def _needed(nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> set[str]:
    made_by = {name: node for node in nodes for name in node.output if name}
    needed: set[str] = set()
    pending = list(outputs)
    while pending:
        name = pending.pop()
        if name not in needed:
            needed.add(name)
            pending += reads(made_by[name]) if name in made_by else []
    return needed


def _readers(
    network: Network,
    graph: Graph,
    wanted: Collection[Value],
    shapes: Mapping[str, Sequence[int]] | None,
    input_values: Mapping[str, Array] | None,
) -> dict[Value, list[_Place]]:
    """Returns where the model reads these values as weights. Weights of other ops are omitted, because they are no
    tensors of the model."""
    nodes = list(network.nodes)
    by_label: dict[str, list[int]] = {}
    for index, node in enumerate(nodes):
        by_label.setdefault(label(node, index), []).append(index)
    read: dict[Value, list[tuple[int, int]]] = {value: [] for value in wanted}
    unknown: set[Value] = set()
    for reader in graph.nodes:
        place = operand_of(reader)
        value = None if place is None else reader.inputs[place]
        if value is None or value not in read:
            continue
        for source in reader.sources:
            indices = by_label.get(source, [])
            operand = _operand(nodes[indices[0]]) if len(indices) == 1 else None
            if operand is None:
                unknown.add(value)
            else:
                read[value].append((indices[0], operand))
    names = {nodes[i].input[operand] for places in read.values() for i, operand in places}
    values = _values(network, names, shapes, input_values)
    by_value: dict[Value, list[_Place]] = {}
    for value, places in read.items():
        tensors = [values[nodes[i].input[operand]] for i, operand in places]
        ways = [
            False if _is(tensor, value) else True if is_transposed(_constant(tensor), value) else None
            for tensor in tensors
        ]
        # The first reader names the weight's tensors, so it must read the weight untransposed.
        if value not in unknown and None not in ways and (not ways or not ways[places.index(min(places))]):
            by_value[value] = [_Place(*place, bool(way)) for place, way in zip(places, ways, strict=True)]
    return by_value


def _operand(node: onnx.NodeProto) -> int | None:
    return _OPERANDS.get(node.op_type) if is_standard(node) else None


def _values(
    network: Network,
    names: AbstractSet[str],
    shapes: Mapping[str, Sequence[int]] | None,
    input_values: Mapping[str, Array] | None,
) -> dict[str, Array | Value]:
    """Returns these tensors of the model: arrays of constants, and the importer's values of computed tensors."""
    computed = sorted(names - network.constants.keys())
    by_name: dict[str, Array | Value] = {name: network.constants[name] for name in names - set(computed)}
    if computed:
        graph = import_onnx(showing(network.proto, computed), shapes=shapes, values=input_values)
        by_name |= {port.name: port.value for port in graph.outputs}
    return by_name


def _constant(tensor: Array | Value) -> Value:
    return tensor if isinstance(tensor, Value) else constant(tensor)


def _is(tensor: Array | Value, value: Value) -> bool:
    if isinstance(tensor, Value):
        return tensor == value
    data = value.node.data
    return data is not None and tensor.dtype == data.dtype and np.array_equal(tensor, data)


def _write(file: _File, name: str, weight: Weight, value: Value, encoding: str) -> tuple[str, str]:
    """Writes a weight. Returns the name of the decoded weight, and a remark."""
    if not is_encoded(value.node):  # a pruned weight
        data = value.node.data
        assert data is not None
        return file.writer.constant(f"{name}_pruned", data), NO_MASK
    value = with_float_tables(value)
    first, second = (v.node.data for v in value.node.inputs[:2] if v is not None)
    assert first is not None
    assert second is not None
    kind = value.node.op
    if kind == "dequantize":
        scales = second.astype(weight.whole.dtype.numpy)
        return _dequantized(file, name, weight, first, scales, {"axis": weight.axis}), ""
    if kind == "decode_blocks":
        return _blocks(file, name, weight, first, second), ""
    if kind == "gather":
        return _looked_up(file, name, first[None], second[None], second.shape, encoding)
    if kind == "decode_vectors":
        return _vectors(file, name, weight, first, second, encoding)
    assert kind == "decode_palette", kind
    groups = second.shape[weight.axis]
    outer, channels = prod(first.shape[: weight.axis]), first.shape[weight.axis]
    inner = first.size // (outer * channels)
    tables = second.reshape(-1, second.shape[-1])
    indices = first.reshape(outer, groups, channels // groups * inner)
    return _looked_up(file, name, tables, indices, first.shape, encoding)


def _dequantized(
    file: _File, name: str, weight: Weight, integers: Array, scales: Array, attributes: dict[str, int]
) -> str:
    """Writes a DequantizeLinear, with 4-bit integers if they fit and the opset has them."""
    held = integers
    if file.nibbles and int(integers.min()) >= -8 and int(integers.max()) <= 7:
        held = integers.astype(ml_dtypes.int4)
    operands = [file.writer.constant(f"{name}_quantized", held), file.writer.constant(f"{name}_scale", scales)]
    shape = weight.whole.shape
    result = file.writer.node("DequantizeLinear", operands, f"{name}_dequantized", **attributes)
    if held.shape == shape and weight.node.op not in ("matmul", "linear"):
        return result
    return _reshaped(file, result, name, shape)


def _reshaped(file: _File, of: str, name: str, shape: Sequence[int]) -> str:
    wanted = file.writer.constant(f"{name}_shape", np.array(shape, np.int64))
    return file.writer.node("Reshape", [of, wanted], f"{name}_whole")


def _blocks(file: _File, name: str, weight: Weight, integers: Array, scales: Array) -> str:
    """Writes blocks. ONNX divides only one axis into blocks, so the taps of a filter are merged with its input
    channels, or in a transposed convolution with its output channels."""
    axis = weight.input_axis
    block = integers.shape[axis] // scales.shape[axis]
    if weight.node.op == "conv":
        filters = integers.shape[0]
        block *= prod(integers.shape[2:])
        integers, scales, axis = integers.reshape(filters, -1), scales.reshape(filters, -1), 1
    elif weight.node.op == "conv_transpose":
        inputs, taps = integers.shape[0], prod(integers.shape[2:])
        scales = np.repeat(scales.reshape(len(scales), -1), taps, axis=1)
        integers = integers.reshape(inputs, -1)
    return _dequantized(file, name, weight, integers, scales, {"axis": axis, "block_size": block})


def _width(bits: int, stored: float) -> str:
    """Returns a remark if the file stores indices of this width in wider integers."""
    if stored == bits:
        return ""
    more = f"; opset {NIBBLE_OPSET} stores 4" if stored == 8 and bits <= 4 else ""
    return f"the ONNX file stores each {bits}-bit index in {stored:g} bits{more}"


def _vectors(file: _File, name: str, weight: Weight, indices: Array, tables: Array, encoding: str) -> tuple[str, str]:
    """Writes a gather of table rows, whose numbers are moved to the axis of output channels."""
    palette = palette_of(encoding)
    assert palette is not None
    write, bits = file.writer, 4 if file.nibbles and palette[0] <= 4 else 8
    held = indices.astype(ml_dtypes.uint4) if bits == 4 else indices
    index = write.node("Cast", [write.constant(f"{name}_indices", held)], f"{name}_picked", to=onnx.TensorProto.INT32)
    table = write.constant(f"{name}_palette", tables.reshape(tables.shape[-2:]))
    result = write.node("Gather", [table, index], f"{name}_vectors")
    rank = indices.ndim
    if weight.axis != rank - 1:
        perm = [*range(weight.axis + 1), rank, *range(weight.axis + 1, rank)]
        result = write.node("Transpose", [result], f"{name}_turned", perm=perm)
    remark = _width(palette[0], bits)
    return _reshaped(file, result, name, weight.whole.shape), remark


@dataclass(frozen=True, slots=True)
class _Packing:
    """`per` indices of a palette packed in an integer of `bits` bits, which is the index of a row in a combined
    table."""

    bits: int
    per: int

    def bytes(self, groups: int, entries: int, count: int, width: int) -> int:
        rows: int = entries**self.per
        return (count // self.per * self.bits + 7) // 8 + groups * rows * self.per * width


def _looked_up(
    file: _File, name: str, tables: Array, indices: Array, shape: Sequence[int], encoding: str
) -> tuple[str, str]:
    """Writes tables[groups, entries] at indices[.., groups, count]. An integer may pack several indices; it then
    selects a row of a combined table with the entries of all these indices."""
    palette = palette_of(encoding)
    assert palette is not None
    bits = max(palette[0], (tables.shape[1] - 1).bit_length())  # a palette may have one more entry, for 0
    groups, entries = len(tables), 1 << bits
    tables = np.pad(tables, ((0, 0), (0, entries - tables.shape[1])))
    packing = _packing(file, bits, groups, indices, tables.itemsize)
    packed = np.zeros((*indices.shape[:-1], indices.shape[-1] // packing.per), np.uint8)
    rows = np.arange(entries**packing.per)
    columns = []
    for place in range(packing.per):
        packed |= (indices[..., place :: packing.per] << (bits * place)).astype(np.uint8)
        columns.append(tables[:, rows >> (bits * place) & (entries - 1)])
    table = np.stack(columns, -1).reshape(-1, packing.per) if packing.per > 1 else tables.reshape(-1)
    if groups == 1:
        packed = packed.reshape(shape if packing.per == 1 else -1)
    held = packed.astype(ml_dtypes.uint4) if packing.bits == 4 else packed
    write = file.writer
    index = write.node("Cast", [write.constant(f"{name}_indices", held)], f"{name}_picked", to=onnx.TensorProto.INT32)
    if groups > 1:
        starts = (np.arange(groups) * len(rows)).astype(np.int32)[:, None]
        index = write.node("Add", [index, write.constant(f"{name}_tables", starts)], f"{name}_rows")
    result = write.node("Gather", [write.constant(f"{name}_palette", table), index], f"{name}_decoded")
    if groups > 1 or packing.per > 1:
        result = _reshaped(file, result, name, shape)
    cost = packing.bits / packing.per
    remark = _width(bits, cost)
    if not file.nibbles and packing.per > 1 and table.nbytes * LARGE_TABLE > packed.nbytes:
        remark = "; ".join(filter(None, (remark, COMBINED)))
    return result, remark


def _packing(file: _File, bits: int, groups: int, indices: Array, width: int) -> _Packing:
    """Returns the packing with the fewest bytes; among equals, the packing with the fewest indices in an integer."""
    fits = [
        _Packing(held, per)
        for held in ((4, 8) if file.nibbles else (8,))
        for per in range(1, held // bits + 1)
        if indices.shape[-1] % per == 0
    ]
    return min(fits, key=lambda one: one.bytes(groups, 1 << bits, indices.size, width))
