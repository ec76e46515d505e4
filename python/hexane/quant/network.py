"""An ONNX model prepared for editing: its nodes, its constants, and how often each tensor is read."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnx
from onnx import TensorProto, external_data_helper, helper, numpy_helper, version_converter

from hexane.errors import Error
from hexane.graph import Array
from hexane.importers.onnx.load import ModelSource, read_model
from hexane.importers.onnx.split import Tensor
from hexane.importers.onnx.tensors import check_text, read_tensor
from hexane.quant.unfuse import unfused

LEAST_OPSET = 13  # the first opset whose QuantizeLinear takes an axis
LEAST_IR = 7
INT16_OPSET = 21  # the first opset whose QuantizeLinear has int16
INT16_IR = 10
_DOMAINS = ("", "ai.onnx")
_ORT_OWN = ("LayerNormalization", "SimplifiedLayerNormalization")  # written by onnxruntime in any opset


@dataclass(frozen=True, slots=True)
class Network:
    """A whole model, weights included. `constants` are its initializers and the tensors of Constant nodes;
    `reads` counts the readers
    of each name, including outputs and subgraphs."""

    proto: onnx.ModelProto
    constants: Mapping[str, Array]
    reads: Mapping[str, int]
    hidden: frozenset[str] = field(default_factory=frozenset)
    """The names that outputs and subgraphs read, which have to stay."""

    @property
    def nodes(self) -> Iterable[onnx.NodeProto]:
        return self.proto.graph.node  # type: ignore[no-any-return]

    @property
    def names(self) -> set[str]:
        """The names of all tensors and nodes."""
        graph = self.proto.graph
        result = {value.name for value in (*graph.input, *graph.output, *graph.initializer)}
        for node in all_nodes(graph.node):
            result |= {node.name, *node.input, *node.output}
        return result


def read_network(model: ModelSource, opset: int = LEAST_OPSET, command: str = "quantize") -> Network:
    """The network of a path, bytes or a ModelProto, with its external data read, in that opset or a later one. command:
    named in errors.

    Raises Error for another format, or a model that cannot be converted.
    """
    file = read_model(model)
    proto = onnx.ModelProto()
    proto.CopyFrom(file.proto)
    graph = proto.graph
    nodes = list(file.nodes)
    for node in all_nodes(nodes):
        _check_node(node, command)
    nodes, added = unfused(nodes, command)
    tensors = [_whole(tensor, file.folder, command) for tensor in file.initializers()]
    del graph.node[:], graph.initializer[:], graph.sparse_initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend([*tensors, *added])
    return network_of(_of_opset(proto, opset, command), command)


def network_of(proto: onnx.ModelProto, command: str = "quantize") -> Network:
    graph = proto.graph
    constants = {tensor.name: _array(tensor, command) for tensor in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.domain in _DOMAINS:
            value = attribute(node, "value", None)
            constants |= {} if value is None else {node.output[0]: _array(value, command)}
    own = Counter(name for node in graph.node for name in node.input)
    hidden = {output.name for output in graph.output}
    for node in graph.node:
        for inner in all_nodes(_subgraph_nodes(node)):
            hidden |= set(inner.input)
        hidden |= {output.name for sub in subgraphs(node) for output in sub.output}
    return Network(proto, constants, own + Counter(hidden), frozenset(hidden))


def showing(proto: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with these tensors as its outputs."""
    shown = onnx.ModelProto()
    shown.CopyFrom(proto)
    del shown.graph.output[:]
    shown.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    return shown


def attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(a) for a in node.attribute if a.name == name), default)


def is_standard(node: onnx.NodeProto) -> bool:
    return node.domain in _DOMAINS


def layer_name(node: onnx.NodeProto) -> str:
    return str(node.name or node.output[0])


def _check_node(node: onnx.NodeProto, command: str) -> None:
    for text in (node.name, node.op_type, node.domain, *node.input, *node.output):
        check_text(text)
    if not node.output:
        raise Error(f"[{command}] node {node.name!r} ({node.op_type}): got no output, need at least one")


def _whole(tensor: Tensor, folder: Path | None, command: str) -> TensorProto:
    """The tensor with its external data copied into it."""
    if tensor.raw is None and not external_data_helper.uses_external_data(tensor.proto):
        return tensor.proto
    return numpy_helper.from_array(_array(tensor.proto, command, folder, tensor.raw), tensor.proto.name)


def _array(tensor: TensorProto, command: str, folder: Path | None = None, raw: memoryview | None = None) -> Array:
    try:
        return read_tensor(tensor, folder, raw)
    except Error as error:
        raise Error(f"[{command}] constant {tensor.name!r}: {error}") from None


def _of_opset(proto: onnx.ModelProto, least: int, command: str) -> onnx.ModelProto:
    entries = [entry for entry in proto.opset_import if entry.domain in _DOMAINS]
    version = entries[0].version if entries else least
    if version < least:
        try:
            proto = version_converter.convert_version(proto, least)
        except Exception as error:  # the converter passes on any C++ exception
            raise Error(
                f"[{command}] model: got opset {version}, need {least} or later, to which it does not convert: {error}"
                + _foreign(proto)
            ) from None
    proto.ir_version = max(proto.ir_version, LEAST_IR if least < INT16_OPSET else INT16_IR)
    return proto


def _foreign(proto: onnx.ModelProto) -> str:
    """Advice for a model that cannot be converted because of ops of onnxruntime's optimisers."""
    ops = {n.op_type for n in all_nodes(proto.graph.node) if not is_standard(n) or n.op_type in _ORT_OWN}
    if not ops:
        return ""
    return f"; it has ops of onnxruntime's optimisers ({', '.join(sorted(ops))}): give the model before they ran"


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for a in node.attribute:
        if a.type == onnx.AttributeProto.GRAPH:
            yield a.g
        elif a.type == onnx.AttributeProto.GRAPHS:
            yield from a.graphs


def _subgraph_nodes(node: onnx.NodeProto) -> list[onnx.NodeProto]:
    return [inner for graph in subgraphs(node) for inner in graph.node]


def all_nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        yield from all_nodes(_subgraph_nodes(node))
