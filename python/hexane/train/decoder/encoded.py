"""Encodes the weights of a decoder once for all its programs."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from hexane.build import Tensor
from hexane.compression import Compression, Weight, find_weights
from hexane.compression.compress import compress_weights, modes
from hexane.compression.fit import Fitted
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.weights import Weights, as_tensor
from hexane.ops.encodings import encoding_of
from hexane.targets import Target


def encoded_weights(
    graph: Graph,
    weights: Mapping[str, Array | Tensor],
    asked: Compression,
    target: Target,
    threads: int,
    encodings: Mapping[str, str] | None = None,
    fit: Callable[[Mapping[Weight, str]], Mapping[Weight, Fitted]] | None = None,
) -> dict[str, Array | Tensor]:
    """Returns the weights, encoded if the graph multiplies by them or gathers from them. Tensors are returned
    unchanged. Constants of the graph that are no weights, such as tables of angles, are not encoded. encodings:
    encodings by pattern of a weight's name, which override `asked`. fit: returns weights whose scales are fitted to
    activations.

    Raises Error for a compression that must run the network: "auto", a tolerance, a budget, or calibration inputs.
    """
    if asked.searches or asked.tolerance is not None or asked.budget is not None or asked.feeds:
        raise Error(
            "[train.generate] compress: got a mode that measures the network, need an encoding, such as 'int8' or"
            " 'blockwise4:b32'"
        )
    arrays = {name: given for name, given in weights.items() if not isinstance(given, Tensor)}
    own = {as_tensor(array).value: name for name, array in arrays.items()}
    read = find_weights(graph)
    chosen = {w: mode for w, mode in zip(read, modes(read, asked), strict=True) if w.value in own}
    for weight in chosen:
        fitting = (mode for pattern, mode in (encodings or {}).items() if fnmatchcase(own[weight.value], pattern))
        chosen[weight] = next(fitting, chosen[weight])
    _, values = compress_weights(graph, chosen, target, threads, None if fit is None else fit(chosen))
    encoded = {own[weight.value]: Tensor(value) for weight, value in zip(chosen, values, strict=True)}
    # An array from a file is a view: a small one would keep the whole file in memory.
    return {**weights, **{name: encoded[name] if name in encoded else array.copy() for name, array in arrays.items()}}


def encoded_count(weights: Mapping[str, Array | Tensor]) -> int:
    """Returns how many of the weights are stored in fewer bits, without reading files."""
    given = Weights.of(weights)
    tensors = [one for one in given.held.values() if isinstance(one, Tensor)]
    return len(given.encoded) + sum(encoding_of(one.value).kind != "whole" for one in tensors)
