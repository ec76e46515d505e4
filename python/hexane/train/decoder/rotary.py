"""Rotary positions: the angles, the two orders of a head's channels, and conversion of weights between them."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil, floor, log, pi

import numpy as np

from hexane.errors import Error
from hexane.graph import Array
from hexane.train.decoder.config import LlamaConfig, RopeScaling

# Suffixes of tensors with one row per channel of a query or a key.
TURNED = tuple(
    f"self_attn.{name}"
    for name in ("q_proj.weight", "k_proj.weight", "q_proj.bias", "k_proj.bias", "q_norm.weight", "k_norm.weight")
)


def rotary_angles(config: LlamaConfig, local: bool = False) -> tuple[Array, Array]:
    """Returns the cosines and sines of a head's angles at each position, both (seq, rotated channels / 2) in fp32.
    local: the angles of the layers in `config.local`."""
    own = local and config.local_theta > 0
    scaling = None if own else config.scaling
    rates = rotary_rates(config.local_theta if own else config.theta, config.rotated_dim, scaling)
    angles = np.outer(np.arange(config.seq), rates)
    pair, attention = (np.cos(angles), np.sin(angles)), 1.0 if scaling is None else scaling.attention
    cos, sin = (attention * one for one in pair)
    return cos.astype(np.float32), sin.astype(np.float32)


def rotary_rates(theta: float, channels: int, scaling: RopeScaling | None = None) -> Array:
    """Returns the angle of each pair of channels at position 1, in fp64."""
    rates: Array = theta ** -(np.arange(0, channels, 2) / channels)
    if scaling is None:
        return rates
    if scaling.kind == "factors":
        return np.asarray(rates / np.array(scaling.factors))
    if scaling.kind == "linear":
        return np.asarray(rates / scaling.factor)
    if scaling.kind == "llama3":
        turns = scaling.original * rates / (2 * pi)  # turns of each angle over the first training's context
        kept = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0, 1)
    else:
        begin, end = (
            channels * log(scaling.original / (turns * 2 * pi)) / (2 * log(theta))
            for turns in (scaling.high, scaling.low)
        )
        if scaling.whole:
            begin, end = floor(begin), ceil(end)
        begin, end = max(begin, 0), min(end, channels - 1)
        end += 0.001 if begin == end else 0
        kept = 1 - np.clip((np.arange(channels // 2) - begin) / (end - begin), 0, 1)
    return np.asarray(rates * kept + rates / scaling.factor * (1 - kept))


def with_rope(config: LlamaConfig, weights: Mapping[str, Array], rope: str) -> tuple[LlamaConfig, dict[str, Array]]:
    """Returns the model with the other order of rotated channels: the rows of q_proj and k_proj, of their biases and of
    their norms are permuted.

        interleaved: a0 b0 a1 b1 a2 b2    half: a0 a1 a2 b0 b1 b2    (a and b with the same number are one pair)

    rope: "interleaved" or "half", as `LlamaConfig.rope`. The conversion does not change the logits. weights: by the
    names of `config.shapes()`. Raises Error for another value of `rope`, and for a model without rotation.
    """
    changed = replace(config, rope=rope)
    reordered = dict(weights)
    if rope == config.rope:
        return changed, reordered
    for name in config.shapes():
        if name.endswith(TURNED):
            reordered[name] = with_rows(config, weights[name], rope)
    return changed, reordered


def with_rows(config: LlamaConfig, rows: Array, rope: str) -> Array:
    """Returns the rows (heads * head_dim, ..) of an array in the order of `rope`.

    Raises Error as `with_rope` does.
    """
    if rope == config.rope:
        return rows
    if "none" in (rope, config.rope):
        raise Error(f"[train.with_rope] rope: got {rope!r} for a model of {config.rope!r}, need one that is rotated")
    rotary_dim = config.rotated_dim
    order = np.arange(config.head_dim)
    pairs = (rotary_dim // 2, 2) if rope == "half" else (2, rotary_dim // 2)
    order[:rotary_dim] = order[:rotary_dim].reshape(pairs).T.reshape(-1)
    heads = rows.reshape(-1, config.head_dim, *rows.shape[1:])
    return np.ascontiguousarray(heads[:, order]).reshape(rows.shape)
