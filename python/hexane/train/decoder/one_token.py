"""A decoder's steps of one token, or of a block of tokens: keys and values of the tokens before are states of the
program."""

from collections.abc import Mapping

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array, Graph
from hexane.train.decoder.config import EMBEDDING, HEAD, NORM, LlamaConfig, layer
from hexane.train.decoder.model import checked_weights, rotary_angles


def one_token(config: LlamaConfig, weights: Mapping[str, Array], *, replaceable: bool = False) -> Graph:
    """token, position (1,) int32 -> logits (1, vocab). The positions before this one must have been run, in order.

    Each layer has two states (kv_heads, seq, head_dim), which the step writes one row of. Weights, by the names of
    `config.shapes()`, are constants, or with `replaceable` params of these names. Raises Error for weights that do not
    fit.
    """
    step = _Step(config, checked_weights(config, weights), replaceable)
    x = hx.gather(step.weights[EMBEDDING], step.token)  # (1, dim)
    for i in range(config.layers):
        x = step.layer(i, x)
    logits = hx.linear(step.norm(NORM, x), step.weights[EMBEDDING if config.tied else HEAD])
    return hx.graph({"logits": logits}, name="one_token")


def block(config: LlamaConfig, weights: Mapping[str, Array], count: int, window: int) -> Graph:
    """tokens (count,), position (1,), last (1,) int32 -> logits (1, vocab) after the token with the index `last`.

    The tokens stand from `position` on, which plus `count` is at most `window`; the step writes as many rows of the
    states that `one_token` has, and reads the first `window` ones. Rows of tokens behind `last` count for nothing:
    later steps write them again. Raises Error for weights that do not fit.
    """
    step = _Block(config, checked_weights(config, weights), count, window)
    x = hx.gather(step.weights[EMBEDDING], step.token)  # (count, dim)
    for i in range(config.layers):
        x = step.layer(i, x)
    x = x if count == 1 else hx.gather(x, hx.input("last", (1,), "int32"))
    logits = hx.linear(step.norm(NORM, x), step.weights[EMBEDDING if config.tied else HEAD])
    return hx.graph({"logits": logits}, name=f"block_{count}_{window}")


class _Step:
    """The layers for one token at one position."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Array], replaceable: bool) -> None:
        self.config = config
        self.weights = {
            name: hx.param(name, array) if replaceable else hx.const(array) for name, array in weights.items()
        }
        self.token = hx.input("token", (1,), "int32")
        self.position = hx.input("position", (1,), "int32")
        self.cos, self.sin = (hx.gather(table, self.position) for table in map(hx.const, rotary_angles(config)))
        self.visible = hx.const(np.arange(config.seq, dtype=np.int32)) <= self.position  # (seq,)

    def norm(self, name: str, x: Tensor) -> Tensor:
        return hx.rms_norm(x, self.weights[name], epsilon=self.config.epsilon)

    def layer(self, i: int, x: Tensor) -> Tensor:
        x = self.add(x, self.attention(i, self.norm(layer(i, "input_layernorm"), x)))
        return self.add(x, self.mlp(i, self.norm(layer(i, "post_attention_layernorm"), x)))

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (y if self.config.residual == 1 else y * self.config.residual)

    def attention(self, i: int, x: Tensor) -> Tensor:
        """The queries that share a key head are the rows of one product: (kv_heads, queries of each, head_dim)."""
        c = self.config

        def heads(name: str, count: int) -> Tensor:
            return hx.reshape(self.product(i, f"self_attn.{name}", x), shape=(count, 1, c.head_dim))

        def rotated(y: Tensor) -> Tensor:
            if c.rope == "none":
                return y
            return hx.rotary_embedding(y, self.cos, self.sin, interleaved=c.rope == "interleaved")

        def cached(name: str, new: Tensor) -> Tensor:
            cache = hx.state(f"layers.{i}.{name}", (c.kv_heads, c.seq, c.head_dim))
            return hx.write_state(cache, new, self.position, axis=1)

        query = hx.reshape(rotated(heads("q_proj", c.heads)), shape=(c.kv_heads, c.heads // c.kv_heads, c.head_dim))
        keys = cached("keys", rotated(heads("k_proj", c.kv_heads)))
        values = cached("values", heads("v_proj", c.kv_heads))
        y = hx.scaled_dot_product_attention(query, keys, values, self.visible)
        return self.product(i, "self_attn.o_proj", hx.reshape(y, shape=(1, c.heads * c.head_dim)))

    def mlp(self, i: int, x: Tensor) -> Tensor:
        gate, up = (self.product(i, f"mlp.{name}", x) for name in ("gate_proj", "up_proj"))
        return self.product(i, "mlp.down_proj", hx.silu(gate) * up)

    def product(self, i: int, name: str, x: Tensor) -> Tensor:
        return hx.linear(x, self.weights[layer(i, name)])


class _Block(_Step):
    """The layers for tokens that stand one after the other, over the first positions of the cache."""

    def __init__(self, config: LlamaConfig, weights: Mapping[str, Array], count: int, window: int) -> None:
        self.config, self.count, self.window = config, count, window
        self.weights = {name: hx.const(array) for name, array in weights.items()}
        self.token = hx.input("token" if count == 1 else "tokens", (count,), "int32")
        self.position = hx.input("position", (1,), "int32")
        places = self.position + hx.const(np.arange(count, dtype=np.int32))
        self.cos, self.sin = (hx.gather(table[:window], places) for table in map(hx.const, rotary_angles(config)))
        self.visible = hx.const(np.arange(window, dtype=np.int32)) <= hx.reshape(places, shape=(count, 1))

    def attention(self, i: int, x: Tensor) -> Tensor:
        """Queries have the axes (kv_heads, queries of each, count, head_dim), keys (kv_heads, 1, window, head_dim)."""
        c, count = self.config, self.count
        shared = c.heads // c.kv_heads

        def heads(name: str, of_each: int) -> Tensor:
            y = hx.reshape(self.product(i, f"self_attn.{name}", x), shape=(count, c.kv_heads, of_each, c.head_dim))
            return hx.transpose(y, perm=(1, 2, 0, 3))

        def rotated(y: Tensor) -> Tensor:
            if c.rope == "none":
                return y
            return hx.rotary_embedding(y, self.cos, self.sin, interleaved=c.rope == "interleaved")

        def cached(name: str, new: Tensor) -> Tensor:
            cache = hx.state(f"layers.{i}.{name}", (c.kv_heads, c.seq, c.head_dim))
            rows = hx.reshape(new, shape=(c.kv_heads, count, c.head_dim))
            whole = hx.write_state(cache, rows, self.position, axis=1)
            seen = whole if self.window == c.seq else whole[:, : self.window]
            return hx.reshape(seen, shape=(c.kv_heads, 1, self.window, c.head_dim))

        query = rotated(heads("q_proj", shared))
        keys = cached("keys", rotated(heads("k_proj", 1)))
        values = cached("values", heads("v_proj", 1))
        y = hx.transpose(hx.scaled_dot_product_attention(query, keys, values, self.visible), perm=(2, 0, 1, 3))
        return self.product(i, "self_attn.o_proj", hx.reshape(y, shape=(count, c.heads * c.head_dim)))
