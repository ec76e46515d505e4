"""A Llama-2-shaped decoder in plain fp32 NumPy, one token at a time with a key/value cache.

The default config has the shape of llama2.c's stories110M; the weights are random but seeded, made on the spot.
"""

import dataclasses

import numpy as np

Weights = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    dim: int = 768
    layers: int = 12
    heads: int = 12
    hidden: int = 2048
    vocab: int = 32000
    max_seq: int = 256
    rms_epsilon: float = 1e-5
    rotary_base: float = 10000.0

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


def make_weights(config: Config, seed: int = 0) -> Weights:
    """Matrices are (out, in); `embedding` (vocab, dim) also gives the logits (tied)."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int) -> np.ndarray:
        values = rng.standard_normal((rows, columns), np.float32)
        values *= np.float32(columns**-0.5)
        return values

    def gain() -> np.ndarray:
        return rng.uniform(0.8, 1.2, config.dim).astype(np.float32)

    weights = {"embedding": matrix(config.vocab, config.dim)}
    for i in range(config.layers):
        weights[f"layer{i}.attention_norm"] = gain()
        for name in ("query", "key", "value", "output"):
            weights[f"layer{i}.{name}"] = matrix(config.dim, config.dim)
        weights[f"layer{i}.mlp_norm"] = gain()
        weights[f"layer{i}.gate"] = matrix(config.hidden, config.dim)
        weights[f"layer{i}.up"] = matrix(config.hidden, config.dim)
        weights[f"layer{i}.down"] = matrix(config.dim, config.hidden)
    weights["norm"] = gain()
    return weights


def rotary_tables(config: Config) -> tuple[np.ndarray, np.ndarray]:
    """cos and sin of position * base^(-2i / head_dim), each (max_seq, head_dim / 2) float32."""
    frequency = config.rotary_base ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    angle = np.arange(config.max_seq)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> np.ndarray:
    """Turns each neighbouring pair (x[2i], x[2i+1]) of every head by its angle; x (heads, head_dim)."""
    even, odd = x[:, 0::2], x[:, 1::2]
    return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(x.shape)


def rms_norm(x: np.ndarray, gain: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(np.mean(x * x) + np.float32(epsilon)) * gain


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


class Decoder:
    """Holds the weights and the cache: keys and values, each (layers, heads, max_seq, head_dim)."""

    def __init__(self, config: Config, weights: Weights) -> None:
        self.config = config
        self.weights = weights
        self.cos, self.sin = rotary_tables(config)
        self.keys = np.zeros((config.layers, config.heads, config.max_seq, config.head_dim), np.float32)
        self.values = np.zeros_like(self.keys)

    def step(self, token: int, pos: int) -> np.ndarray:
        """Logits (vocab,) for the token after `token`, which stands at `pos`; positions before it must be cached."""
        if not 0 <= pos < self.config.max_seq:
            raise ValueError(f"[decoder.step] pos: got {pos}, need 0 <= pos < {self.config.max_seq}")
        x = self.weights["embedding"][token]
        for i in range(self.config.layers):
            x = x + self.attention(i, self.norm(f"layer{i}.attention_norm", x), pos)
            x = x + self.mlp(i, self.norm(f"layer{i}.mlp_norm", x))
        return self.weights["embedding"] @ self.norm("norm", x)

    def norm(self, name: str, x: np.ndarray) -> np.ndarray:
        return rms_norm(x, self.weights[name], self.config.rms_epsilon)

    def attention(self, i: int, x: np.ndarray, pos: int) -> np.ndarray:
        heads = (self.config.heads, self.config.head_dim)
        query = rotate((self.weights[f"layer{i}.query"] @ x).reshape(heads), self.cos[pos], self.sin[pos])
        self.keys[i, :, pos] = rotate((self.weights[f"layer{i}.key"] @ x).reshape(heads), self.cos[pos], self.sin[pos])
        self.values[i, :, pos] = (self.weights[f"layer{i}.value"] @ x).reshape(heads)
        keys, values = self.keys[i, :, : pos + 1], self.values[i, :, : pos + 1]  # (heads, pos + 1, head_dim)
        scores = np.einsum("hd,hsd->hs", query, keys) * np.float32(self.config.head_dim**-0.5)
        context = np.einsum("hs,hsd->hd", softmax(scores), values)
        return self.weights[f"layer{i}.output"] @ context.reshape(-1)

    def mlp(self, i: int, x: np.ndarray) -> np.ndarray:
        gate, up = self.weights[f"layer{i}.gate"] @ x, self.weights[f"layer{i}.up"] @ x
        return self.weights[f"layer{i}.down"] @ (silu(gate) * up)
