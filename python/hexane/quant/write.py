"""Writes a quantised network, with weights in integers and pairs of QuantizeLinear and DequantizeLinear."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hexane.graph import Array
from hexane.quant.grid import Grid, Rounded
from hexane.quant.layers import QuantLayer, find_images, reads_rounded
from hexane.quant.network import Network, all_nodes, subgraphs

MATRICES = ("Gemm", "MatMul")


@dataclass(frozen=True, slots=True)
class Encoded:
    """Everything that is rounded: the grid of each activation, and the weights and biases by layer."""

    grids: Mapping[str, Grid]
    weights: Mapping[str, Rounded]
    biases: Mapping[str, Rounded]


@dataclass(slots=True)
class Writer:
    """Nodes in order and new initializers, with unique names."""

    names: set[str]
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)
    weights: dict[tuple[str, bytes], str] = field(default_factory=dict)

    def unique(self, name: str) -> str:
        free, count = name, 1
        while free in self.names:
            count += 1
            free = f"{name}_{count}"
        self.names.add(free)
        return free

    def constant(self, name: str, array: Array) -> str:
        name = self.unique(name)
        self.tensors.append(numpy_helper.from_array(array, name))
        return name

    def node(self, op: str, inputs: Sequence[str], result: str, **attributes: Any) -> str:
        result = self.unique(result)
        self.nodes.append(helper.make_node(op, list(inputs), [result], self.unique(f"{result}/{op}"), **attributes))
        return result

    def grid(self, name: str, grid: Grid) -> tuple[str, str]:
        return self.constant(f"{name}_scale", grid.scale), self.constant(f"{name}_zero_point", grid.zero)

    def rounding(self, name: str, grid: Grid) -> str:
        """The tensor rounded to the grid, as floats."""
        operands = self.grid(name, grid)
        integers = self.node("QuantizeLinear", [name, *operands], f"{name}_quantized")
        return self.node("DequantizeLinear", [integers, *operands], f"{name}_dequantized")

    def stored(self, name: str, rounded: Rounded) -> str:
        """A constant stored in integers. Layers with the same constant share it."""
        key = name, rounded.integers.tobytes() + rounded.grid.scale.tobytes()
        if key not in self.weights:
            operands = [self.constant(f"{name}_quantized", rounded.integers), *self.grid(name, rounded.grid)]
            axis: dict[str, Any] = {} if rounded.axis is None else {"axis": rounded.axis}
            self.weights[key] = self.node("DequantizeLinear", operands, f"{name}_dequantized", **axis)
        return self.weights[key]

    def separate_name(self, name: str, shape: Sequence[int]) -> str:
        """The name of the weight after a Reshape to its own shape. Without the Reshape onnxruntime would fuse a
        DequantizeLinear with the product of matrices into one op, which also rounds the other operand to 8 bits."""
        key = name, b""
        if key not in self.weights:
            wanted = self.constant(f"{name}_shape", np.array(shape, np.int64))
            self.weights[key] = self.node("Reshape", [name, wanted], f"{name}_whole")
        return self.weights[key]

    def layer(self, node: onnx.NodeProto, layer: QuantLayer, encoded: Encoded) -> onnx.NodeProto:
        """The node with its weight and bias in integers."""
        new = onnx.NodeProto()
        new.CopyFrom(node)
        if layer.weight is not None and layer.name in encoded.weights:
            rounded = encoded.weights[layer.name]
            new.input[1] = self.stored(layer.weight, rounded)
            if node.op_type in MATRICES and encoded.grids.keys().isdisjoint(layer.activations):
                new.input[1] = self.separate_name(new.input[1], rounded.integers.shape)
        if layer.name in encoded.biases:
            bias = self.stored(layer.bias or f"{layer.name}_bias", encoded.biases[layer.name])
            while len(new.input) < 3:
                new.input.append("")
            new.input[2] = bias
        return new


def write(network: Network, layers: Sequence[QuantLayer], encoded: Encoded) -> onnx.ModelProto:
    """The network with the tensors, weights and biases of `encoded` rounded; its own nodes and names stay. Outputs,
    subgraphs and nodes that compute in floats read the tensors before rounding."""
    writer = Writer(network.names)
    by_index = {layer.index: layer for layer in layers}
    images = find_images(network)
    rounded: dict[str, str] = {}

    def round_all(names: Iterable[str]) -> None:
        for name in names:
            if name in encoded.grids:
                rounded[name] = writer.rounding(name, encoded.grids[name])

    round_all(port.name for port in network.proto.graph.input)
    for index, node in enumerate(network.nodes):
        layer = by_index.get(index)
        new = onnx.NodeProto()
        new.CopyFrom(node)
        if layer is not None:
            new = writer.layer(node, layer, encoded)
        if layer is not None or reads_rounded(node, encoded.grids, images):
            for i, name in enumerate(new.input):
                new.input[i] = rounded.get(name, name)
        writer.nodes.append(new)
        round_all(node.output)
    return assembled(network.proto, writer)


def write_twins(
    network: Network, layers: Sequence[QuantLayer], encoded: Encoded
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """The network in floats with a quantised twin next to each layer, which reads the same tensors. The second result
    is the name of the twin's result, by layer."""
    writer = Writer(network.names)
    by_index = {layer.index: layer for layer in layers}
    rounded: dict[str, str] = {}
    twins: dict[str, str] = {}
    for index, node in enumerate(network.nodes):
        writer.nodes.append(node)
        layer = by_index.get(index)
        if layer is None:
            continue
        for name in layer.activations:
            if name not in rounded and name in encoded.grids:
                rounded[name] = writer.rounding(name, encoded.grids[name])
        twin = writer.layer(node, layer, encoded)
        for i, name in enumerate(twin.input):
            twin.input[i] = rounded.get(name, name)
        twin.name = writer.unique(f"{layer.name}_twin")
        twins[layer.name] = twin.output[0] = writer.unique(f"{node.output[0]}_twin")
        writer.nodes.append(twin)
    return assembled(network.proto, writer), twins


def assembled(proto: onnx.ModelProto, writer: Writer) -> onnx.ModelProto:
    """The model with the writer's nodes and tensors. Initializers and constants that nothing reads any more are left
    out."""
    result = onnx.ModelProto()
    result.CopyFrom(proto)
    graph = result.graph
    read = {name for node in all_nodes(writer.nodes) for name in node.input} | {port.name for port in graph.output}
    read |= {port.name for node in all_nodes(writer.nodes) for sub in subgraphs(node) for port in sub.output}
    defaults = {tensor.name for tensor in graph.initializer}
    tensors = [*(tensor for tensor in graph.initializer if tensor.name in read), *writer.tensors]
    inputs = [port for port in graph.input if port.name not in defaults or port.name in read]
    nodes = [node for node in writer.nodes if node.op_type != "Constant" or node.output[0] in read]
    del graph.node[:], graph.initializer[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend(tensors)
    graph.input.extend(inputs)
    return result
