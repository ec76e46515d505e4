"""Runs layers and their quantised twins on the same floats, to find how rounding a layer changes its result, and the
bias that corrects the change of the mean."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hexane.graph import Array
from hexane.quant.calibrate import Compile, Feed, each
from hexane.quant.layers import QuantLayer
from hexane.quant.network import Network, showing
from hexane.quant.write import Encoded, write_twins


@dataclass(slots=True)
class Change:
    """The change of a layer's result: the relative error in Euclidean norms, and the mean difference of each
    channel."""

    squares: float = 0.0
    wrong: float = 0.0
    missing: Any = 0.0
    count: int = 0
    error: float = field(init=False, default=0.0)

    def add(self, result: Array, twin: Array, axis: int) -> None:
        difference = result.astype(np.float64) - twin
        self.squares += float((result.astype(np.float64) ** 2).sum())
        self.wrong += float((difference**2).sum())
        others = tuple(i for i in range(result.ndim) if i != axis % result.ndim)
        self.missing = self.missing + difference.sum(axis=others)
        self.count += result.size // max(result.shape[axis], 1)
        self.error = (self.wrong / self.squares) ** 0.5 if self.squares else 0.0 if self.wrong == 0 else float("inf")

    @property
    def mean(self) -> Array:
        return np.asarray(self.missing / max(self.count, 1))


def changes(
    network: Network, layers: Sequence[QuantLayer], encoded: Encoded, feeds: Iterable[Feed], compile: Compile
) -> Mapping[str, Change]:
    """The change of each layer's result, measured in one pass over the feeds."""
    model, twins = write_twins(network, layers, encoded)
    nodes = list(network.nodes)
    results = {layer.name: nodes[layer.index].output[0] for layer in layers}
    run = compile(showing(model, dict.fromkeys([*results.values(), *twins.values()])))
    by_layer = {layer.name: Change() for layer in layers}
    for values in each(run, feeds):
        for layer in layers:
            by_layer[layer.name].add(values[results[layer.name]], values[twins[layer.name]], layer.channel_axis)
    return by_layer
