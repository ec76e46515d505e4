"""GGUF files without our code: a writer of the published format, for decoders whose folder is known."""

import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import hexane as hx
from hexane.graph import Array

KINDS = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q6_K": 14, "BF16": 30}
OUTER = {
    "model.embed_tokens": "token_embd",
    "model.embed_positions": "position_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def value(given: Any) -> bytes:
    """A type and a value."""
    if isinstance(given, bool):
        return struct.pack("<I?", 7, given)
    if isinstance(given, int):
        return struct.pack("<II", 4, given)
    if isinstance(given, float):
        return struct.pack("<If", 6, given)
    if isinstance(given, str):
        return struct.pack("<I", 8) + text(given)
    if given and isinstance(given[0], str):
        return struct.pack("<IIQ", 9, 8, len(given)) + b"".join(map(text, given))
    number, form = (6, "f") if given and isinstance(given[0], float) else (5, "i")
    return struct.pack(f"<IIQ{len(given)}{form}", 9, number, len(given), *given)


def encoded(kind: str, array: Array) -> bytes:
    """Rows of blocks of 32, each with the largest magnitude at the end of the range."""
    if kind in ("F32", "F16"):
        return array.astype("<f4" if kind == "F32" else "<f2").tobytes()
    if kind == "BF16":
        return (array.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    if kind == "Q6_K":
        return q6_k(array)
    blocks = array.reshape(-1, 32).astype(np.float32)
    low, largest = blocks.min(1, keepdims=True), np.abs(blocks).max(1, keepdims=True)
    bits = int(kind[1])
    if kind == "Q8_0":
        d = (largest / 127).astype("<f2")
        q = np.rint(blocks / np.where(d == 0, 1, d)).clip(-127, 127).astype(np.int8)
        return np.concatenate([d.view(np.uint8), q.view(np.uint8)], 1).tobytes()
    if kind.endswith("_1"):
        d, m = ((blocks.max(1, keepdims=True) - low) / ((1 << bits) - 1)).astype("<f2"), low.astype("<f2")
        q = np.rint((blocks - m) / np.where(d == 0, 1, d)).clip(0, (1 << bits) - 1).astype(np.uint8)
        head = [d.view(np.uint8), m.view(np.uint8)]
    else:
        half = 1 << (bits - 1)
        d = (largest / (half - 1)).astype("<f2")
        q = (np.rint(blocks / np.where(d == 0, 1, d)).clip(-half, half - 1) + half).astype(np.uint8)
        head = [d.view(np.uint8)]
    if bits == 5:
        head.append(np.packbits(q >> 4, axis=1, bitorder="little"))
    return np.concatenate([*head, (q[:, :16] & 15) | (q[:, 16:] & 15) << 4], 1).tobytes()


def q6_k(array: Array) -> bytes:
    """Blocks of 256: a scale of int8 for 16 numbers, and one of fp16 for all."""
    groups = array.reshape(-1, 16, 16).astype(np.float32)
    scales = np.abs(groups).max(2) / 31
    d = (scales.max(1, keepdims=True) / 127).astype("<f2")
    s = np.rint(scales / d.astype(np.float32)).astype(np.int8)
    each = (d.astype(np.float32) * s)[:, :, None]
    q = (np.rint(groups / np.where(each == 0, 1, each)).clip(-32, 31) + 32).astype(np.uint8).reshape(-1, 2, 4, 32)
    low = np.concatenate([q[:, :, 0] & 15 | (q[:, :, 2] & 15) << 4, q[:, :, 1] & 15 | (q[:, :, 3] & 15) << 4], 2)
    high = q[:, :, 0] >> 4 | q[:, :, 1] >> 4 << 2 | q[:, :, 2] >> 4 << 4 | q[:, :, 3] >> 4 << 6
    count = len(groups)
    parts = [low.reshape(count, -1), high.reshape(count, -1), s.view(np.uint8), d.view(np.uint8)]
    return np.concatenate(parts, 1).tobytes()


def write(
    path: Path, metadata: Mapping[str, Any], tensors: Iterable[tuple[str, str, Array]], alignment: int = 32
) -> Path:
    """tensors: (name, kind, array)."""
    listed, table, data = list(tensors), b"", b""
    for name, kind, array in listed:
        axes = array.shape[::-1]
        table += text(name) + struct.pack(f"<I{len(axes)}QIQ", len(axes), *axes, KINDS[kind], len(data))
        data += encoded(kind, array)
        data += bytes(-len(data) % alignment)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(listed), len(metadata))
    head += b"".join(text(name) + value(given) for name, given in metadata.items()) + table
    path.write_bytes(head + bytes(-len(head) % alignment) + data)
    return path


def permuted(rows: Array, heads: int) -> Array:
    """As llama.cpp's converter turns the rows of a query or key: halves of a head become neighbours."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def tensors_of(
    architecture: str, c: hx.train.LlamaConfig, weights: Mapping[str, Array], kind: str = "F32"
) -> list[tuple[str, str, Array]]:
    """As the file of this architecture has them. c: with the rope "half" or "none", as folders have it."""
    parts = {**PARTS, "post_attention_layernorm": "post_attention_norm" if c.post_norms else "ffn_norm"}
    parts |= {"pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}
    made: dict[str, Array] = {}
    for name, array in weights.items():
        stem, _, last = name.rpartition(".")
        turned = architecture in ("llama", "smollm3") and stem.endswith(("q_proj", "k_proj"))
        given = permuted(array, c.heads if "q_proj" in stem else c.kv_heads) if turned else array
        if architecture.startswith("gemma") and "norm" in stem:
            given = given + np.float32(1)
        if stem in OUTER:
            made[f"{OUTER[stem]}.{last}"] = given
        else:
            _, _, i, part = stem.split(".", 3)
            made[f"blk.{i}.{parts[part]}.{last}"] = given
    fused = {"phi3": (("attn_qkv", "attn_q attn_k attn_v"), ("ffn_up", "ffn_gate ffn_up"))}
    fused["gpt2"] = fused["phi3"][:1]
    for i in range(c.layers):
        for new, old in fused.get(architecture, ()):
            for last in ("weight", "bias"):
                names = [f"blk.{i}.{one}.{last}" for one in old.split()]
                if names[0] in made:
                    made[f"blk.{i}.{new}.{last}"] = np.concatenate([made.pop(name) for name in names])
    return [(name, kind if array.ndim == 2 else "F32", array) for name, array in made.items()]


def metadata_of(architecture: str, c: hx.train.LlamaConfig) -> dict[str, Any]:
    epsilon = "layer_norm_epsilon" if c.norm == "layer" else "layer_norm_rms_epsilon"
    found: dict[str, Any] = {
        "context_length": c.seq,
        "embedding_length": c.dim,
        "block_count": c.layers,
        "feed_forward_length": c.hidden,
        "attention.head_count": c.heads,
        f"attention.{epsilon}": c.epsilon,
    }
    if c.rope != "none":
        found |= {"attention.head_count_kv": c.kv_heads, "rope.freq_base": c.theta}
        found |= {"attention.key_length": c.head_dim, "attention.value_length": c.head_dim}
        found["rope.dimension_count"] = c.rotated_dim
    if c.window:
        found["attention.sliding_window"] = c.window
    if c.attention_cap:
        found |= {"attn_logit_softcapping": c.attention_cap, "final_logit_softcapping": c.logit_cap}
    named = {f"{architecture}.{key}": one for key, one in found.items()}
    return {"general.architecture": architecture, "general.name": "a test", **named}
