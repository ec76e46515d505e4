"""The graph of the text encoder of CLIP or SigLIP, for a fixed batch and number of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.origins import source_scope
from hexane.importers.encoders.graph import HIDDEN, IDS, MASK, POOLER, STATES
from hexane.importers.image_encoders.layers import Layers
from hexane.importers.image_encoders.text_config import TextHalfConfig

TEXT_EMBEDS = "text_embeds"
LARGEST_ID = 2  # the value 2 of `end` means that the largest id ends a text


def text_outputs_of(config: TextHalfConfig) -> tuple[str, ...]:
    """Returns the names of the outputs that transformers has for the architecture."""
    return (TEXT_EMBEDS, STATES) if config.projected else (STATES, POOLER)


def text_vector_of(config: TextHalfConfig) -> str:
    """Returns the name of the output that represents a whole text."""
    return TEXT_EMBEDS if config.projected else POOLER


def text_half(
    config: TextHalfConfig, weights: Mapping[str, Array | Tensor], batch: int, count: int, outputs: Sequence[str],
    masked: bool = False,
) -> Graph:  # fmt: skip
    """Returns a graph from input_ids, and attention_mask if `masked`, (batch, count) int32, to the named outputs:
    last_hidden_state (batch, count, dim), pooler_output (batch, dim) or text_embeds (batch, projection).

    weights: by the names of `text_weights`. attention_mask is 1 for tokens and 0 for padding. Raises Error for more
    tokens than the model allows.
    """
    tensors = text_tensors(config, weights, batch, count, masked)
    return hx.graph({name: tensors[name] for name in outputs}, name=config.family)


def text_tensors(
    config: TextHalfConfig, weights: Mapping[str, Array | Tensor], batch: int, count: int, masked: bool
) -> dict[str, Tensor]:
    """Returns the outputs of `text_half` by name."""
    if not 1 <= count <= config.positions or batch < 1:
        raise Error(f"[encoder] {IDS}: got {batch}x{count}, need a batch from 1 on and 1 to {config.positions} tokens")
    layers = Layers(config, weights, batch)
    ids = hx.input(IDS, (batch, count), "int32")
    with source_scope("embeddings"):
        x = hx.gather(layers.weights["tokens"], ids) + layers.weights["positions"][:count]
    states = layers.norm("last", layers.layers(x, _hidden(config, batch, count, masked)))
    with source_scope("pooling"):
        vector = _at_end(config, ids, states) if config.causal else states[:, count - 1]
    if config.causal and not config.projected:
        return {STATES: states, POOLER: vector}
    return {STATES: states, text_vector_of(config): layers.linear("head", vector)}


def _hidden(config: TextHalfConfig, batch: int, count: int, masked: bool) -> Tensor | None:
    """Returns the mask that is added to the attention scores, or None if there is nothing to mask."""
    with source_scope(MASK):
        later = np.triu(np.full((count, count), HIDDEN, np.float32), 1).reshape(1, 1, count, count)
        causal = hx.const(later) if config.causal else None
        if not masked:
            return causal
        padding = hx.cast(hx.input(MASK, (batch, count), "int32") == 0, dtype="fp32") * HIDDEN
        padding = hx.reshape(padding, shape=(batch, 1, 1, count))
        return padding if causal is None else hx.minimum(padding, causal)


def _at_end(config: TextHalfConfig, ids: Tensor, states: Tensor) -> Tensor:
    """Returns the states (batch, dim) at the first end token of each text, or at token 0 if it has none."""
    batch, count, dim = states.shape
    marks = ids if config.end == LARGEST_ID else hx.cast(ids == config.end, dtype="int32")
    place = hx.reduce_argmax(marks, axis=1, keep_dims=True, dtype="int32")
    chosen = hx.cast(hx.const(np.arange(count, dtype=np.int32)[None]) == place, dtype="fp32")
    return hx.reshape(hx.matmul(hx.reshape(chosen, shape=(batch, 1, count)), states), shape=(batch, dim))
