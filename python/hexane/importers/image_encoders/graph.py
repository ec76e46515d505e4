"""The graph of an image encoder. Patches are tokens."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.graph import Array, Graph
from hexane.graph.origins import source_scope
from hexane.importers.image_encoders.config import FAMILIES, ImageEncoderConfig
from hexane.importers.image_encoders.layers import Layers

PIXELS = "pixel_values"
STATES, POOLER, LOGITS, EMBEDS = "last_hidden_state", "pooler_output", "logits", "image_embeds"
FIRST = "first_token"


def outputs_of(config: ImageEncoderConfig, pooled: bool) -> tuple[str, ...]:
    """Returns the names of the outputs that transformers has for the architecture."""
    if config.head == "WithProjection":
        return (EMBEDS, STATES)
    if config.head:
        return (LOGITS,)
    return (STATES, POOLER) if pooled else (STATES,)


def embedding_of(config: ImageEncoderConfig, pooled: bool) -> str | None:
    """Returns the name of the output that represents the whole image, or None if there is none."""
    if config.head == "WithProjection":
        return EMBEDS
    if pooled:
        return POOLER
    return FIRST if FAMILIES[config.family].kind == "vit" else None


def image_encoder(
    config: ImageEncoderConfig, weights: Mapping[str, Array | Tensor], batch: int, outputs: Sequence[str]
) -> Graph:
    """Returns a graph from pixel_values (batch, channels, size, size) fp32 to the named outputs: last_hidden_state
    (batch, tokens, dim), pooler_output and first_token (batch, dim), logits (batch, labels), image_embeds (batch,
    projection).

    weights: by the names of `read_image_encoder`."""
    makers = image_tensors(config, weights, batch)
    return hx.graph({name: makers[name]() for name in outputs}, name=config.family)


def image_tensors(
    config: ImageEncoderConfig, weights: Mapping[str, Array | Tensor], batch: int
) -> dict[str, Callable[[], Tensor]]:
    """Returns a function for each output of `image_encoder`, which builds the output."""
    return _ImageEncoder(config, weights, batch).outputs()


class _ImageEncoder(Layers):
    def __init__(self, config: ImageEncoderConfig, weights: Mapping[str, Array | Tensor], batch: int) -> None:
        super().__init__(config, weights, batch)
        self.config = config
        self.family = FAMILIES[config.family]
        self.count = config.patches**2 + len(self.family.marks)

    def repeated(self, name: str) -> Tensor:
        """Returns a learned token, repeated for each image."""
        array = self.weights[name].value.node.data
        assert array is not None, "only matrices are stored in 16 bits"
        return hx.const(np.broadcast_to(array, (self.batch, 1, self.config.dim)).copy())

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

    def outputs(self) -> dict[str, Callable[[], Tensor]]:
        x = self.layers(self.tokens())
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
        """Returns SigLIP's image vector: attention of a learned query over all tokens, then an MLP."""
        with source_scope("probe"):
            y = self.attention("probe", self.repeated("probe"), states)
            y = y + self.mlp("probe", self.norm("probe.norm", y))
            return y[:, 0]
