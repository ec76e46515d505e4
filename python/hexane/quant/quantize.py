"""Quantises an ONNX network: ranges from calibration, integers, corrected biases, and the file's nodes."""

from collections.abc import Iterable, Sequence

import numpy as np
import onnx

from hexane.graph import Array
from hexane.quant.calibrate import Compile, Feed, histograms, not_fp32
from hexane.quant.equalize import equalized
from hexane.quant.grid import Grid, Rounded, activation_grid, least_weight_scale, round_bias, round_weight
from hexane.quant.layers import Layer, Plan, find_layers, make_plan, without
from hexane.quant.network import Network
from hexane.quant.ranges import RANGES
from hexane.quant.request import Quantization, QuantizedLayer
from hexane.quant.twins import changes
from hexane.quant.write import Encoded, write


def quantize_network(
    network: Network, feeds: Iterable[Feed], asked: Quantization, compile: Compile
) -> tuple[onnx.ModelProto, tuple[QuantizedLayer, ...]]:
    """The quantised model, and what became of each layer. feeds: may be gone through several times. compile: makes a
    model run.

    Raises Error for networks without such layers, numbers that are not finite, and no feeds.
    """
    every = find_layers(network)
    layers, plan = _planned(network, without(every, asked.float_layers), feeds, compile)
    if asked.equalize:
        network = equalized(network, every, feeds, compile)
    grids = _activation_grids(network, plan, feeds, asked, compile)
    encoded = _encoded(network, layers, grids, asked, {})
    missing = changes(network, layers, encoded, feeds, compile)
    corrections = {layer.name: missing[layer.name].mean for layer in layers if layer.takes_bias}
    encoded = _encoded(network, layers, grids, asked, corrections)
    after = changes(network, layers, encoded, feeds, compile)
    names = {layer.name for layer in layers}
    reports = tuple(
        _report(layer, encoded, after[layer.name].error, asked)
        if layer.name in names
        else QuantizedLayer(layer.name, layer.op, "float", 0, None, None, None)
        for layer in every
    )
    return write(network, layers, encoded), reports


def _planned(
    network: Network, layers: Sequence[Layer], feeds: Iterable[Feed], compile: Compile
) -> tuple[tuple[Layer, ...], Plan]:
    plan = make_plan(network, layers)
    names = [name for group in plan.groups for name in group]
    floats = not_fp32(network, names, feeds, compile)
    kept = tuple(layer for layer in layers if not floats & set(layer.activations))
    return kept, make_plan(network, kept, floats)


def _activation_grids(
    network: Network, plan: Plan, feeds: Iterable[Feed], asked: Quantization, compile: Compile
) -> dict[str, Grid]:
    counted = asked.method != "minmax"
    found = histograms(network, plan.groups, feeds, compile, counted=counted)
    info = np.iinfo(asked.dtype)
    grids: dict[str, Grid] = {}
    for histogram, group in zip(found, plan.groups, strict=True):
        low, high = RANGES[asked.method](histogram, int(info.max) - int(info.min), asked.percentile)
        grids |= dict.fromkeys(group, activation_grid(low, high, asked.dtype))
    return grids


def _encoded(
    network: Network,
    layers: Sequence[Layer],
    grids: dict[str, Grid],
    asked: Quantization,
    corrections: dict[str, Array],
) -> Encoded:
    """corrections: added to the biases of layers."""
    weights: dict[str, Rounded] = {}
    biases: dict[str, Rounded] = {}
    for layer in layers:
        if layer.weight is None:
            continue
        bias = _bias(network, layer, corrections.get(layer.name))
        scale = grids[layer.activations[0]].scale
        axis = layer.axis if asked.per_channel else None
        least = least_weight_scale(bias, float(scale))
        if axis is None or layer.groups > 1:
            least = np.max(least)
        weights[layer.name] = rounded = round_weight(
            network.constants[layer.weight], axis, asked.dtype, least_squares=asked.method == "mse", least_scale=least
        )
        if bias is not None:
            of_weight = rounded.grid.scale if axis is None else np.tile(rounded.grid.scale, layer.groups)
            biases[layer.name] = round_bias(bias, scale, of_weight)
    return Encoded(grids, weights, biases)


def _bias(network: Network, layer: Layer, correction: Array | None) -> Array | None:
    """In floats; None where there is none, or one that is not a number for each channel."""
    own = None if layer.bias is None else network.constants[layer.bias]
    if own is not None and own.ndim != 1:
        return None
    if correction is None or not np.any(correction):
        return own
    if own is not None and own.shape != correction.shape:
        return None if own.size != 1 else own + correction
    return correction if own is None else own + correction


def _report(layer: Layer, encoded: Encoded, error: float, asked: Quantization) -> QuantizedLayer:
    grid = encoded.grids[layer.activations[0]]
    info = np.iinfo(grid.zero.dtype)
    low, high = ((end - int(grid.zero)) * float(grid.scale) for end in (info.min, info.max))
    scales = encoded.weights[layer.name].grid.scale.size if layer.name in encoded.weights else 0
    return QuantizedLayer(layer.name, layer.op, asked.dtype, scales, low, high, error)
