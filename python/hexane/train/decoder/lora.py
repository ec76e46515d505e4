"""Low-rank adapters of a decoder's linear layers (LoRA): shapes, initial values, and merging into the weights.

A layer `y = x W^T` with an adapter is `y = x W^T + (alpha / rank) (x A^T) B^T`; W stays unchanged. A starts random and
B starts at 0, so the first loss is that of W alone (Hu et al. 2021, https://arxiv.org/abs/2106.09685).
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite, sqrt

import numpy as np

from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.ops.encodings import encoding_of
from hexane.train import init
from hexane.train.decoder.config import LlamaConfig, adapters_of, layer
from hexane.train.decoder.rotary import TURNED, with_rows

LAYERS = {
    "q_proj": "self_attn.q_proj",
    "k_proj": "self_attn.k_proj",
    "v_proj": "self_attn.v_proj",
    "o_proj": "self_attn.o_proj",
    "gate_proj": "mlp.gate_proj",
    "up_proj": "mlp.up_proj",
    "down_proj": "mlp.down_proj",
}
OWN_SEED = 0x10A  # Mixed into the seed, so that adapters and weights are drawn from different streams.
# Fields before `LlamaConfig.parts` that decide the logits. The order of rotated channels and `seq` are not among them.
SIZES = ("vocab", "dim", "hidden", "layers", "heads", "kv_heads", "head_dim", "theta", "tied", "epsilon", "residual")


@dataclass(frozen=True, slots=True)
class Lora:
    """Which linear layers of a decoder have adapters. rank: inner dimension of A and B; alpha: the product B A is
    multiplied by alpha / rank; None: 2 * rank; targets: of "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj",
    "up_proj" and "down_proj", also without "_proj". A target is adapted in every layer.

    Raises Error for a rank below 1, an alpha that is not above 0, and for no targets, unknown or repeated ones.
    """

    rank: int
    alpha: float | None = None
    targets: tuple[str, ...] = tuple(LAYERS)

    def __post_init__(self) -> None:
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or self.rank < 1:
            raise _wrong("rank", repr(self.rank), "an integer from 1 on")
        if self.alpha is None:
            object.__setattr__(self, "alpha", 2.0 * self.rank)
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not (isfinite(alpha) and alpha > 0):
            raise _wrong("alpha", repr(alpha), "a number above 0")
        if isinstance(self.targets, str) or not self.targets:
            raise _wrong("targets", repr(self.targets), f"some of {', '.join(LAYERS)}")
        full = [name if str(name).endswith("_proj") else f"{name}_proj" for name in self.targets]
        for given, name in zip(self.targets, full, strict=True):
            if name not in LAYERS:
                raise _wrong("targets", repr(given), f"some of {', '.join(LAYERS)}")
        if len({*full}) != len(full):
            raise _wrong("targets", ", ".join(full), "each once")
        object.__setattr__(self, "targets", tuple(name for name in LAYERS if name in full))

    @property
    def scale(self) -> float:
        """The factor of the product B A."""
        assert self.alpha is not None
        return self.alpha / self.rank

    def shapes(self, config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """Returns shapes by name, such as `model.layers.0.self_attn.q_proj.lora_A.weight`: A (rank, in), B (out, rank).

        The target `gate_proj` is ignored if the MLP has no gate. Raises Error for a rank above the smaller dimension of
        an adapted layer, and if no target is left.
        """
        shapes: dict[str, tuple[int, ...]] = {}
        weights = config.shapes()
        targets = [target for target in self.targets if config.gated or target != "gate_proj"]
        if not targets:
            raise _wrong("targets", "gate_proj", "a layer that the model has: its MLP has no gate")
        for i in range(config.layers):
            for target in targets:
                out, into = weights[layer(i, LAYERS[target])]
                if self.rank > min(out, into):
                    raise _wrong("rank", self.rank, f"at most {min(out, into)}: {target} is ({out}, {into})")
                a, b = adapters_of(layer(i, LAYERS[target]))
                shapes[a], shapes[b] = (self.rank, into), (out, self.rank)
        return shapes

    def first(self, config: LlamaConfig, seed: int = 0) -> dict[str, Array]:
        """Returns initial adapters: A uniform in +-1 / sqrt(in), B zeros, the same numbers on every machine."""
        shapes = self.shapes(config)
        seeds = np.random.SeedSequence([seed, OWN_SEED]).generate_state(len(shapes))
        return {
            name: init.kaiming_uniform(shape, int(own), "in", "leaky_relu", sqrt(5))
            if name.endswith("lora_A.weight")
            else np.zeros(shape, np.float32)
            for (name, shape), own in zip(shapes.items(), seeds, strict=True)
        }


@dataclass(frozen=True, slots=True)
class Base:
    """The base model of adapters. path: as given by the user; sha256: of its weights, by `hash_of`."""

    path: str
    sha256: str


def checked_adapters(where: str, config: LlamaConfig, lora: Lora, adapters: Mapping[str, Array]) -> dict[str, Array]:
    """Returns the adapters in the order of `lora.shapes`. Raises Error for other names, shapes or dtypes than those of
    `lora`."""
    shapes = lora.shapes(config)
    for what, names in (("no", shapes.keys() - adapters.keys()), ("the unknown", adapters.keys() - shapes.keys())):
        if names:
            raise Error(f"{where}: got {what} adapter {min(names)!r}, need those of {', '.join(lora.targets)}")
    for name, shape in shapes.items():
        got = adapters[name]
        if got.shape != shape or got.dtype != np.float32:
            raise Error(f"{where}: {name}: got {got.dtype} of shape {got.shape}, need float32 of shape {shape}")
    return {name: adapters[name] for name in shapes}


def merge_adapters(
    config: LlamaConfig, weights: Mapping[str, Array], lora: Lora, adapters: Mapping[str, Array]
) -> dict[str, Array]:
    """Returns weights that compute the same without adapters: W + (alpha / rank) B A, rounded once to fp32.

    weights: by the names of `config.shapes()`, not modified. Raises Error if the adapters do not fit the config.
    """
    checked = checked_adapters("[train.merge_adapters]", config, lora, adapters)
    return {name: merged_weight(name, array, lora, checked) for name, array in weights.items()}


def merged_weight(name: str, weight: Array, lora: Lora, adapters: Mapping[str, Array]) -> Array:
    """Returns a weight merged with its adapter, or the same array without an adapter."""
    a, b = (adapters.get(one) for one in adapters_of(name))
    if a is None or b is None:
        return weight
    return (weight + lora.scale * (b.astype(np.float64) @ a.astype(np.float64))).astype(np.float32)


def array_of(weight: Array | Tensor) -> Array:
    """The numbers of a weight, decoded if it is stored in few bits."""
    if not isinstance(weight, Tensor):
        return weight
    array = encoding_of(weight.value).decode().node.data
    assert array is not None
    return array


def in_rope(config: LlamaConfig, adapters: Mapping[str, Array], rope: str) -> dict[str, Array]:
    """Returns the adapters for the same model with another order of rotated channels, as `with_rope` does for weights:
    rows of B are reordered for q_proj and k_proj."""
    reordered = dict(adapters)
    for i in range(config.layers):
        for target in ("q_proj", "k_proj"):
            _, b = adapters_of(layer(i, LAYERS[target]))
            if b in reordered:
                reordered[b] = with_rows(config, reordered[b], rope)
    return reordered


def hash_of(config: LlamaConfig, weights: Mapping[str, Array | Tensor]) -> str:
    """Returns the SHA-256, in hexadecimal digits, of a model's sizes and fp32 weights. The order of rotated channels
    and the file format do not change it."""

    digest = hashlib.sha256(repr([getattr(config, name) for name in SIZES]).encode())
    if parts := config.parts():
        digest.update(json.dumps(parts, sort_keys=True).encode())
    digest.update(b"rotated" if config.rope != "none" else b"plain")
    for name in config.shapes():
        array = array_of(weights[name])
        if config.rope != "none" and name.endswith(TURNED):
            array = with_rows(config, array, "half")
        digest.update(np.ascontiguousarray(array, "<f4").reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _wrong(name: str, got: object, need: str) -> Error:
    return Error(f"[train.Lora] {name}: got {got}, need {need}")
