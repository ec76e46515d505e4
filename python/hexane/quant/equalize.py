"""Shifts factors between the channels of neighbouring layers, so that one scale suits all channels of the tensor
between them.

relu(conv(x, w)) -> conv(y, v)   is   relu(conv(x, w / s)) -> conv(y, v * s)

for any factors s above 0, one for each channel, since Relu and pools commute with them.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import numpy_helper

from hexane.graph import Array
from hexane.quant.calibrate import Compile, Feed, each
from hexane.quant.layers import QuantLayer
from hexane.quant.network import Network, attribute, is_standard, network_of, showing

# Each of these ops f has f(s * x) = s * f(x) in each channel for s > 0.
COMMUTE = ("Relu", "LeakyRelu", "MaxPool", "AveragePool", "GlobalAveragePool", "Identity", "Flatten")
MOST = 2.0**10  # largest s; the smallest s is its inverse


@dataclass(frozen=True, slots=True)
class Pair:
    """Two layers, and the tensor between them, which only the second reads. `repeats`: the number of neighbouring
    elements of each channel after a Flatten."""

    first: QuantLayer
    second: QuantLayer
    channels: int
    repeats: int


def equalized(network: Network, layers: Sequence[QuantLayer], feeds: Iterable[Feed], compile: Compile) -> Network:
    """The network with other weights and, except for rounding, the same outputs. For each channel, s is
    proportional to sqrt(a / w), with a the channel's largest magnitude in the tensor and w its largest weight in the
    second layer."""
    pairs = find_pairs(network, layers)
    if not pairs:
        return network
    names = {pair.second.activations[0] for pair in pairs}
    most: dict[str, Array] = {}
    for arrays in each(compile(showing(network.proto, sorted(names))), feeds):
        for pair in pairs:
            name = pair.second.activations[0]
            here = np.abs(by_channel(arrays[name], pair)).max(axis=1, initial=0)
            most[name] = np.maximum(most.get(name, here), here)
    changed: dict[str, Array] = {}
    nodes = list(network.nodes)
    for pair in pairs:
        assert pair.first.weight is not None
        assert pair.second.weight is not None
        weight = changed.get(pair.second.weight, network.constants[pair.second.weight]).astype(np.float64)
        shares = shared(most[pair.second.activations[0]], _inputs(weight, nodes[pair.second.index], pair))
        changed[pair.second.weight] = _times_inputs(weight, nodes[pair.second.index], shares, pair)
        first = changed.get(pair.first.weight, network.constants[pair.first.weight]).astype(np.float64)
        axis = pair.first.axis
        changed[pair.first.weight] = first / shares.reshape([-1 if i == axis else 1 for i in range(first.ndim)])
        if pair.first.bias is not None:
            changed[pair.first.bias] = network.constants[pair.first.bias] / shares
    return _with_constants(network, {name: array.astype(np.float32) for name, array in changed.items()})


def shared(activations: Array, weights: Array) -> Array:
    """s, with a geometric mean of 1 before it is limited by MOST. Channels that are all 0 in the tensor or in the
    weight stay unchanged."""
    known = (activations > 0) & (weights > 0)
    shares = np.ones(activations.shape)
    if known.any():
        logs = (np.log(activations[known].astype(np.float64)) - np.log(weights[known])) / 2
        shares[known] = np.exp(np.clip(logs - logs.mean(), -np.log(MOST), np.log(MOST)))
    return shares


def by_channel(activation: Array, pair: Pair) -> Array:
    """The activation as a matrix of (channels, everything else)."""
    if pair.repeats > 1:
        return np.moveaxis(activation.reshape(-1, pair.channels, pair.repeats), 1, 0).reshape(pair.channels, -1)
    axis = pair.second.channel_axis
    return np.moveaxis(activation, axis, 0).reshape(pair.channels, -1)


def find_pairs(network: Network, layers: Sequence[QuantLayer]) -> list[Pair]:
    """Pairs of layers where only the second reads the first one's result, through ops that commute with positive
    factors."""
    makers = {name: (i, node) for i, node in enumerate(network.nodes) for name in node.output}
    by_index = {layer.index: layer for layer in layers}
    pairs = []
    for second in layers:
        if second.weight is None or network.reads[second.weight] != 1:
            continue
        name, flat = second.activations[0], False
        while name in makers and network.reads[name] == 1 and name not in network.hidden:
            index, node = makers[name]
            if index in by_index:
                pair = _pair(network, by_index[index], second, flat)
                pairs += [] if pair is None else [pair]
                break
            if not (is_standard(node) and node.op_type in COMMUTE) or len(node.output) > 1:
                break
            if node.op_type == "LeakyRelu" and attribute(node, "alpha", 0.01) < 0:
                break
            if node.op_type == "Flatten":
                if attribute(node, "axis", 1) != 1:
                    break
                flat = True
            name = node.input[0]
    return pairs


def _pair(network: Network, first: QuantLayer, second: QuantLayer, flat: bool) -> Pair | None:
    names = (first.weight, first.bias)
    if first.weight is None or first.axis is None or any(n is not None and network.reads[n] != 1 for n in names):
        return None
    assert second.weight is not None
    if first.op == "ConvTranspose" and first.groups > 1:
        return None
    channels = network.constants[first.weight].shape[first.axis]
    if first.bias is not None and network.constants[first.bias].shape != (channels,):
        return None
    node = list(network.nodes)[second.index]
    inputs = _input_count(network.constants[second.weight], node)
    images = first.channel_axis == 1, second.channel_axis == 1
    if inputs is None or inputs % channels or (inputs != channels and not flat):
        return None
    # Only a Flatten may lead from a convolution, with channels on the second axis, to a Gemm or MatMul, with channels
    # on the last.
    if images[0] != images[1] and not flat:
        return None
    if flat and second.op not in ("Gemm", "MatMul"):
        return None
    return Pair(first, second, channels, inputs // channels)


def _input_count(weight: Array, node: onnx.NodeProto) -> int | None:
    if node.op_type == "Conv":
        return int(weight.shape[1]) * int(attribute(node, "group", 1))
    if node.op_type == "ConvTranspose":
        return int(weight.shape[0])
    if weight.ndim != 2 or attribute(node, "transA", 0):
        return None
    return int(weight.shape[1 if attribute(node, "transB", 0) else 0])


def _grouped(weight: Array, node: onnx.NodeProto) -> Array:
    """A view of the weight as (groups, anything, inputs of a group, anything)."""
    if node.op_type == "Conv":
        groups = attribute(node, "group", 1)
        return weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], -1)
    if node.op_type == "ConvTranspose" or not attribute(node, "transB", 0):
        return weight.reshape(1, 1, weight.shape[0], -1)
    return weight.reshape(1, weight.shape[0], weight.shape[1], 1)


def _inputs(weight: Array, node: onnx.NodeProto, pair: Pair) -> Array:
    return np.asarray(np.abs(_grouped(weight, node)).max(axis=(1, 3)).reshape(pair.channels, pair.repeats).max(axis=1))


def _times_inputs(weight: Array, node: onnx.NodeProto, shares: Array, pair: Pair) -> Array:
    grouped = _grouped(weight, node)
    factors = np.repeat(shares, pair.repeats).reshape(grouped.shape[0], 1, grouped.shape[2], 1)
    return np.asarray((grouped * factors).reshape(weight.shape))


def _with_constants(network: Network, changed: Mapping[str, Array]) -> Network:
    proto = onnx.ModelProto()
    proto.CopyFrom(network.proto)
    for i, tensor in enumerate(proto.graph.initializer):
        if tensor.name in changed:
            proto.graph.initializer[i].CopyFrom(numpy_helper.from_array(changed[tensor.name], tensor.name))
    for node in proto.graph.node:
        if node.op_type == "Constant" and node.output[0] in changed:
            for a in node.attribute:
                a.t.CopyFrom(numpy_helper.from_array(changed[node.output[0]]))
    return network_of(proto)
