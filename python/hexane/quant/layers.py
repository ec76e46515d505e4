"""Finds the layers of a network that are computed in integers, and the tensors that are rounded for them."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Array
from hexane.quant.network import Network, attribute, is_standard, layer_name

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
MEANS = ("AveragePool", "GlobalAveragePool")
# The results of these ops are elements of the first operand, so both have one scale.
MOVES = (
    "MaxPool",
    "Reshape",
    "Flatten",
    "Transpose",
    "Squeeze",
    "Unsqueeze",
    "Identity",
    "DepthToSpace",
    "SpaceToDepth",
)
EPILOGUES = ("Relu", "Clip")


@dataclass(frozen=True, slots=True)
class QuantLayer:
    """A product: its node's index, name and op, the activations that it multiplies, and its constant weight and bias,
    if any. `axis`: the weight's axis of output channels; None for a weight with one scale. `groups`: channel groups of
    a ConvTranspose, which share their scales."""

    index: int
    name: str
    op: str
    activations: tuple[str, ...]
    weight: str | None
    axis: int | None
    bias: str | None
    groups: int = 1

    @property
    def takes_bias(self) -> bool:
        return self.op != "MatMul"

    @property
    def channel_axis(self) -> int:
        """The axis of channels in the result."""
        return 1 if self.op in ("Conv", "ConvTranspose") else -1


@dataclass(frozen=True, slots=True)
class Plan:
    """The layers to quantise, and the tensors to round, in groups that share one scale."""

    layers: tuple[QuantLayer, ...]
    groups: tuple[tuple[str, ...], ...]


def find_layers(network: Network) -> tuple[QuantLayer, ...]:
    """The products of activations with fp32 constants, and of activations with each other.

    Raises Error if there is none, or if a weight or bias is not finite.
    """
    candidates = [_layer(i, node, network.constants) for i, node in enumerate(network.nodes)]
    counts = Counter(layer.name for layer in candidates if layer is not None)
    outputs = [node.output[0] if node.output else "" for node in network.nodes]
    layers = tuple(
        layer if counts[layer.name] == 1 else replace(layer, name=f"{layer.name} ({outputs[layer.index]})")
        for layer in candidates
        if layer is not None
    )
    if not layers:
        raise Error(f"[quantize] model: got no layer to quantise, need {', '.join(PRODUCTS)} with weights in fp32")
    for layer in layers:
        for kind, name in (("weight", layer.weight), ("bias", layer.bias)):
            if name is not None and not np.isfinite(network.constants[name]).all():
                bad = network.constants[name][~np.isfinite(network.constants[name])][0]
                raise Error(f"[quantize] layer {layer.name!r}: got {bad} in the {kind} {name!r}, need finite numbers")
    return layers


def without(layers: Sequence[QuantLayer], patterns: Iterable[str]) -> tuple[QuantLayer, ...]:
    """The layers that match no pattern. Raises Error for a pattern that matches no layer, and if no layer is left."""
    kept = list(layers)
    for pattern in patterns:
        if not any(fnmatchcase(layer.name, pattern) for layer in layers):
            known = ", ".join(layer.name for layer in layers[:8]) + (", .." if len(layers) > 8 else "")
            raise Error(f"[quantize] float_layers: got {pattern!r}, which fits no layer, need one of {known}")
        kept = [layer for layer in kept if not fnmatchcase(layer.name, pattern)]
    if not kept:
        raise Error("[quantize] float_layers: got patterns that fit every layer, need one that is quantised")
    return tuple(kept)


def make_plan(network: Network, layers: Sequence[QuantLayer], floats: Collection[str] = ()) -> Plan:
    """The layers, and the tensors rounded for them: the layers' operands, and, if sums, means or moves compute an
    operand, the operands of these ops. Sums are rounded only if they are images: the next convolution can then be
    computed in integers throughout. Sums of a transformer have outliers, and its matrix products compute float results
    as fast as integer results. The result of an Add may pass through one Relu or Clip before it is rounded. `floats`:
    names of tensors that are not fp32."""
    wanted = {name for layer in layers for name in layer.activations}
    through: set[str] = set()  # rounded after the activation that is the only reader
    same = _Groups()
    images = find_images(network)
    for node in reversed(list(network.nodes)):
        if not is_standard(node) or not node.output:
            continue
        result = node.output[0]
        operands = [name for name in node.input if name]
        computed = all(name not in network.constants and name not in floats for name in operands)
        if node.op_type in EPILOGUES and result in wanted and network.reads[operands[0]] == 1:
            through.add(operands[0])
        elif node.op_type in MOVES and result in wanted and operands[0] not in network.constants:
            wanted.add(operands[0])
            same.join(operands[0], result)
        elif node.op_type == "Concat" and result in wanted and computed:
            for name in operands:
                wanted.add(name)
                same.join(name, result)
        elif (
            ((node.op_type == "Add" and computed and images & set(operands)) or node.op_type in MEANS)
            and (result in wanted or result in through)
            and operands[0] not in network.constants
        ):
            wanted |= set(operands)
    return Plan(tuple(layers), same.sets(wanted))


def reads_rounded(node: onnx.NodeProto, rounded: Collection[str], images: Set[str]) -> bool:
    """True if a node that is not a layer reads the rounded tensors, not the floats: means, moves with a rounded result,
    and readers of an image, so that the image's convolution need not compute floats as well. All other nodes, such as
    the sums of a transformer, compute with floats, to stay free of the rounding errors of other nodes.

    rounded: names of all tensors that are rounded; images: from find_images."""
    if not images.isdisjoint(node.input):
        return True
    moves = node.op_type in (*MOVES, "Concat") and node.output[0] in rounded
    return is_standard(node) and (moves or node.op_type in MEANS)


def find_images(network: Network) -> set[str]:
    """Results of convolutions, and of later ops that keep the form of an image."""
    images: set[str] = set()
    for node in network.nodes:
        keeps = node.op_type in (*EPILOGUES, *MOVES, *MEANS, "Add", "Concat", "BatchNormalization")
        if is_standard(node) and (
            node.op_type in ("Conv", "ConvTranspose") or (keeps and not images.isdisjoint(node.input))
        ):
            images |= set(node.output)
    return images


class _Groups:
    """Disjoint sets of names, for a union-find."""

    def __init__(self) -> None:
        self._root: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (above := self._root.get(name, name)) != name:
            name = above
        return name

    def join(self, a: str, b: str) -> None:
        self._root[self.find(a)] = self.find(b)

    def sets(self, names: Iterable[str]) -> tuple[tuple[str, ...], ...]:
        groups: dict[str, list[str]] = {}
        for name in sorted(names):
            groups.setdefault(self.find(name), []).append(name)
        return tuple(tuple(group) for group in groups.values())


def _layer(index: int, node: onnx.NodeProto, known: Mapping[str, Array]) -> QuantLayer | None:
    if not is_standard(node) or node.op_type not in PRODUCTS or len(node.input) < 2:
        return None
    x, w = node.input[0], node.input[1]
    if x in known:
        return None
    bias = node.input[2] if len(node.input) > 2 and node.input[2] else None
    if bias is not None and (bias not in known or known[bias].dtype != np.float32):
        return None
    if w not in known:
        matrices = node.op_type == "MatMul"
        return QuantLayer(index, layer_name(node), node.op_type, (x, w), None, None, None) if matrices else None
    weight = known[w]
    if weight.dtype != np.float32 or weight.ndim < 2 or not weight.size:
        return None
    groups = attribute(node, "group", 1) if node.op_type == "ConvTranspose" else 1
    return QuantLayer(index, layer_name(node), node.op_type, (x,), w, _channels(node, weight), bias, groups)


def _channels(node: onnx.NodeProto, weight: Array) -> int | None:
    if node.op_type == "Gemm":
        return 0 if attribute(node, "transB", 0) else 1
    if node.op_type == "MatMul":
        return 1 if weight.ndim == 2 else None
    return 0 if node.op_type == "Conv" else 1
