"""A decoder without our code: small models and their logits in NumPy, and model files written as their
formats are published."""

import math
import struct
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx
from hexane.graph import Array
from hexane.train.decoder.config import PARTS

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


def rates_in_numpy(theta: float, channels: int, scaling: Any) -> list[float]:
    """The angle of each pair of channels, one by one."""
    found = []
    for pair in range(channels // 2):
        rate = theta ** (-2 * pair / channels)
        if scaling is not None and scaling.kind == "factors":
            rate /= scaling.factors[pair]
        elif scaling is not None and scaling.kind == "linear":
            rate /= scaling.factor
        elif scaling is not None and scaling.kind == "llama3":
            wave, low, high = 2 * np.pi / rate, scaling.original / scaling.low, scaling.original / scaling.high
            if wave > low:
                rate /= scaling.factor
            elif wave >= high:
                share = (scaling.original / wave - scaling.low) / (scaling.high - scaling.low)
                rate = (1 - share) * rate / scaling.factor + share * rate
        elif scaling is not None:
            ends = [
                channels * np.log(scaling.original / (2 * np.pi * t)) / (2 * np.log(theta))
                for t in (scaling.high, scaling.low)
            ]
            begin, end = max(np.floor(ends[0]), 0), min(np.ceil(ends[1]), channels - 1)
            share = min(max((pair - begin) / (end - begin), 0), 1)
            rate = rate / scaling.factor * share + rate * (1 - share)
        found.append(float(rate))
    return found


def logits_in_numpy(c: Any, w: dict[str, Array], tokens: Array) -> Array:
    """The logits in fp64, head by head. c has the fields of LlamaConfig, and perhaps `key_of`: the key head of a query
    head."""
    part: dict[str, Any] = {one.name: getattr(c, one.name, one.default) for one in PARTS}
    turned = part["rotary_dim"] or c.head_dim
    erf = np.vectorize(math.erf)
    activations: dict[str, Any] = {
        "silu": lambda x: x / (1 + np.exp(-x)),
        "relu": lambda x: np.maximum(x, 0),
        "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
        "gelu_tanh": lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))) / 2,
    }

    def rms(x: Array, gamma: Array) -> Array:
        gamma = gamma.astype(np.float64) + (1 if part["norm"] == "rms+1" else 0)
        return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + c.epsilon) * gamma)

    def norm(x: Array, own: dict[str, Array], name: str) -> Array:
        if part["norm"] != "layer":
            return rms(x, own[f"{name}.weight"])
        spread = np.sqrt(x.var(-1, keepdims=True) + c.epsilon)
        return np.asarray((x - x.mean(-1, keepdims=True)) / spread * own[f"{name}.weight"] + own[f"{name}.bias"])

    def rotated(x: Array, layer: int) -> Array:
        if c.rope == "none" or layer in part["unrotated"]:
            return x
        near = layer in part["local"] and part["local_theta"] > 0
        scaling = None if near else part["scaling"]
        rates = rates_in_numpy(part["local_theta"] if near else c.theta, turned, scaling)
        out, half = x.copy(), turned // 2
        for position in range(len(x)):
            for pair, rate in enumerate(rates):
                a, b = (2 * pair, 2 * pair + 1) if c.rope == "interleaved" else (pair, pair + half)
                turn = np.exp(1j * position * rate) * (1 if scaling is None else scaling.attention)
                done = turn * (x[position, a] + 1j * x[position, b])
                out[position, a], out[position, b] = done.real, done.imag
        return out

    def product(x: Array, own: dict[str, Array], name: str) -> Array:
        return np.asarray(x @ own[f"{name}.weight"].T + own.get(f"{name}.bias", 0))

    key_of = getattr(c, "key_of", lambda head: head * c.kv_heads // c.heads)

    def attention(h: Array, own: dict[str, Array], i: int) -> Array:
        q, k, v = (product(h, own, f"self_attn.{name}_proj") for name in "qkv")
        if part["joint_norm"]:
            q, k = rms(q, own["self_attn.q_norm.weight"]), rms(k, own["self_attn.k_norm.weight"])
        parts = []
        place = np.arange(len(h))
        behind = place[:, None] - place
        seen = (behind >= 0) & (behind < (part["window"] if i in part["local"] else len(h)))
        for head in range(c.heads):
            mine, other = (slice(n * c.head_dim, (n + 1) * c.head_dim) for n in (head, key_of(head)))
            query, key = q[:, mine], k[:, other]
            if part["head_norm"]:
                query, key = (rms(x, own[f"self_attn.{n}_norm.weight"]) for x, n in ((query, "q"), (key, "k")))
            scores = rotated(query, i) @ rotated(key, i).T * (part["attention_scale"] or c.head_dim**-0.5)
            if cap := part["attention_cap"]:
                scores = np.tanh(scores / cap) * cap
            scores = np.where(seen, scores, -np.inf)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            parts.append(shares / shares.sum(-1, keepdims=True) @ v[:, other])
        return product(np.concatenate(parts, -1), own, "self_attn.o_proj")

    def mlp(h: Array, own: dict[str, Array]) -> Array:
        up, active = product(h, own, "mlp.up_proj"), activations[part["activation"]]
        inner = active(product(h, own, "mlp.gate_proj")) * up if part["gated"] else active(up)
        return product(inner, own, "mlp.down_proj")

    def row(ids: Array) -> Array:
        x = w[EMBEDDING][ids].astype(np.float64) * part["embedding_scale"]
        if part["positions"]:
            x = x + w["model.embed_positions.weight"][: len(ids)]
        for i in range(c.layers):
            own = {k.split(".", 3)[3]: v.astype(np.float64) for k, v in w.items() if k.startswith(f"model.layers.{i}.")}
            y = attention(norm(x, own, "input_layernorm") if part["pre_norms"] else x, own, i)
            middle = x + c.residual * (norm(y, own, "post_attention_layernorm") if part["post_norms"] else y)
            before = "pre_feedforward_layernorm" if part["post_norms"] else "post_attention_layernorm"
            y = x if part["parallel"] else middle
            y = mlp(norm(y, own, before) if part["pre_norms"] else y, own)
            x = middle + c.residual * (norm(y, own, "post_feedforward_layernorm") if part["post_norms"] else y)
        head = w[EMBEDDING if c.tied else HEAD].astype(np.float64)
        logits = norm(x, {k.removeprefix("model."): v for k, v in w.items()}, "norm") @ head.T
        cap = part["logit_cap"]
        return np.asarray(np.tanh(logits / cap) * cap if cap else logits) / part["logit_divisor"]

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
