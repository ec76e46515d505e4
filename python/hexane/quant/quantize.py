"""Quantises an ONNX network: it calibrates ranges, rounds to integers, corrects biases, decides which layers stay in
floats, and writes the model."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx

from hexane.errors import Error
from hexane.graph import Array
from hexane.quant.calibrate import Compile, Feed, Run, histograms, not_fp32
from hexane.quant.dynamic import dynamic_layers, write_dynamic
from hexane.quant.equalize import equalized
from hexane.quant.grid import Grid, Rounded, activation_grid, least_weight_scale, round_bias, round_weight
from hexane.quant.layers import Plan, QuantLayer, find_layers, make_plan, without
from hexane.quant.measure import OutputError
from hexane.quant.network import Network
from hexane.quant.ranges import RANGES
from hexane.quant.request import Quantization, QuantizedLayer
from hexane.quant.twins import changes
from hexane.quant.write import Encoded, write


@dataclass(frozen=True, slots=True)
class Made:
    """The quantised model, a report for each layer, and the largest relative error of an output."""

    model: onnx.ModelProto
    layers: tuple[QuantizedLayer, ...]
    error: float


@dataclass(slots=True)
class _Trial:
    """A network with rounded weights for all layers, from which models with only some layers rounded are written.
    `alone`: for each layer, the error of the outputs if only this layer is rounded; filled when first needed."""

    network: Network
    layers: tuple[QuantLayer, ...]
    floats: frozenset[str]
    encoded: Encoded
    errors: OutputError
    compile: Compile
    alone: dict[str, float] = field(default_factory=dict)

    def model(self, names: Collection[str]) -> onnx.ModelProto:
        """The model with these layers in integers, and only the tensors of their plan rounded."""
        kept = [layer for layer in self.layers if layer.name in names]
        wanted = {name for group in make_plan(self.network, kept, self.floats).groups for name in group}
        grids = {name: grid for name, grid in self.encoded.grids.items() if name in wanted}
        return write(self.network, kept, Encoded(grids, self.encoded.weights, self.encoded.biases))

    def error(self, names: Collection[str]) -> float:
        return self.errors.of(self.compile(self.model(names)))

    def measure_alone(self) -> None:
        for layer in self.layers:
            if layer.name not in self.alone:
                self.alone[layer.name] = self.error({layer.name})


def quantize_network(network: Network, feeds: Iterable[Feed], asked: Quantization, compile: Compile) -> Made:
    """Quantises statically. feeds: read several times. compile: returns a callable that runs a model.

    Raises Error for networks without layers to quantise, numbers that are not finite, no feeds, and a tolerance that no
    layer meets.
    """
    every = find_layers(network)
    whole: Run = compile(network.proto)
    layers, plan, floats = _planned(network, without(every, asked.float_layers), feeds, compile)
    if asked.equalize:
        network = equalized(network, every, feeds, compile)
    grids = _activation_grids(network, plan, feeds, asked, compile)
    encoded = _encoded(network, layers, grids, asked, {})
    missing = changes(network, layers, encoded, feeds, compile)
    corrections = {layer.name: missing[layer.name].mean for layer in layers if layer.takes_bias}
    encoded = _encoded(network, layers, grids, asked, corrections)
    after = changes(network, layers, encoded, feeds, compile)
    trial = _Trial(network, layers, floats, encoded, OutputError(whole, feeds), compile)
    if asked.sensitivity:
        trial.measure_alone()
    names, error = _chosen(trial, asked.tolerance)
    reports = tuple(
        _report(layer, encoded, after[layer.name].error, asked, trial.alone.get(layer.name))
        if layer.name in names
        else QuantizedLayer(layer.name, layer.op, "float", 0, None, None, None, trial.alone.get(layer.name))
        for layer in every
    )
    return Made(trial.model(names), reports, error)


def quantize_weights(network: Network, asked: Quantization) -> tuple[onnx.ModelProto, tuple[QuantizedLayer, ...]]:
    """The model with its weights in integers, and a report for each layer. The model converts weights to floats before
    the product; with dynamic ranges, it rounds activations at run time and multiplies integers."""
    every = find_layers(network)
    kept = [layer for layer in without(every, asked.float_layers) if layer.weight is not None]
    if asked.dynamic:
        kept = dynamic_layers(network, kept)
    encoded = _encoded(network, kept, {}, asked, {})
    reports = []
    for layer in every:
        stored = encoded.weights.get(layer.name)
        dtype, scales = ("float", 0) if stored is None else (asked.weight_dtype, stored.grid.scale.size)
        reports.append(QuantizedLayer(layer.name, layer.op, dtype, scales, None, None, None))
    result = write_dynamic(network, kept, encoded.weights) if asked.dynamic else write(network, kept, encoded)
    return result, tuple(reports)


def _planned(
    network: Network, layers: Sequence[QuantLayer], feeds: Iterable[Feed], compile: Compile
) -> tuple[tuple[QuantLayer, ...], Plan, frozenset[str]]:
    """The layers whose activations are fp32, the plan for them, and the names of tensors that are not fp32."""
    plan = make_plan(network, layers)
    names = [name for group in plan.groups for name in group]
    floats = not_fp32(network, names, feeds, compile)
    kept = tuple(layer for layer in layers if not floats & set(layer.activations))
    if not kept:
        raise Error("[quantize] model: got no layer that multiplies activations in fp32, need one")
    return kept, make_plan(network, kept, floats), floats


def _chosen(trial: _Trial, tolerance: float | None) -> tuple[set[str], float]:
    """The names of the layers to store in integers, as many as the tolerance allows, and the measured error. Layers
    that change the outputs least when rounded alone come first. The search by halves assumes that fewer layers
    never give a larger error."""
    names = {layer.name for layer in trial.layers}
    error = trial.error(names)
    if tolerance is None or error <= tolerance:
        return names, error
    trial.measure_alone()
    ordered = sorted(names, key=lambda name: (trial.alone[name], name))
    kept, least, most = None, 0, len(ordered)  # ordered[:least] meets the tolerance, ordered[:most] does not
    while most - least > 1:
        middle = (least + most) // 2
        distance = trial.error(set(ordered[:middle]))
        if distance <= tolerance:
            least, kept = middle, distance
        else:
            most = middle
    if kept is None:
        raise Error(
            f"[quantize] tolerance: got an error of {trial.alone[ordered[0]]:.2g} with the layer {ordered[0]!r} alone"
            f" in integers, need at most {tolerance:g}; give a larger tolerance, or int16"
        )
    return set(ordered[:least]), kept


def _activation_grids(
    network: Network, plan: Plan, feeds: Iterable[Feed], asked: Quantization, compile: Compile
) -> dict[str, Grid]:
    method = "minmax" if asked.dtype == "int16" else asked.method
    by_group = histograms(network, plan.groups, feeds, compile, counted=method != "minmax")
    info = np.iinfo(asked.dtype)
    grids: dict[str, Grid] = {}
    for histogram, group in zip(by_group, plan.groups, strict=True):
        low, high = RANGES[method](histogram, int(info.max) - int(info.min), asked.percentile)
        grids |= dict.fromkeys(group, activation_grid(low, high, asked.dtype))
    return grids


def _encoded(
    network: Network,
    layers: Sequence[QuantLayer],
    grids: dict[str, Grid],
    asked: Quantization,
    corrections: dict[str, Array],
) -> Encoded:
    """The rounded weights and biases. corrections: added to the biases of layers. Biases of layers whose activations
    have no grid stay in floats."""
    weights: dict[str, Rounded] = {}
    biases: dict[str, Rounded] = {}
    for layer in layers:
        if layer.weight is None:
            continue
        grid = grids.get(layer.activations[0])
        bias = None if grid is None else _bias(network, layer, corrections.get(layer.name))
        axis = layer.axis if asked.per_channel else None
        least: Array | float = 0.0
        if grid is not None and bias is not None:
            least = least_weight_scale(bias, float(grid.scale))
            least = np.max(least) if axis is None or layer.groups > 1 else least
        weight = network.constants[layer.weight]
        squares = asked.method == "mse"
        rounded = round_weight(weight, axis, asked.weight_dtype, least_squares=squares, least_scale=least)
        weights[layer.name] = rounded
        if grid is not None and bias is not None:
            of_weight = rounded.grid.scale if axis is None else np.tile(rounded.grid.scale, layer.groups)
            biases[layer.name] = round_bias(bias, grid.scale, of_weight)
    return Encoded(grids, weights, biases)


def _bias(network: Network, layer: QuantLayer, correction: Array | None) -> Array | None:
    """The bias of a layer in floats, with the correction; None without both, or for a bias that is no vector or does
    not fit the correction."""
    own = None if layer.bias is None else network.constants[layer.bias]
    if own is not None and own.ndim != 1:
        return None
    if correction is None or not np.any(correction):
        return own
    if own is not None and own.shape != correction.shape:
        return None if own.size != 1 else own + correction
    return correction if own is None else own + correction


def _report(
    layer: QuantLayer, encoded: Encoded, error: float, asked: Quantization, output_error: float | None
) -> QuantizedLayer:
    grid = encoded.grids[layer.activations[0]]
    info = np.iinfo(grid.zero.dtype)
    low, high = ((end - int(grid.zero)) * float(grid.scale) for end in (info.min, info.max))
    scales = encoded.weights[layer.name].grid.scale.size if layer.name in encoded.weights else 0
    return QuantizedLayer(layer.name, layer.op, asked.dtype, scales, low, high, error, output_error)
