"""The sizes of a decoder, the parts of its layers, and the names and shapes of its weights."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from math import isfinite, prod
from typing import Any

from hexane.errors import Error

LARGEST = (1 << 31) - 1
ROPES = ("interleaved", "half", "none")
SCALINGS = ("linear", "llama3", "yarn", "factors")
NORMS = ("rms", "rms+1", "layer")
ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu")
EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.embed_positions.weight"
NORM = "model.norm.weight"
HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """A change of the rotary angles for texts longer than the first training's texts.

    kind: "linear": all angles are divided by `factor`. "llama3": angles with wavelengths above `original` / `low`
    tokens are divided, and angles with wavelengths below `original` / `high` are not. "yarn": angles with fewer than
    `low` turns in `original` tokens are divided, and angles with more than `high` turns are not (`whole`: the two
    limits are rounded to whole channels). Between the limits, both kinds use a mean of the divided and the undivided
    angle. "factors": angle i is divided by `factors[i]`. attention: cosines and sines are multiplied by it.

    Raises Error for an unknown kind, or a number out of its range.
    """

    kind: str
    factor: float = 1.0
    original: int = 0
    low: float = 1.0
    high: float = 4.0
    whole: bool = True
    factors: tuple[float, ...] = ()
    attention: float = 1.0

    def __post_init__(self) -> None:
        if self.kind not in SCALINGS:
            raise _wrong("scaling", repr(self.kind), f"one of {', '.join(map(repr, SCALINGS))}")
        for name in ("factor", "low", "high", "attention"):
            _positive(f"scaling: {name}", getattr(self, name))
        _size("scaling: original", self.original, 2 if self.kind in ("llama3", "yarn") else 0)
        _flag("scaling: whole", self.whole)
        if self.kind == "llama3" and self.low >= self.high:
            raise _wrong("scaling: low", self.low, f"less than high {self.high}")
        if not isinstance(self.factors, (tuple, list)):
            raise _wrong("scaling: factors", repr(self.factors), "a list of numbers")
        for one in self.factors:
            _positive("scaling: factors", one)
        object.__setattr__(self, "factors", tuple(self.factors))


@dataclass(frozen=True, slots=True)
class LlamaConfig:
    """The config of a decoder. By default: RMS norm, rotary positions, attention, a gated MLP, and a head.

    vocab: tokens; dim: channels between layers; hidden: channels inside an MLP; heads: of queries; kv_heads: of keys
    and values, a divisor of heads (0: as many as heads); head_dim: channels of a head (0: dim / heads); seq: most
    tokens of a text; theta: the base of the rotary angles; rope: which channels are rotated as a pair: neighbours
    ("interleaved", as in llama2.c's files), channels half a head apart ("half", as in Hugging Face's), or "none"; tied:
    the head's weight is the embedding; epsilon: of the norms; residual: factor of the outputs of attention and MLP
    before they are added to x.

    Options of other families: norm: "rms", "rms+1" (1 is added to the weights), or "layer" (LayerNorm, with biases);
    post_norms: the outputs of attention and MLP are normed too; head_norm: an RMS norm of each head's queries and keys;
    qkv_bias, out_bias, mlp_bias: these linear layers have biases; gated: the MLP has a gate; activation: "silu",
    "gelu", "gelu_tanh" or "relu"; parallel: attention and MLP read the same x; positions: rows of a table of learned
    positions (0: none); rotary_dim: how many of a head's first channels are rotated (0: all); scaling: of the rotary
    angles; unrotated: layers without rotation; window: how many last tokens the layers in `local` attend to (0: all);
    local_theta: the base of the angles in these layers, without `scaling` (0: as in the other layers); embedding_scale:
    factor of the embeddings; attention_scale: factor of the scores (0: 1 / sqrt(head_dim)); attention_cap, logit_cap:
    scores and logits become cap * tanh(x / cap) (0: no cap); logit_divisor: logits are divided by it; pre_norms:
    attention and MLP read normed values; joint_norm: an RMS norm of the queries of all heads together, and of the keys.

    Raises Error for a value out of its range, and for sizes that contradict each other.
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
    norm: str = "rms"
    post_norms: bool = False
    head_norm: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    gated: bool = True
    activation: str = "silu"
    parallel: bool = False
    positions: int = 0
    rotary_dim: int = 0
    scaling: RopeScaling | None = None
    unrotated: tuple[int, ...] = ()
    window: int = 0
    local: tuple[int, ...] = ()
    local_theta: float = 0.0
    embedding_scale: float = 1.0
    attention_scale: float = 0.0
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    logit_divisor: float = 1.0
    pre_norms: bool = True
    joint_norm: bool = False

    def __post_init__(self) -> None:
        for name in ("vocab", "dim", "hidden", "layers", "heads", "seq"):
            _size(name, getattr(self, name), 1)
        for name in ("kv_heads", "head_dim", "positions", "rotary_dim", "window"):
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
        for name in ("theta", "epsilon", "residual", "embedding_scale", "logit_divisor"):
            _positive(name, getattr(self, name))
        self._check_parts()

    def _check_parts(self) -> None:
        for name in (
            "post_norms",
            "pre_norms",
            "joint_norm",
            "head_norm",
            "qkv_bias",
            "out_bias",
            "mlp_bias",
            "gated",
            "parallel",
        ):
            _flag(name, getattr(self, name))
        for name, known in (("norm", NORMS), ("activation", ACTIVATIONS)):
            if getattr(self, name) not in known:
                raise _wrong(name, repr(getattr(self, name)), f"one of {', '.join(map(repr, known))}")
        for name in ("local_theta", "attention_scale", "attention_cap", "logit_cap"):
            if getattr(self, name) != 0:
                _positive(name, getattr(self, name))
        if self.positions and self.positions < self.seq:
            raise _wrong("positions", self.positions, f"0, or at least seq {self.seq}")
        if self.rotary_dim % 2 or self.rotary_dim > self.head_dim:
            raise _wrong("rotary_dim", self.rotary_dim, f"an even number up to head_dim {self.head_dim}")
        if isinstance(self.scaling, Mapping):
            object.__setattr__(self, "scaling", _scaling(self.scaling))
        if self.scaling is not None and not isinstance(self.scaling, RopeScaling):
            raise _wrong("scaling", repr(self.scaling), "a RopeScaling, or None")
        if (
            self.scaling is not None
            and self.scaling.kind == "factors"
            and len(self.scaling.factors) != self.rotated_dim // 2
        ):
            raise _wrong("scaling: factors", len(self.scaling.factors), f"{self.rotated_dim // 2}: one for each angle")
        if self.scaling is not None and self.scaling.kind == "yarn" and self.theta <= 1:
            raise _wrong("theta", self.theta, "more than 1: angles are scaled by yarn")
        for name in ("unrotated", "local"):
            given = getattr(self, name)
            whole = isinstance(given, (tuple, list)) and all(type(i) is int and 0 <= i < self.layers for i in given)
            if not whole or len(set(given)) != len(given):
                raise _wrong(name, repr(given), f"some of the layers 0 to {self.layers - 1}, each once")
            object.__setattr__(self, name, tuple(sorted(given)))
        if self.head_norm and self.joint_norm:
            raise _wrong("joint_norm", True, "false with head_norm")
        if self.local and not self.window:
            raise _wrong("window", 0, "a number of tokens for the layers in `local`")

    @classmethod
    def named(cls, name: str, **changes: Any) -> "LlamaConfig":
        """Returns the config of a model of `STORIES`, such as "stories110M". changes: fields with other values."""
        if name not in STORIES:
            raise Error(f"[train.llama] got the model {name!r}, need {', '.join(STORIES)}, or a LlamaConfig")
        return cls(**{**STORIES[name], **changes})

    @property
    def parameters(self) -> int:
        """The number of weights; a tied head counts once."""
        return sum(prod(shape) for shape in self.shapes().values())

    @property
    def rotated_dim(self) -> int:
        """The number of rotated channels of a head, in layers with rotation."""
        return self.rotary_dim or self.head_dim

    def parts(self) -> dict[str, Any]:
        """Returns the fields after `residual` that differ from the Llama family's values, as JSON values."""
        return {one.name: _plain(getattr(self, one.name)) for one in PARTS if getattr(self, one.name) != one.default}

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the weights by Hugging Face's names, in the order of a forward pass. Matrices are (out,
        in)."""
        return dict(self._shapes())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield EMBEDDING, (self.vocab, self.dim)
        if self.positions:
            yield POSITIONS, (self.positions, self.dim)
        for i in range(self.layers):
            yield from self.of_layer(i)
        yield from self._norm(NORM)
        if not self.tied:
            yield HEAD, (self.vocab, self.dim)

    def of_layer(self, i: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yields names and shapes of the weights of layer i."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        if self.pre_norms:
            yield from self._norm(layer(i, "input_layernorm"))
        yield from _product(layer(i, "self_attn.q_proj"), queries, self.dim, self.qkv_bias)
        yield from _product(layer(i, "self_attn.k_proj"), keys, self.dim, self.qkv_bias)
        yield from _product(layer(i, "self_attn.v_proj"), keys, self.dim, self.qkv_bias)
        if self.head_norm or self.joint_norm:
            yield layer(i, "self_attn.q_norm"), (queries if self.joint_norm else self.head_dim,)
            yield layer(i, "self_attn.k_norm"), (keys if self.joint_norm else self.head_dim,)
        yield from _product(layer(i, "self_attn.o_proj"), self.dim, queries, self.out_bias)
        if self.pre_norms or self.post_norms:
            yield from self._norm(layer(i, "post_attention_layernorm"))
        if self.pre_norms and self.post_norms:
            yield from self._norm(layer(i, "pre_feedforward_layernorm"))
        if self.gated:
            yield from _product(layer(i, "mlp.gate_proj"), self.hidden, self.dim, self.mlp_bias)
        yield from _product(layer(i, "mlp.up_proj"), self.hidden, self.dim, self.mlp_bias)
        yield from _product(layer(i, "mlp.down_proj"), self.dim, self.hidden, self.mlp_bias)
        if self.post_norms:
            yield from self._norm(layer(i, "post_feedforward_layernorm"))

    def _norm(self, name: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        yield name, (self.dim,)
        if self.norm == "layer":
            yield bias_of(name), (self.dim,)


def _product(name: str, out: int, into: int, bias: bool) -> Iterator[tuple[str, tuple[int, ...]]]:
    yield name, (out, into)
    if bias:
        yield bias_of(name), (out,)


def bias_of(weight: str) -> str:
    """Returns the name of the bias that belongs to a weight."""
    return weight.removesuffix(".weight") + ".bias"


def layer(i: int, name: str) -> str:
    """Returns the full name of a weight of layer i."""
    return f"model.layers.{i}.{name}.weight"


def _size(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
        raise _wrong(name, repr(value), f"an integer from {least} to {LARGEST}")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise _wrong(name, repr(value), "True or False")


def _positive(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (isfinite(value) and value > 0):
        raise _wrong(name, repr(value), "a number above 0")


def _scaling(given: Mapping[str, Any]) -> RopeScaling:
    known = {one.name for one in fields(RopeScaling)}
    if "kind" not in given or not given.keys() <= known:
        raise _wrong("scaling", ", ".join(sorted(given)), f"kind, and some of {', '.join(sorted(known))}")
    return RopeScaling(**given)


def _plain(value: Any) -> Any:
    if isinstance(value, RopeScaling):
        return {**asdict(value), "factors": list(value.factors)}
    return list(value) if isinstance(value, tuple) else value


def _wrong(name: str, got: object, need: str) -> Error:
    return Error(f"[train.llama] {name}: got {got}, need {need}")


_ALL = fields(LlamaConfig)
PARTS = _ALL[[one.name for one in _ALL].index("residual") + 1 :]

# llama2.c's models of TinyStories. The models were trained with texts of `seq` tokens; shorter texts work too.
STORIES: Mapping[str, Mapping[str, Any]] = {
    "stories15M": {"vocab": 32000, "dim": 288, "hidden": 768, "layers": 6, "heads": 6, "seq": 256},
    "stories42M": {"vocab": 32000, "dim": 512, "hidden": 1376, "layers": 8, "heads": 8, "seq": 1024},
    "stories110M": {"vocab": 32000, "dim": 768, "hidden": 2048, "layers": 12, "heads": 12, "seq": 1024},
}


def adapters_of(weight: str) -> tuple[str, str]:
    """Returns the names of the adapters A and B of a weight."""
    stem = weight.removesuffix(".weight")
    return f"{stem}.lora_A.weight", f"{stem}.lora_B.weight"
