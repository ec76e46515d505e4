"""Translates a neural network to a graph, one layer after the other."""

from collections.abc import Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.description import Feature
from hexane.importers.coreml.networks import layers as _layers
from hexane.importers.coreml.networks.control import CONTROL
from hexane.importers.coreml.networks.registry import LAYERS, LayerContext
from hexane.importers.coreml.networks.weights import encoding
from hexane.importers.coreml.package import network_of
from hexane.importers.coreml.program import MOST_BLOCKS, Block, Constant, Declared, Operation, Program
from hexane.importers.coreml.translate import Item, Translator
from hexane.ops.compose import Builder
from hexane.ops.fold import Folder

assert _layers is not None  # The import registers the layers.
FIRST_KIND = 100  # The lowest number of a field with a layer's parameters.
SYSTEM_OF = {1: 11, 2: 11, 3: 12, 4: 13, 5: 14}  # The iOS version, by specification.
LABEL, PROBABILITIES = "classLabel", "classLabelProbs"  # Names if the description has none.
NETWORKS_IN = {"branch": ("ifBranch", "elseBranch"), "loop": ("bodyNetwork", "conditionNetwork")}
COLORS = {"rgb": ("redBias", "greenBias", "blueBias"), "bgr": ("blueBias", "greenBias", "redBias")}


def kind_of(layer: Any) -> str:
    """Returns the kind of a layer, or "" for an unknown one."""
    return next((str(f.name) for f, _ in layer.ListFields() if f.number >= FIRST_KIND), "")


def read_network(spec: Any) -> Program:
    """Returns a network as a program of operations. The parameter of an operation is the layer's message. The
    specification version decides the opset."""
    network = network_of(spec)
    inputs = tuple((port.name, Declared(FP32)) for port in spec.description.input)
    outputs = tuple(port.name for port in spec.description.output)
    block = Block(inputs, _operations(network, 0), outputs)
    return Program("main", SYSTEM_OF.get(spec.specificationVersion, 14), block)


def _operations(network: Any, depth: int) -> tuple[Operation, ...]:
    """Translates layers. The networks of branches and loops become blocks."""
    if depth > MOST_BLOCKS:
        raise Error(f"[coreml] got networks in networks, more than {MOST_BLOCKS} deep")
    operations = []
    for i, layer in enumerate(network.layers):
        kind = kind_of(layer)
        params = getattr(layer, kind) if kind else None
        given = {"layer": (Constant(params),), "x": tuple(layer.input)}
        results = tuple((name, Declared(None)) for name in layer.output)
        blocks = tuple(
            Block((), _operations(getattr(params, name), depth + 1), ()) for name in NETWORKS_IN.get(kind, ())
        )
        operations.append(Operation(kind or "layer", given, results, layer.name or f"layer {i}", blocks))
    return tuple(operations)


def network_features(features: Mapping[str, Feature], network: Any) -> dict[str, Feature]:
    """Returns the features. In a network of five axes, arrays may have leading sequence and batch axes."""
    leads = not network.arrayInputShapeMapping
    return {name: replace(f, leads=leads and not f.color) for name, f in features.items()}


def network_labels(network: Any) -> tuple[str, ...]:
    if network.stringClassLabels.values:
        return tuple(network.stringClassLabels.values)
    return tuple(map(str, network.int64ClassLabels.values))


def network_encodings(network: Any) -> list[tuple[str, int, int]]:
    """Returns how weights are stored: the name of each encoding, the number of weights and their bytes."""
    totals: dict[str, tuple[int, int]] = {}
    for layer in network.layers:
        for weights in _weights_of(layer):
            name, size = encoding(weights)
            if name:
                count, before = totals.get(name, (0, 0))
                totals[name] = count + 1, before + size
    return [(name, count, size) for name, (count, size) in sorted(totals.items())]


def _weights_of(message: Any) -> list[Any]:
    messages: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        for one in [value] if hasattr(value, "ListFields") else value:
            messages += [one] if field.message_type.name == "WeightParams" else _weights_of(one)
    return messages


