"""The graph of an image encoder: patches are tokens, and each layer norms before attention and MLP."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array, Graph, constant
from hexane.graph.origins import source_scope
from hexane.importers.image_encoders.config import FAMILIES, ImageEncoderConfig

PIXELS = "pixel_values"
STATES, POOLER, LOGITS, EMBEDS = "last_hidden_state", "pooler_output", "logits", "image_embeds"
FIRST = "first_token"


def _quick_gelu(x: Tensor) -> Tensor:
    return x * hx.sigmoid(x * 1.702)


ACTIVATION: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": hx.silu,
    "gelu": hx.gelu,
    "gelu_tanh": hx.gelu_tanh,
    "quick_gelu": _quick_gelu,
    "relu": hx.relu,
    "tanh": hx.tanh,
}


def outputs_of(config: ImageEncoderConfig, pooled: bool) -> tuple[str, ...]:
    """The outputs that transformers gives for the architecture."""
    if config.head == "WithProjection":
        return (EMBEDS, STATES)
    if config.head:
        return (LOGITS,)
    return (STATES, POOLER) if pooled else (STATES,)


def embedding_of(config: ImageEncoderConfig, pooled: bool) -> str | None:
    """The output that stands for the whole image; None for a model without one."""
    if config.head == "WithProjection":
        return EMBEDS
    if pooled:
        return POOLER
    return FIRST if FAMILIES[config.family].kind == "vit" else None


def image_encoder(
    config: ImageEncoderConfig, weights: Mapping[str, Array], batch: int, outputs: Sequence[str]
) -> Graph:
    """pixel_values (batch, channels, size, size) fp32 -> outputs of these names: last_hidden_state (batch, tokens,
    dim), pooler_output and first_token (batch, dim), logits (batch, labels), image_embeds (batch, projection).

    weights: by the names of `read_image_encoder`."""
    made = _ImageEncoder(config, weights, batch)
    found = made.outputs()
    return hx.graph({name: found[name]() for name in outputs}, name=config.family)


class _ImageEncoder:
    def __init__(self, config: ImageEncoderConfig, weights: Mapping[str, Array], batch: int) -> None:
        self.config, self.arrays, self.batch = config, weights, batch
        self.weights = {name: Tensor(constant(one)) for name, one in weights.items()}
        self.family = FAMILIES[config.family]
        self.count = config.patches**2 + len(self.family.marks)

    def linear(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            return hx.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            gamma, beta = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
            return hx.layer_norm(x, gamma, beta, epsilon=self.config.epsilon)

    def repeated(self, name: str) -> Tensor:
        """A learned token, for each image."""
        return hx.const(np.broadcast_to(self.arrays[name], (self.batch, 1, self.config.dim)).copy())

    def tokens(self) -> Tensor:
        c = self.config
        with source_scope("patch"):
            x = hx.input(PIXELS, (self.batch, c.channels, c.size, c.size))
            strides = (c.patch, c.patch)
            x = hx.conv(x, self.weights["patch.weight"], self.weights.get("patch.bias"), strides=strides)
            x = hx.transpose(hx.reshape(x, shape=(self.batch, c.dim, c.patches**2)), perm=(0, 2, 1))
            marks = [self.repeated(name) for name in self.family.marks]
            x = hx.concat(*marks, x, axis=1) if marks else x
            x = x + self.weights["positions"]
        return self.norm("first", x) if "first" in self.family.names else x

    def attention(self, name: str, queries: Tensor, x: Tensor) -> Tensor:
        c = self.config

        def heads(part: str, y: Tensor) -> Tensor:
            y = self.linear(f"{name}.{part}", y)
            return hx.transpose(hx.reshape(y, shape=(self.batch, y.shape[1], c.heads, -1)), perm=(0, 2, 1, 3))

        y = hx.scaled_dot_product_attention(heads("query", queries), heads("key", x), heads("value", x))
        y = hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=(self.batch, queries.shape[1], c.dim))
        return self.linear(f"{name}.out", y)

    def mlp(self, name: str, x: Tensor) -> Tensor:
        y = ACTIVATION[self.config.activation](self.linear(f"{name}.up", x))
        return self.linear(f"{name}.down", y)

    def outputs(self) -> dict[str, Callable[[], Tensor]]:
        x = self.tokens()
        for i in range(self.config.layers):
            name = f"layer.{i}"
            with source_scope(name):
                y = self.norm(f"{name}.before", x)
                x = x + self.attention(name, y, y)
                x = x + self.mlp(name, self.norm(f"{name}.after", x))
        if self.family.kind == "clip":
            return {
                STATES: lambda: x,
                POOLER: lambda: self.norm("last", x[:, 0]),
                EMBEDS: lambda: self.linear("head", self.norm("last", x[:, 0])),
            }
        states = self.norm("last", x)
        if self.family.kind == "siglip":
            return {STATES: lambda: states, POOLER: lambda: self.probed(states)}
        return {
            STATES: lambda: states,
            POOLER: lambda: hx.tanh(self.linear("pooler", states[:, 0])),
            LOGITS: lambda: self.labels(states),
            FIRST: lambda: states[:, 0],
        }

    def labels(self, states: Tensor) -> Tensor:
        if self.config.head != "ForImageClassificationWithTeacher":
            return self.linear("head", states[:, 0])
        return (self.linear("head", states[:, 0]) + self.linear("teacher", states[:, 1])) * 0.5

    def probed(self, states: Tensor) -> Tensor:
        """SigLIP: a learned query reads all tokens."""
        with source_scope("probe"):
            y = self.attention("probe", self.repeated("probe"), states)
            y = y + self.mlp("probe", self.norm("probe.norm", y))
            return y[:, 0]
