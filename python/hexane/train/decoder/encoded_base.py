"""Compressed base weights for the training of adapters: the allowed encodings, and encoding the weights."""

from math import prod

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.compression import Compression, find_weights
from hexane.compression.compress import compress_weights, modes
from hexane.errors import Error
from hexane.graph import Array, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.encodings import is_encoded
from hexane.passes.quantize.stored import encoded, stored_rows
from hexane.targets import load_target
from hexane.train.decoder.config import EMBEDDING, POSITIONS, LlamaConfig

NEED = (
    "int8, blockwise4:b32, blockwise8:b32, or a palette with one table (palette4) or with a table for each group of"
    " channels, in groups of a multiple of 8 (palette4:g16)"
)


def check_base_mode(mode: str) -> None:
    """Raises Error if a mode is not allowed for a base model."""
    asked = Compression(mode)
    if asked.searches or mode.startswith("sparse"):
        raise Error(f"[train] compress: got {mode!r}, need {NEED}")


def encoded_base(
    config: LlamaConfig, weights: dict[str, Array | Tensor], mode: str, threads: int = 1
) -> dict[str, Array | Tensor]:
    """Returns the weights, with the matrices of linear layers and the embedding encoded. Encoded weights stay
    unchanged. The weights are removed from the dict one by one, the largest last: arrays without another owner are
    freed before memory use is highest.

    Raises Error if the mode measures or prunes the network, or if `check_base` refuses a weight.
    """
    check_base_mode(mode)
    base: dict[str, Array | Tensor] = {}
    shapes = config.shapes()
    for name in sorted(shapes, key=lambda name: prod(shapes[name])):
        base[name] = _in_few_bits(name, weights.pop(name), Compression(mode), threads)
        check_base(name, base[name], mode)
    return {name: base[name] for name in shapes}


def _in_few_bits(name: str, given: Array | Tensor, asked: Compression, threads: int) -> Array | Tensor:
    if isinstance(given, Tensor):
        return given
    if given.ndim == 2 and name != POSITIONS:
        graph = hx.graph(hx.linear(hx.input("x", (1, given.shape[1])), given))
        weights = find_weights(graph)
        _, values = compress_weights(
            graph, dict(zip(weights, modes(weights, asked), strict=True)), load_target("host"), threads
        )
        if values:
            return Tensor(_with_byte_indices(values[0]))
    # An array from a file is a view: a small one would keep the whole file in memory.
    return given.copy()


def _with_byte_indices(weight: Value) -> Value:
    """gather(const : fp32[16], const : int32[64, 64])  ->  decode_palette(const : uint8[64, 64], const)

    32-bit indices would take as much memory as the weight in fp32 while the graph exists.
    """
    node = weight.node
    if node.op != "gather":
        return weight
    table, indices = (None if v is None else v.node.data for v in node.inputs)
    assert table is not None
    assert indices is not None
    operands = [
        constant(indices.astype(np.uint8), node.sources),
        constant(table.reshape(*[1] * indices.ndim, -1), node.sources),
    ]
    return apply(OPS["decode_palette"], operands, {}, node.sources)[0]


def check_base(name: str, weight: Array | Tensor, mode: str = "") -> None:
    """Raises Error if the kernels of a training cannot read the weight's encoding: it would be decoded to fp32."""
    if not isinstance(weight, Tensor) or not is_encoded(weight.value.node):
        return
    encoded_weight = encoded(weight.value)
    stored = None if encoded_weight is None else stored_rows(encoded_weight)
    if stored is None or (name == EMBEDDING and stored.numbers.ndim == 3):
        raise Error(f"[train] compress: got {name} as {mode or weight.value.node.op}, need {NEED}")
