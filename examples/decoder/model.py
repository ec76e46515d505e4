"""The decoder's one-token step in Hexane: its key/value cache is state of the program, written in place."""

import numpy as np
from reference import Config, Weights, rotary_tables

import hexane as hx


def build(config: Config, weights: Weights) -> hx.Graph:
    """token, position (1,) int32 -> logits (1, vocab). All earlier positions must have been run before."""
    token = hx.input("token", (1,), "int32")
    position = hx.input("position", (1,), "int32")
    cos, sin = (hx.gather(table, position) for table in rotary_tables(config))  # (1, head_dim / 2)
    visible = hx.const(np.arange(config.max_seq, dtype=np.int32)) <= position  # (max_seq,)

    def attention(i: int, x: hx.Tensor) -> hx.Tensor:
        def heads(name: str) -> hx.Tensor:
            y = hx.linear(x, weights[f"layer{i}.{name}"])
            return hx.reshape(y, shape=(config.heads, 1, config.head_dim))

        def cached(name: str, new: hx.Tensor) -> hx.Tensor:
            cache = hx.state(f"layer{i}.{name}", (config.heads, config.max_seq, config.head_dim))
            return hx.write_state(cache, new, position, axis=1)

        query = hx.rotary_embedding(heads("query"), cos, sin, interleaved=True)
        keys = cached("keys", hx.rotary_embedding(heads("key"), cos, sin, interleaved=True))
        values = cached("values", heads("value"))
        context = hx.scaled_dot_product_attention(query, keys, values, visible)  # (heads, 1, head_dim)
        return hx.linear(hx.reshape(context, shape=(1, config.dim)), weights[f"layer{i}.output"])

    def mlp(i: int, x: hx.Tensor) -> hx.Tensor:
        gate, up = (hx.linear(x, weights[f"layer{i}.{name}"]) for name in ("gate", "up"))
        return hx.linear(hx.silu(gate) * up, weights[f"layer{i}.down"])

    def norm(name: str, x: hx.Tensor) -> hx.Tensor:
        return hx.rms_norm(x, weights[name], epsilon=config.rms_epsilon)

    x = hx.gather(weights["embedding"], token)  # (1, dim)
    for i in range(config.layers):
        x = x + attention(i, norm(f"layer{i}.attention_norm", x))
        x = x + mlp(i, norm(f"layer{i}.mlp_norm", x))
    return hx.graph({"logits": hx.linear(norm("norm", x), weights["embedding"])}, name="decoder")
