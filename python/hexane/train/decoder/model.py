"""The graph of a decoder for training: from tokens to logits and loss. The weights or the adapters are params."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

import ml_dtypes
import numpy as np

from hexane import build as hx
from hexane.autograd.checkpoint import checkpoint
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array
from hexane.graph.origins import source_scope
from hexane.train import init
from hexane.train.decoder.config import HEAD, POSITIONS, LlamaConfig
from hexane.train.decoder.encoded_base import check_base, encoded_base
from hexane.train.decoder.layers import Layers, rotary_tables
from hexane.train.decoder.lora import Lora

DEVIATION = 0.02  # deviation of random weights, divided by sqrt(2 * layers) for projections added to the residual
ADDED = ("self_attn.o_proj", "mlp.down_proj")


@dataclass(frozen=True, slots=True)
class Llama:
    """A decoder as tensors. tokens, labels: inputs of int32 (batch, seq); logits: (batch, seq, vocab); loss: the mean
    cross entropy, () in fp32, ignoring labels of -100; params: the trained tensors by name: the weights of
    `config.shapes()`, or the adapters of `lora.shapes(config)`. With adapters `frozen` holds the weights."""

    config: LlamaConfig
    tokens: Tensor
    labels: Tensor
    logits: Tensor
    loss: Tensor
    params: dict[str, Tensor]
    lora: Lora | None = None
    frozen: dict[str, Tensor] = field(default_factory=dict)


def llama(
    config: LlamaConfig | str,
    *,
    weights: Mapping[str, Array | Tensor] | None = None,
    batch: int = 1,
    seed: int = 0,
    checkpoints: bool = False,
    lora: Lora | None = None,
    compress: str | None = None,
) -> Llama:
    """Returns a decoder as tensors of a graph. The decoder's training step is `hx.train.step(model.loss,
    list(model.params.values()), ..)`, its inference `hx.graph({"logits": model.logits})`.

    config: a config, or a name such as "stories110M". weights: fp32 arrays with the names and shapes of
    `config.shapes()`. By default norms are ones (zeros for "rms+1"), biases are zeros, and matrices are random: normal
    with the deviation 0.02, or 0.02 / sqrt(2 * layers) for projections added to the residual. batch: rows of
    `config.seq` tokens in a call. checkpoints: the backward pass recomputes each layer, to save memory. lora: low-rank
    adapters are the params. With lora, weights must be given: constants without gradients. compress: with lora, the
    encoding of these weights, such as "int8" or "blockwise4:b32", which the backward pass reads directly. With lora,
    weights may also be encoded already, as tensors from `read_stored`.

    Raises Error for an unknown name, missing or extra weights, wrong shapes, a rank beyond the sizes of a layer, a
    compression without lora, lora without weights, and an encoding without a backward kernel.
    """
    sizes = LlamaConfig.named(config) if isinstance(config, str) else config
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
        raise Error(f"[train.llama] batch: got {batch!r}, need an integer from 1 on")
    if lora is not None and weights is None:
        raise Error("[train.llama] lora: got no weights, need the weights of the adapted model")
    if lora is None:
        params = _params(sizes, seed, weights, compress)
        adapters = {}
    else:
        assert weights is not None
        params = _frozen(sizes, weights, compress)
        adapters = {name: hx.param(name, a) for name, a in lora.first(sizes, seed).items()}
    tokens = hx.input("tokens", (batch, sizes.seq), "int32")
    labels = hx.input("labels", (batch, sizes.seq), "int32")
    decoder = _Decoder(sizes, params, adapters, 1.0 if lora is None else lora.scale)
    x = decoder.embedded(tokens, None if not sizes.positions else params[POSITIONS][: sizes.seq])
    for i in range(sizes.layers):
        x = checkpoint(partial(decoder.layer, i), x) if checkpoints else decoder.layer(i, x)
    logits = decoder.logits(x)
    with source_scope(HEAD.removesuffix(".weight")):
        loss = hx.cross_entropy(logits, labels)
    if lora is not None:
        return Llama(sizes, tokens, labels, logits, loss, adapters, lora, params)
    return Llama(sizes, tokens, labels, logits, loss, params)


def _params(
    config: LlamaConfig, seed: int, weights: Mapping[str, Array | Tensor] | None, compress: str | None
) -> dict[str, Tensor]:
    if compress is not None:
        raise Error("[train.llama] compress: got it without lora, need weights that are not trained")
    params: dict[str, Tensor] = {}
    for name, given in (initial_weights(config, seed) if weights is None else checked_weights(config, weights)).items():
        if isinstance(given, Tensor):
            raise Error(f"[train.llama] {name}: got a tensor without lora, need an array: it is trained")
        params[name] = hx.param(name, given)
    return params


def _frozen(config: LlamaConfig, weights: Mapping[str, Array | Tensor], compress: str | None) -> dict[str, Tensor]:
    frozen = checked_weights(config, weights)
    if compress is not None:
        frozen = encoded_base(config, frozen, compress)
    else:
        for name, given in frozen.items():
            check_base(name, given)
    return {name: given if isinstance(given, Tensor) else hx.const(given) for name, given in frozen.items()}


def initial_weights(config: LlamaConfig, seed: int = 0) -> dict[str, Array]:
    """Returns random initial weights by name, the same numbers on every machine."""
    seeds = np.random.SeedSequence(seed).generate_state(len(config.shapes()))
    return {
        name: _drawn(config, name, shape, int(own))
        for (name, shape), own in zip(config.shapes().items(), seeds, strict=True)
    }


def _drawn(config: LlamaConfig, name: str, shape: tuple[int, ...], seed: int) -> Array:
    if len(shape) == 1:
        zero = name.endswith(".bias") or config.norm == "rms+1"
        return np.zeros(shape, np.float32) if zero else np.ones(shape, np.float32)
    added = name.removesuffix(".weight").endswith(ADDED)
    return init.normal(shape, seed, deviation=DEVIATION / (2 * config.layers) ** 0.5 if added else DEVIATION)


class _Decoder(Layers):
    """The layers for whole rows of tokens."""

    def __init__(
        self, config: LlamaConfig, weights: Mapping[str, Tensor], adapters: Mapping[str, Tensor], scale: float
    ) -> None:
        super().__init__(config, weights, adapters, scale)
        self.angles = {local: rotary_tables(config, local) for local in ((False, True) if config.local else (False,))}

    def mask(self, local: bool) -> Tensor | None:
        c = self.config
        near = local and c.window < c.seq
        if not near and not c.attention_cap:
            return None  # the attention's causal flag replaces the mask
        place = np.arange(c.seq)
        distance = place[:, None] - place
        return hx.const((distance >= 0) & (distance < (c.window if near else c.seq)))

    def attention(self, i: int, x: Tensor) -> Tensor:
        """Heads have the axes (batch, heads, seq, head_dim). If several query heads share a key head, the axes are
        (batch, kv heads, query heads per kv head, seq, head_dim), and keys are broadcast over the third axis."""
        c = self.config
        shared = c.kv_heads < c.heads
        front, back = ((0, 2, 3, 1, 4), (0, 3, 1, 2, 4)) if shared else ((0, 2, 1, 3), (0, 2, 1, 3))

        def heads(name: str, of_each: int) -> Tensor:
            y = self.projected(i, name, x)
            parts = (c.kv_heads, of_each) if shared else (c.heads,)
            return hx.transpose(hx.reshape(y, shape=(*x.shape[:2], *parts, c.head_dim)), perm=front)

        query = self.placed(i, "q_norm", heads("q_proj", c.heads // c.kv_heads))
        key = self.placed(i, "k_norm", heads("k_proj", 1))
        y = self.attend(i, query, key, heads("v_proj", 1))
        joined = hx.reshape(hx.transpose(y, perm=back), shape=(*x.shape[:2], c.heads * c.head_dim))
        return self.product(i, "self_attn.o_proj", joined)


Weight = TypeVar("Weight", bound="Array | Tensor")


def checked_weights(config: LlamaConfig, weights: Mapping[str, Weight], in_16_bits: bool = False) -> dict[str, Weight]:
    """Returns the weights in the order of the config. in_16_bits: arrays may be in bf16 or fp16. Raises Error if a
    name, shape or dtype differs."""
    shapes = config.shapes()
    _none("missing", set(shapes) - set(weights))
    _none("not the model's", set(weights) - set(shapes))
    for name, shape in shapes.items():
        got = weights[name]
        kind = got.dtype.numpy if isinstance(got, Tensor) else got.dtype
        is_narrow = in_16_bits and not isinstance(got, Tensor) and kind in (np.float16, ml_dtypes.bfloat16)
        if got.shape != shape or not (kind == np.float32 or is_narrow):
            raise Error(f"[train.llama] {name}: got {got.dtype} of shape {got.shape}, need float32 of shape {shape}")
    return {name: weights[name] for name in shapes}


def _none(what: str, names: Iterable[str]) -> None:
    listed = sorted(names)
    if listed:
        shown = ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
        raise Error(f"[train.llama] weights: got names that are {what}: {shown}; need those of config.shapes()")
