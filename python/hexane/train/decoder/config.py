"""The sizes of a decoder of the Llama family, and the names and shapes of its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from hexane.errors import Error

LARGEST = (1 << 31) - 1
ROPES = ("interleaved", "half", "none")
EMBEDDING = "model.embed_tokens.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The sizes of a decoder: RMS norm, rotary positions, attention, a gated MLP, and a head.

    vocab: tokens; dim: channels between layers; hidden: channels inside an MLP; heads: of queries; kv_heads: of keys
    and values, a divisor of heads (0: as many as heads); head_dim: channels of a head (0: dim / heads); seq: tokens in
    a row; theta: the base of the rotary angles; rope: the channels that are rotated together, neighbours
    ("interleaved": llama2.c's files) or those half a head apart ("half": Hugging Face's), or "none"; tied: the head is
    the embedding; epsilon: of the norms; residual: what attention and MLP add is multiplied by it.

    Raises Error for sizes that do not fit each other.
    """

    vocab: int
    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int = 0
    head_dim: int = 0
    seq: int = 256
    theta: float = 10000.0
    rope: str = "interleaved"
    tied: bool = True
    epsilon: float = 1e-5
    residual: float = 1.0

    def __post_init__(self) -> None:
        for name in ("vocab", "dim", "hidden", "layers", "heads", "seq"):
            _size(name, getattr(self, name), 1)
        for name in ("kv_heads", "head_dim"):
            _size(name, getattr(self, name), 0)
        if not self.kv_heads:
            object.__setattr__(self, "kv_heads", self.heads)
        if not self.head_dim:
            if self.dim % self.heads:
                raise _wrong("heads", self.heads, f"a divisor of dim {self.dim}, or head_dim=")
            object.__setattr__(self, "head_dim", self.dim // self.heads)
        if self.heads % self.kv_heads:
            raise _wrong("kv_heads", self.kv_heads, f"a divisor of heads {self.heads}")
        if self.head_dim % 2:
            raise _wrong("head_dim", self.head_dim, "an even number: channels are rotated in pairs")
        if self.rope not in ROPES:
            raise _wrong("rope", repr(self.rope), f"one of {', '.join(map(repr, ROPES))}")
        for name in ("theta", "epsilon", "residual"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not (isfinite(value) and value > 0):
                raise _wrong(name, repr(value), "a number above 0")

    @classmethod
    def named(cls, name: str, **changes: Any) -> "LlamaConfig":
        """One of the models of `STORIES` by its name, such as "stories110M", with other values for some fields."""
        if name not in STORIES:
            raise Error(f"[train.llama] got the model {name!r}, need {', '.join(STORIES)}, or a LlamaConfig")
        return cls(**{**STORIES[name], **changes})

    @property
    def parameters(self) -> int:
        """How many numbers the weights have; the tied head counts once."""
        return sum(prod(shape) for shape in self.shapes().values())

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The weights by Hugging Face's names, in the order in which a forward pass reads them; products (out, in)."""
        return dict(self._shapes())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        yield EMBEDDING, (self.vocab, self.dim)
        for i in range(self.layers):
            yield layer(i, "input_layernorm"), (self.dim,)
            yield layer(i, "self_attn.q_proj"), (queries, self.dim)
            yield layer(i, "self_attn.k_proj"), (keys, self.dim)
            yield layer(i, "self_attn.v_proj"), (keys, self.dim)
            yield layer(i, "self_attn.o_proj"), (self.dim, queries)
            yield layer(i, "post_attention_layernorm"), (self.dim,)
            yield layer(i, "mlp.gate_proj"), (self.hidden, self.dim)
            yield layer(i, "mlp.up_proj"), (self.hidden, self.dim)
            yield layer(i, "mlp.down_proj"), (self.dim, self.hidden)
        yield NORM, (self.dim,)
        if not self.tied:
            yield HEAD, (self.vocab, self.dim)


def layer(i: int, name: str) -> str:
    """The name of a weight of layer i."""
    return f"model.layers.{i}.{name}.weight"


def _size(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise _wrong(name, repr(value), f"an integer from {least} to {LARGEST}")


def _wrong(name: str, got: object, need: str) -> Error:
    return Error(f"[train.llama] {name}: got {got}, need {need}")


# llama2.c's models of TinyStories; they were trained with rows of `seq` tokens, and take shorter ones.
STORIES: Mapping[str, Mapping[str, Any]] = {
    "stories15M": {"vocab": 32000, "dim": 288, "hidden": 768, "layers": 6, "heads": 6, "seq": 256},
    "stories42M": {"vocab": 32000, "dim": 512, "hidden": 1376, "layers": 8, "heads": 8, "seq": 1024},
    "stories110M": {"vocab": 32000, "dim": 768, "hidden": 2048, "layers": 12, "heads": 12, "seq": 1024},
}
