"""A decoder of the Llama family without our code: small models and their logits in NumPy, and model files written as their
formats are published."""

import struct
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx
from hexane.graph import Array

LLAMA2C = ("rms_att", "wq", "wk", "wv", "wo", "rms_ffn", "w1", "w2", "w3")
NAMES = {
    "rms_att": "input_layernorm",
    "wq": "self_attn.q_proj",
    "wk": "self_attn.k_proj",
    "wv": "self_attn.v_proj",
    "wo": "self_attn.o_proj",
    "rms_ffn": "post_attention_layernorm",
    "w1": "mlp.gate_proj",
    "w2": "mlp.down_proj",
    "w3": "mlp.up_proj",
}
EMBEDDING, NORM, HEAD = "model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"


def decoder_weights(c: hx.train.LlamaConfig, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    return {
        name: (rng.normal(0, 0.3, shape) + (len(shape) == 1)).astype(np.float32) for name, shape in c.shapes().items()
    }


def logits_in_numpy(c: Any, w: dict[str, Array], tokens: Array) -> Array:
    """The logits in fp64, head by head. c has the fields of LlamaConfig, and perhaps `key_of`: the key head of a query
    head."""

    def norm(x: Array, gamma: Array) -> Array:
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + c.epsilon) * gamma)

    def rotated(x: Array) -> Array:
        if c.rope == "none":
            return x
        out, half = np.empty_like(x), c.head_dim // 2
        for position in range(len(x)):
            for pair in range(half):
                angle = position * c.theta ** (-2 * pair / c.head_dim)
                a, b = (2 * pair, 2 * pair + 1) if c.rope == "interleaved" else (pair, pair + half)
                turned = np.exp(1j * angle) * (x[position, a] + 1j * x[position, b])
                out[position, a], out[position, b] = turned.real, turned.imag
        return out

    key_of = getattr(c, "key_of", lambda head: head * c.kv_heads // c.heads)

    def row(ids: Array) -> Array:
        x = w[EMBEDDING][ids].astype(np.float64)
        for i in range(c.layers):
            own = {k.split(".", 3)[3]: v.astype(np.float64) for k, v in w.items() if k.startswith(f"model.layers.{i}.")}
            h = norm(x, own["input_layernorm.weight"])
            q, k, v = (h @ own[f"self_attn.{name}_proj.weight"].T for name in "qkv")
            parts = []
            for head in range(c.heads):
                mine, other = (slice(n * c.head_dim, (n + 1) * c.head_dim) for n in (head, key_of(head)))
                scores = rotated(q[:, mine]) @ rotated(k[:, other]).T / np.sqrt(c.head_dim)
                scores = np.where(np.tri(len(ids), dtype=bool), scores, -np.inf)
                shares = np.exp(scores - scores.max(-1, keepdims=True))
                parts.append(shares / shares.sum(-1, keepdims=True) @ v[:, other])
            x = x + c.residual * np.concatenate(parts, -1) @ own["self_attn.o_proj.weight"].T
            h = norm(x, own["post_attention_layernorm.weight"])
            gate, up = (h @ own[f"mlp.{name}_proj.weight"].T for name in ("gate", "up"))
            x = x + c.residual * (gate / (1 + np.exp(-gate)) * up) @ own["mlp.down_proj.weight"].T
        head = w[EMBEDDING if c.tied else HEAD].astype(np.float64)
        return np.asarray(norm(x, w[NORM]) @ head.T)

    return np.stack([row(ids) for ids in tokens])


def of_layers(c: hx.train.LlamaConfig, w: dict[str, Array], *names: str) -> list[Array]:
    return [w[f"model.layers.{i}.{NAMES[name]}.weight"] for name in names for i in range(c.layers)]


def sizes(c: hx.train.LlamaConfig, sign: int = 1) -> bytes:
    return struct.pack("<7i", c.dim, c.hidden, c.layers, c.heads, c.kv_heads, sign * c.vocab, c.seq)


def fp32(arrays: list[Array]) -> bytes:
    return b"".join(array.astype("<f4").tobytes() for array in arrays)


def llama2c_v0(c: hx.train.LlamaConfig, w: dict[str, Array]) -> bytes:
    rates = 1 / 10000 ** (np.arange(0, c.head_dim, 2)[: c.head_dim // 2] / c.head_dim)
    angles = np.outer(np.arange(c.seq), rates)
    head = [] if c.tied else [w[HEAD]]
    body = [w[EMBEDDING], *of_layers(c, w, *LLAMA2C), w[NORM], np.cos(angles), np.sin(angles), *head]
    return sizes(c, 1 if c.tied else -1) + fp32(body)


def llama2c_v1(c: hx.train.LlamaConfig, w: dict[str, Array]) -> bytes:
    head = struct.pack("<Ii", 0x616B3432, 1) + sizes(c) + bytes([c.tied])
    body = [*of_layers(c, w, "rms_att", "rms_ffn"), w[NORM], w[EMBEDDING]]
    body += of_layers(c, w, "wq", "wk", "wv", "wo", "w1", "w2", "w3")
    return head + bytes(256 - len(head)) + fp32(body + ([] if c.tied else [w[HEAD]]))


def llama2c_v2(c: hx.train.LlamaConfig, w: dict[str, Array], group: int) -> tuple[bytes, dict[str, Array]]:
    """The file, and the weights that its integers stand for."""
    meant = dict(w)
    head = struct.pack("<Ii", 0x616B3432, 2) + sizes(c) + bytes([c.tied]) + struct.pack("<i", group)
    data = head + bytes(256 - len(head)) + fp32([*of_layers(c, w, "rms_att", "rms_ffn"), w[NORM]])
    short = ("wq", "wk", "wv", "wo", "w1", "w2", "w3")
    names = [EMBEDDING, *(f"model.layers.{i}.{NAMES[n]}.weight" for n in short for i in range(c.layers))]
    for name in names + ([] if c.tied else [HEAD]):
        rows = w[name].reshape(-1, group)
        scale = (np.abs(rows).max(1) / np.float32(127)).astype(np.float32)
        integers = np.rint(rows / scale[:, None]).astype(np.int8)
        meant[name] = (integers.astype(np.float32) * scale[:, None]).reshape(w[name].shape)
        data += integers.tobytes() + scale.astype("<f4").tobytes()
    return data, meant


def ane_checkpoint(
    c: hx.train.LlamaConfig, w: dict[str, Array], first: dict[str, Array], second: dict[str, Array], version: int
) -> bytes:
    last = (c.kv_heads, c.head_dim, c.heads * c.head_dim) if version == 4 else (10, 0, 7)
    numbers = (7, 1000, c.layers, c.vocab, c.dim, c.hidden, c.heads, c.seq, 3e-4, 2.5, 1.25, 2.5, 9.0, 70, 6, 5)
    data = struct.pack("<10i2f3d6i", 0x424C5A54, version, *numbers, *last)
    assert len(data) == 96
    for i in range(c.layers):
        names = [
            f"model.layers.{i}.{NAMES[n]}.weight"
            for n in ("wq", "wk", "wv", "wo", "w1", "w2", "w3", "rms_att", "rms_ffn")
        ]
        data += fp32([w[n] for n in names]) + fp32([moment[n] for n in names for moment in (first, second)])
    return data + fp32([arrays[n] for n in (NORM, EMBEDDING) for arrays in (w, first, second)])


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path
