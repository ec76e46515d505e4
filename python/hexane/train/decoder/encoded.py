"""Weights of several programs of one decoder, each encoded once."""

from collections.abc import Iterable

from hexane import build as hx
from hexane.compression import Compression, find_weights
from hexane.compression.compress import compress_weights, exchanged, modes
from hexane.errors import Error
from hexane.graph import Array, Graph, Value
from hexane.targets import Target


class EncodedWeights:
    """Puts encoded weights into graphs, one after the other. A weight that an earlier graph had keeps its encoding.
    Other constants stay whole, such as tables of angles.

    Raises Error for a compression that measures the network: "auto", a tolerance, a budget, or calibration inputs.
    """

    def __init__(self, asked: Compression, target: Target, threads: int, weights: Iterable[Array]) -> None:
        if asked.searches or asked.tolerance is not None or asked.budget is not None or asked.feeds:
            raise Error(
                "[train.generate] compress: got a mode that measures the network, need an encoding, such as 'int8' or"
                " 'blockwise4:b32'"
            )
        self._asked, self._target, self._threads = asked, target, threads
        self._weights = {hx.const(array).value for array in weights}
        self._known: dict[Value, Value] = {}

    def __call__(self, graph: Graph) -> Graph:
        weights = [weight for weight in find_weights(graph) if weight.value in self._weights]
        wanted = dict(zip(weights, modes(weights, self._asked), strict=True))
        new = {weight: mode for weight, mode in wanted.items() if weight.value not in self._known}
        made, values = compress_weights(graph, new, self._target, self._threads)
        self._known |= {weight.value: value for weight, value in zip(new, values, strict=True)}
        old = {weight: self._known[weight.value] for weight in weights if weight not in new}
        return exchanged(made, old) if old else made
