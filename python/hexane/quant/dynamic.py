"""Writes a network that rounds activations at run time, with DynamicQuantizeLinear, MatMulInteger and
ConvInteger."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from hexane.errors import Error
from hexane.graph import Array
from hexane.quant.grid import Rounded
from hexane.quant.layers import QuantLayer
from hexane.quant.network import Network, attribute
from hexane.quant.write import Writer, assembled

DYNAMIC = ("Conv", "Gemm", "MatMul")
MOST_TERMS = (2**31 - 1) // (255 * 127)  # the number of terms whose sum fits int32


def takes_dynamic(network: Network, layer: QuantLayer) -> bool:
    """True if onnxruntime has an op for the layer's integer products and sums: it needs a constant weight, activations
    that are not transposed, and sums that fit int32. A convolution must have two spatial axes."""
    node = list(network.nodes)[layer.index]
    if layer.weight is None or layer.op not in DYNAMIC or attribute(node, "transA", 0):
        return False
    shape = network.constants[layer.weight].shape
    terms = prod(shape[1:]) if layer.op == "Conv" else max(shape[-2:])
    return terms <= MOST_TERMS and (layer.op != "Conv" or len(shape) == 4)


def write_dynamic(network: Network, layers: Sequence[QuantLayer], weights: Mapping[str, Rounded]) -> onnx.ModelProto:
    """conv(x, w) + b  ->  float(conv_integer(q, w8)) * (scale(x) * scale(w)) + b, where q, scale(x) = dynamic(x)

    Rewrites the layers that have these weights; all other nodes and all names of the model stay. An activation that
    several layers read is rounded once.
    """
    file = _Dynamic(network)
    by_index = {layer.index: layer for layer in layers}
    for index, node in enumerate(network.nodes):
        layer = by_index.get(index)
        if layer is None:
            new = onnx.NodeProto()
            new.CopyFrom(node)
            file.writer.nodes.append(new)
        else:
            file.product(node, layer, weights[layer.name])
    return assembled(network.proto, file.writer)


class _Dynamic:
    """The model under construction, and its rounded activations."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.writer = Writer(network.names)
        self.rounded: dict[str, tuple[str, str, str]] = {}
        self.stored: dict[tuple[str, bytes], str] = {}

    def activation(self, name: str) -> tuple[str, str, str]:
        """The names of an activation's integers from 0 to 255, their scale and their zero point."""
        if name not in self.rounded:
            results = [self.writer.unique(f"{name}_{part}") for part in ("quantized", "scale", "zero_point")]
            called = self.writer.unique(f"{name}/DynamicQuantizeLinear")
            self.writer.nodes.append(helper.make_node("DynamicQuantizeLinear", [name], results, called))
            self.rounded[name] = results[0], results[1], results[2]
        return self.rounded[name]

    def integers(self, name: str, integers: Array) -> str:
        """The name of a weight's integers. Layers with the same weight share its integers."""
        key = name, integers.tobytes()
        if key not in self.stored:
            self.stored[key] = self.writer.constant(f"{name}_quantized", integers)
        return self.stored[key]

    def product(self, node: onnx.NodeProto, layer: QuantLayer, weight: Rounded) -> None:
        write, result = self.writer, node.output[0]
        integers, scale, zero = self.activation(node.input[0])
        bias = None if layer.bias is None else self.network.constants[layer.bias]
        stored, op, attributes = weight.integers, "MatMulInteger", dict[str, Any]()
        factor = weight.grid.scale
        if layer.op == "Conv":
            op, attributes = "ConvInteger", {a.name: helper.get_attribute_value(a) for a in node.attribute}
            factor, bias = _per_channel(factor), None if bias is None else _per_channel(bias)
        elif layer.op == "Gemm":
            stored = np.ascontiguousarray(stored.T) if attribute(node, "transB", 0) else stored
            factor = (factor * np.float32(attribute(node, "alpha", 1.0))).astype(np.float32)
            beta = np.float32(attribute(node, "beta", 1.0))
            bias = bias * beta if bias is not None and beta != 0 else None
        assert layer.weight is not None
        # All channels share one zero point.
        constants = [
            self.integers(layer.weight, stored),
            write.constant(f"{layer.weight}_zero_point", weight.grid.zero.reshape(-1)[0]),
            write.constant(f"{layer.weight}_scale", factor),
        ]
        sums = write.node(op, [integers, constants[0], zero, constants[1]], f"{result}_sums", **attributes)
        floats = write.node("Cast", [sums], f"{result}_floats", to=TensorProto.FLOAT)
        step = write.node("Mul", [scale, constants[2]], f"{result}_step")
        called = write.unique(f"{layer.name}/{'Mul' if bias is None else 'Add'}")
        if bias is None:
            write.nodes.append(helper.make_node("Mul", [floats, step], [result], called))
            return
        scaled = write.node("Mul", [floats, step], f"{result}_scaled")
        added = write.constant(f"{layer.bias}_added", bias.astype(np.float32))
        write.nodes.append(helper.make_node("Add", [scaled, added], [result], called))


def _per_channel(numbers: Array) -> Array:
    """An array of one number per channel, reshaped to broadcast over images. A single number is returned unchanged."""
    return numbers if numbers.ndim == 0 else numbers.reshape(1, -1, 1, 1)


def dynamic_layers(network: Network, layers: Sequence[QuantLayer]) -> list[QuantLayer]:
    """The layers whose activations can be rounded when the network runs. Raises Error if there are no such layers."""
    kept = [layer for layer in layers if takes_dynamic(network, layer)]
    if not kept:
        raise Error(
            f"[quantize] model: got no layer whose activations can be rounded when it runs, need {', '.join(DYNAMIC)}"
            " with a constant weight"
        )
    return kept
