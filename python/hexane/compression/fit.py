"""Fits the scales of blocks to calibration inputs, in the output channels where this helps.

The importance of channels predicts the cost of an error only if channels are independent. Channels after a ReLU and
neighbouring pixels depend on each other. So the error of the layer's output is measured with plain and with fitted
scales.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hexane.compression.encode import encode
from hexane.compression.importance import (
    activation_of,
    added,
    channel_axis,
    importance_of,
    input_squares,
    readers_of,
    sum_of_squares,
)
from hexane.compression.request import blocks_of
from hexane.compression.weights import Weight
from hexane.dtypes import FP32
from hexane.graph import Array, Graph, Node, Port, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import encoding_of

Run = Callable[[Graph], Sequence[Sequence[Array]]]  # returns the outputs of a graph for each calibration input


@dataclass(frozen=True, slots=True)
class Fitted:
    """A weight with fitted scales. channels: the number of output channels that use them."""

    value: Value
    channels: int


def fit_scales(graph: Graph, chosen: Mapping[Weight, str], run: Run, threads: int = 1) -> dict[Weight, Fitted]:
    """Returns the weights of products for which fitted scales reduce the error of at least one output channel.

    Raises Error for calibration inputs that make a layer's input infinite or NaN."""
    kernels = [w for w, mode in chosen.items() if w.is_kernel and blocks_of(mode) is not None]
    if not kernels:
        return {}
    squares = zip(*run(input_squares(graph, kernels)), strict=True)
    importance = {w: importance_of(graph, w, result) for w, result in zip(kernels, squares, strict=True)}
    pairs = {
        weight: (encode(weight, chosen[weight], threads), encode(weight, chosen[weight], threads, counts))
        for weight, counts in importance.items()
        if counts is not None
    }
    if not pairs:
        return {}
    errors = [
        np.sum(of_feeds, axis=0, dtype=np.float64) for of_feeds in zip(*run(output_errors(graph, pairs)), strict=True)
    ]
    result = {}
    for i, (weight, (plain, fitted)) in enumerate(pairs.items()):
        # The groups of a transposed convolution share the output channels of its weight.
        before, after = (one.reshape(-1, weight.whole.shape[weight.axis]).sum(0) for one in errors[2 * i : 2 * i + 2])
        gains = after < before
        if gains.any():
            result[weight] = Fitted(_mixed(weight, plain, fitted, gains), int(gains.sum()))
    return result


def output_errors(graph: Graph, pairs: Mapping[Weight, tuple[Value, Value]]) -> Graph:
    """conv(%x, const) -> reduce_sum_square(conv(%x, const error), axes=(0, 2, 3)), two outputs for each weight, one per
    encoding: the error that the encoding adds to the layer's output, by output channel."""
    ports = [
        Port(f"%error{i}.{j}", _output_error(graph, weight, encoded))
        for i, (weight, pair) in enumerate(pairs.items())
        for j, encoded in enumerate(pair)
    ]
    return replace(graph, outputs=tuple(ports), taps=())


def _output_error(graph: Graph, weight: Weight, encoded: Value) -> Value:
    whole, decoded = weight.whole.node.data, encoding_of(encoded).decode().node.data
    assert whole is not None
    assert decoded is not None
    error = constant(decoded.astype(np.float32) - whole.astype(np.float32))
    sums = [sum_of_squares(_product(node, error), channel_axis(node)) for node in readers_of(graph, weight)]
    return added(sums)


def _product(node: Node, weight: Value) -> Value:
    """Returns the layer's output with another weight, in fp32 and without a bias."""
    (wide,) = apply(OPS["cast"], [activation_of(node)], {"dtype": FP32})
    (product,) = apply(OPS[node.op], [wide, weight, None], node.attrs)
    return product


def _mixed(weight: Weight, plain: Value, fitted: Value, gains: Array) -> Value:
    """Returns a weight with fitted integers and scales in the output channels where `gains` is true, and plain ones in
    all others."""

    def mixed(a: Value | None, b: Value | None) -> Value | None:
        if a is None or b is None:
            return None
        one, other = a.node.data, b.node.data
        assert one is not None
        assert other is not None
        along = [-1 if i == weight.axis else 1 for i in range(one.ndim)] if one.ndim > 1 else [-1]
        return constant(np.where(gains.reshape(along), other, one), a.node.sources)

    inputs = map(mixed, plain.node.inputs, fitted.node.inputs)
    return plain.node.with_inputs(tuple(inputs)).values[0]
