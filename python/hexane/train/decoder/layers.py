"""The layers of a decoder, shared by the graph of whole texts and the graph of single tokens."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph.origins import source_scope
from hexane.train.decoder.config import EMBEDDING, HEAD, NORM, LlamaConfig, adapters_of, bias_of, layer
from hexane.train.decoder.rotary import rotary_angles

ACTIVATION: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": hx.silu,
    "gelu": hx.gelu,
    "gelu_tanh": hx.gelu_tanh,
    "relu": hx.relu,
}


def rotary_tables(config: LlamaConfig, local: bool) -> tuple[Tensor, Tensor]:
    """Returns the cosines and sines of `rotary_angles` as constants."""
    cos, sin = map(hx.const, rotary_angles(config, local))
    return cos, sin


class Layers(ABC):
    """Builds the layers. A subclass fixes how tokens lie in the tensors: it has `attention`, `mask` and `angles`
    (cosines and sines; the key is true for layers of `config.local`). adapters: by name; a layer may have none."""

    angles: dict[bool, tuple[Tensor, Tensor]]

    def __init__(
        self,
        config: LlamaConfig,
        weights: Mapping[str, Tensor],
        adapters: Mapping[str, Tensor] | None = None,
        scale: float = 1.0,
    ) -> None:
        self.config, self.weights = config, weights
        self.adapters, self.scale = adapters or {}, scale

    @abstractmethod
    def attention(self, i: int, x: Tensor) -> Tensor:
        """The term that the attention of layer i adds to x."""

    @abstractmethod
    def mask(self, local: bool) -> Tensor | None:
        """Returns a mask that is true where a query sees a key. None stands for a plain causal mask."""

    def embedded(self, tokens: Tensor, places: Tensor | None) -> Tensor:
        """Returns the embeddings of the tokens. places: embeddings of their learned positions."""
        c = self.config
        with source_scope(EMBEDDING.removesuffix(".weight")):
            x = hx.gather(self.weights[EMBEDDING], tokens)
            x = x if c.embedding_scale == 1 else x * c.embedding_scale
            return x if places is None else x + places

    def logits(self, x: Tensor) -> Tensor:
        x, cap = self.norm(NORM, x), self.config.logit_cap
        with source_scope(HEAD.removesuffix(".weight")):
            y = hx.linear(x, self.weights[EMBEDDING if self.config.tied else HEAD])
            y = capped(y, cap) if cap else y
            return y if self.config.logit_divisor == 1 else y / self.config.logit_divisor

    def norm(self, name: str, x: Tensor) -> Tensor:
        c = self.config
        with source_scope(name.removesuffix(".weight")):
            if c.norm == "layer":
                return hx.layer_norm(x, self.weights[name], self.weights[bias_of(name)], epsilon=c.epsilon)
            return self._rms(name, x)

    def _rms(self, name: str, x: Tensor) -> Tensor:
        gamma = self.weights[name]
        return hx.rms_norm(x, gamma + 1.0 if self.config.norm == "rms+1" else gamma, epsilon=self.config.epsilon)

    def layer(self, i: int, x: Tensor) -> Tensor:
        c = self.config
        before_mlp = "pre_feedforward_layernorm" if c.post_norms else "post_attention_layernorm"
        with source_scope(f"model.layers.{i}.self_attn"):
            y = self.attention(i, self.norm(layer(i, "input_layernorm"), x) if c.pre_norms else x)
            y = self.norm(layer(i, "post_attention_layernorm"), y) if c.post_norms else y
            read = x
            x = self.add(x, y)
        with source_scope(f"model.layers.{i}.mlp"):
            y = read if c.parallel else x
            y = self.mlp(i, self.norm(layer(i, before_mlp), y) if c.pre_norms else y)
            y = self.norm(layer(i, "post_feedforward_layernorm"), y) if c.post_norms else y
            return self.add(x, y)

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        return x + (y if self.config.residual == 1 else y * self.config.residual)

    def projected(self, i: int, name: str, x: Tensor) -> Tensor:
        """Returns the queries, keys or values of all heads, with all channels in the last axis. name: of the layer that
        computes them, such as "q_proj"."""
        y = self.product(i, f"self_attn.{name}", x)
        if not self.config.joint_norm or name == "v_proj":
            return y
        norm = layer(i, f"self_attn.{name[0]}_norm")
        with source_scope(norm.removesuffix(".weight")):
            return self._rms(norm, y)

    def placed(self, i: int, norm: str, y: Tensor) -> Tensor:
        """Returns queries or keys, with channels last, after the head's norm and the rotation, if the layer has a norm
        or a rotation."""
        c = self.config
        if c.head_norm:
            with source_scope(f"model.layers.{i}.self_attn.{norm}"):
                y = self._rms(layer(i, f"self_attn.{norm}"), y)
        if c.rope == "none" or i in c.unrotated:
            return y
        (cos, sin), pairs = self.angles[i in c.local], c.rope == "interleaved"
        if c.rotated_dim == c.head_dim:
            return hx.rotary_embedding(y, cos, sin, interleaved=pairs)
        rotated, rest = hx.split(y, axis=-1, split_sizes=(c.rotated_dim, c.head_dim - c.rotated_dim))
        return hx.concat(hx.rotary_embedding(rotated, cos, sin, interleaved=pairs), rest, axis=-1)

    def attend(self, i: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        c, mask = self.config, self.mask(i in self.config.local)
        if not c.attention_cap:
            return hx.scaled_dot_product_attention(
                query, key, value, mask, scale=c.attention_scale, causal=mask is None
            )
        assert mask is not None
        scores = hx.matmul(query, key, transpose_y=True) * (c.attention_scale or c.head_dim**-0.5)
        hidden = hx.const(np.array(-np.inf, np.float32))
        return hx.matmul(hx.softmax(hx.select(mask, capped(scores, c.attention_cap), hidden)), value)

    def mlp(self, i: int, x: Tensor) -> Tensor:
        active = ACTIVATION[self.config.activation]
        if not self.config.gated:
            return self.product(i, "mlp.down_proj", active(self.product(i, "mlp.up_proj", x)))
        gate, up = (self.product(i, f"mlp.{name}", x) for name in ("gate_proj", "up_proj"))
        return self.product(i, "mlp.down_proj", active(gate) * up)

    def product(self, i: int, name: str, x: Tensor) -> Tensor:
        weight = layer(i, name)
        a, b = adapters_of(weight)
        with source_scope(weight.removesuffix(".weight")):
            y = hx.linear(x, self.weights[weight], self.weights.get(bias_of(weight)))
            if a not in self.adapters:
                return y
            return y + hx.linear(hx.linear(x, self.adapters[a]) * self.scale, self.adapters[b])


def capped(x: Tensor, cap: float) -> Tensor:
    """Returns cap * tanh(x / cap): close to x for small values, and always between -cap and cap."""
    return hx.tanh(x * (1 / cap)) * cap
