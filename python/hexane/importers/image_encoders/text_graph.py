"""The graph of CLIP's and SigLIP's encoder of texts, for one batch and one number of tokens."""

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
LARGEST_ID = 2  # as `end`: the largest id ends a text


def text_outputs_of(config: TextHalfConfig) -> tuple[str, ...]:
    """The outputs that transformers gives for the architecture."""
    return (TEXT_EMBEDS, STATES) if config.projected else (STATES, POOLER)


def text_vector_of(config: TextHalfConfig) -> str:
    """The output that stands for a whole text."""
    return TEXT_EMBEDS if config.projected else POOLER


def text_half(
    config: TextHalfConfig, weights: Mapping[str, Array], batch: int, count: int, outputs: Sequence[str],
    masked: bool = False,
) -> Graph:  # fmt: skip
    """input_ids, and attention_mask where `masked`, (batch, count) int32 -> outputs of these names: last_hidden_state
    (batch, count, dim), pooler_output (batch, dim) or text_embeds (batch, projection).

    weights: by the names of `text_weights`. attention_mask is 1 at tokens and 0 at padding. Raises Error for more
    tokens than the model takes.
    """
    tensors = text_tensors(config, weights, batch, count, masked)
    return hx.graph({name: tensors[name] for name in outputs}, name=config.family)


def text_tensors(
    config: TextHalfConfig, weights: Mapping[str, Array], batch: int, count: int, masked: bool
) -> dict[str, Tensor]:
    """The outputs of `text_half` by name."""
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
    """Added to the scores of tokens that a token does not see."""
    with source_scope(MASK):
        later = np.triu(np.full((count, count), HIDDEN, np.float32), 1).reshape(1, 1, count, count)
        causal = hx.const(later) if config.causal else None
        if not masked:
            return causal
        padding = hx.cast(hx.input(MASK, (batch, count), "int32") == 0, dtype="fp32") * HIDDEN
        padding = hx.reshape(padding, shape=(batch, 1, 1, count))
        return padding if causal is None else hx.minimum(padding, causal)


def _at_end(config: TextHalfConfig, ids: Tensor, states: Tensor) -> Tensor:
    """The states (batch, dim) at the first token that ends each text; at token 0 where none does."""
    batch, count, dim = states.shape
    marks = ids if config.end == LARGEST_ID else hx.cast(ids == config.end, dtype="int32")
    place = hx.reduce_argmax(marks, axis=1, keep_dims=True, dtype="int32")
    chosen = hx.cast(hx.const(np.arange(count, dtype=np.int32)[None]) == place, dtype="fp32")
    return hx.reshape(hx.matmul(hx.reshape(chosen, shape=(batch, 1, count)), states), shape=(batch, dim))