class NetworkTranslator(Translator):
    """Translates a neural network. The results of an unsupported layer are `missing`, and errors do not list the layers
    that read them."""

    def __init__(self, program: Program, features: Mapping[str, Feature], spec: Any) -> None:
        super().__init__(program, features)
        self.spec, self.network = spec, network_of(spec)
        self.is_exact = bool(self.network.arrayInputShapeMapping)
        self.missing: set[str] = set()

    def block(self, block: Block) -> None:
        for name, _ in block.inputs:
            if isinstance(given := self.values.get(name), Value):
                self.values[name] = self._input(name, given)
        super().block(block)

    def _input(self, name: str, x: Value) -> Value:
        """Returns an input with the axes that layers expect. Images are preprocessed."""
        b: Builder = Folder(name)
        feature = self.features[name]
        if feature.color:
            x = self._preprocessed(b, name, feature, x)
            return b.reshape(x, shape=(1, *x.shape)) if self.is_exact and not self.network.imageInputShapeMapping else x
        if self.is_exact:
            return x
        axes = len(feature.dims)
        if axes not in (1, 3):
            raise Error(f"[coreml] input {name!r}: got {axes} axes, need 1 or 3 in a network of five axes")
        lead = x.shape[:2] if len(x.shape) > axes else (1, 1)
        image = x.shape[-axes:] if axes == 3 else (*x.shape[-1:], 1, 1)
        return LayerContext(b, False).least(b.reshape(x, shape=(*lead, *image)))

    def _preprocessed(self, b: Builder, name: str, feature: Feature, x: Value) -> Value:
        for p in self.network.preprocessing:
            if p.featureName not in (name, ""):
                continue
            if p.HasField("meanImage"):
                mean = np.array(p.meanImage.values, np.float32)
                if mean.size != prod(x.shape):
                    raise Error(f"[coreml] image {name!r}: got a mean of {mean.size} numbers, need {prod(x.shape)}")
                x = b.sub(x, mean.reshape(x.shape))
            elif p.HasField("scaler"):
                if not p.scaler.channelScale:
                    raise Error(f"[coreml] image {name!r}: got the channelScale 0, need another number")
                names = COLORS.get(feature.color, ("grayBias",))
                bias = np.array([getattr(p.scaler, n) for n in names], np.float32).reshape(-1, 1, 1)
                x = b.mul(x, p.scaler.channelScale)
                x = b.add(x, bias) if bias.any() else x
        return x

    def operation(self, operation: Operation) -> None:
        if any(name in self.missing for name in operation.inputs["x"] if isinstance(name, str)):
            self.missing |= {name for name, _ in operation.results}
            return
        super().operation(operation)

    def _stand_in(self, operation: Operation) -> None:
        self.missing |= {name for name, _ in operation.results}

    def _operation(self, operation: Operation) -> None:
        (params,) = operation.inputs["layer"]
        assert isinstance(params, Constant)
        given = [self.item(name) for name in operation.inputs["x"] if isinstance(name, str)]
        if operation.op in CONTROL:
            CONTROL[operation.op](self, operation, params.value, *given)
            return
        read = LAYERS.get(operation.op)
        if read is None:
            raise Error("got a layer that has no counterpart here, need another one")
        result = read(LayerContext(Folder(operation.label), self.is_exact), params.value, *given)
        values = [result] if isinstance(result, Value) else list(result)
        if len(values) < len(operation.results):
            raise Error(f"got {len(operation.results)} results, need {len(values)}")
        for (name, _), value in zip(operation.results, values, strict=False):  # state outputs are optional
            self.values[name] = value

    # ---- outputs ----

    def output(self, name: str) -> Item | None:
        described = self.spec.description
        labels = network_labels(self.network)
        if labels and name in (described.predictedFeatureName or LABEL, described.predictedProbabilitiesName):
            return self._classified(name, is_label=name != described.predictedProbabilitiesName)
        item = self.values.get(name)
        return self._shaped(name, item) if isinstance(item, Value) else item

    def _classified(self, name: str, is_label: bool) -> Value:
        """Returns an output of a classifier: the best class, or the probabilities. A class that is a text is returned
        as its index."""
        layers = self.network.layers
        source = self.network.labelProbabilityLayerName or (layers[-1].output[0] if layers else "")
        value, b, count = self.values.get(source), Folder(name), len(network_labels(self.network))
        if not isinstance(value, Value) or value.type.size != count:
            got = value.type if isinstance(value, Value) else "nothing"
            raise Error(f"[coreml] output {name!r}: got {got} in {source!r}, need a number for each of {count} classes")
        flat = b.reshape(value, shape=(count,))
        if not is_label:
            return flat
        best = b.reduce_argmax(flat, axis=0, keep_dims=True, dtype="int32")
        numbers = self.network.int64ClassLabels.values
        return b.gather(b.const(np.array(numbers, np.int64)), best, axis=0) if numbers else best

    def _shaped(self, name: str, x: Value) -> Value:
        """Reshapes an output of five axes to the described shape. Without a shape that fits, drops sequence and batch
        axes of extent 1, and then also a height and a width of 1."""
        if self.is_exact:
            return x
        port = next(port for port in self.spec.description.output if port.name == name)
        said = tuple(int(d) for d in port.type.multiArrayType.shape)
        five = (1,) * (5 - len(x.shape)) + tuple(x.shape)
        if said and prod(said) == x.type.size:
            shape = said
        elif five[:2] != (1, 1):
            shape = five
        else:
            shape = five[2:] if five[3:] != (1, 1) else five[2:3]
        return x if shape == tuple(x.shape) else Folder(name).reshape(x, shape=shape)
