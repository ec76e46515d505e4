"""Weights of a decoder, encoded once for all its programs."""

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase

from hexane import build as hx
from hexane.build import Tensor
from hexane.compression import Compression, Weight, find_weights
from hexane.compression.compress import compress_weights, modes
from hexane.compression.fit import Fitted
from hexane.errors import Error
from hexane.graph import Array, Graph
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
    """The weights. Weights that the graph multiplies by or gathers from are in their encoding. Tensors stay as they
    are. Other constants of the graph, such as tables of angles, are not touched. encodings: by pattern of the weights'
    names, in place of `asked`. fit: gives weights with scales that are fitted to activations, for these encodings.

    Raises Error for a compression that measures the network: "auto", a tolerance, a budget, or calibration inputs.
    """
    if asked.searches or asked.tolerance is not None or asked.budget is not None or asked.feeds:
        raise Error(
            "[train.generate] compress: got a mode that measures the network, need an encoding, such as 'int8' or"
            " 'blockwise4:b32'"
        )
    arrays = {name: given for name, given in weights.items() if not isinstance(given, Tensor)}
    own = {hx.const(array).value: name for name, array in arrays.items()}
    read = find_weights(graph)
    chosen = {w: mode for w, mode in zip(read, modes(read, asked), strict=True) if w.value in own}
    for weight in chosen:
        fitting = (mode for pattern, mode in (encodings or {}).items() if fnmatchcase(own[weight.value], pattern))
        chosen[weight] = next(fitting, chosen[weight])
    _, values = compress_weights(graph, chosen, target, threads, None if fit is None else fit(chosen))
    encoded = {own[weight.value]: Tensor(value) for weight, value in zip(chosen, values, strict=True)}
    # Arrays of a file are views of its bytes: one norm would keep all of them in memory.
    return {**weights, **{name: encoded[name] if name in encoded else array.copy() for name, array in arrays.items()}}
