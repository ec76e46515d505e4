"""The two orders of a head's channels under rotary positions, and weights in the other one."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import LlamaConfig, layer


def with_rope(config: LlamaConfig, weights: Mapping[str, Array], rope: str) -> tuple[LlamaConfig, dict[str, Array]]:
    """The same model with its channels rotated by the other convention: the rows of q_proj and k_proj change places.

        interleaved: a0 b0 a1 b1 a2 b2    half: a0 a1 a2 b0 b1 b2    (a and b with one number are rotated together)

    rope: "interleaved" or "half", as `LlamaConfig.rope`. The logits stay the same; weights are by the names of
    `config.shapes()`. Raises Error for another convention, and for a model without rotation.
    """
    changed = replace(config, rope=rope)
    found = dict(weights)
    if rope == config.rope:
        return changed, found
    for i in range(config.layers):
        for name in ("self_attn.q_proj", "self_attn.k_proj"):
            found[layer(i, name)] = with_rows(config, weights[layer(i, name)], rope)
    return changed, found


def with_rows(config: LlamaConfig, rows: Array, rope: str) -> Array:
    """The rows (heads * head_dim, any) of a matrix of this config in another convention's order.

    Raises Error as `with_rope` does.
    """
    if rope == config.rope:
        return rows
    if "none" in (rope, config.rope):
        raise Error(f"[train.with_rope] rope: got {rope!r} for a model of {config.rope!r}, need one that is rotated")
    pairs = (config.head_dim // 2, 2) if rope == "half" else (2, config.head_dim // 2)
    heads = rows.reshape(-1, *pairs, rows.shape[1])
    return np.ascontiguousarray(heads.swapaxes(1, 2)).reshape(rows.shape)
