"""The graphs of Whisper: its encoder, its decoder for a whole text, and its decoder for one token."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.origins import source_scope
from hexane.importers.encoders.graph import HIDDEN, STATES
from hexane.importers.image_encoders.layers import Layers
from hexane.importers.speech.config import EPSILON, SpeechConfig

FEATURES, IDS, SOUND, LOGITS = "input_features", "decoder_input_ids", "encoder_hidden_states", "logits"
TOKEN, POSITION = "token", "position"
ENCODER, DECODER = "encoder", "decoder"


@dataclass(frozen=True, slots=True)
class _Half:
    """The sizes of the encoder or the decoder, as `Layers` reads them."""

    dim: int
    layers: int
    heads: int
    activation: str
    epsilon: float = EPSILON


def weights_of(half: str, weights: Mapping[str, Array | Tensor]) -> dict[str, Array | Tensor]:
    """Returns the weights of the encoder or the decoder, without the prefix of their names."""
    return {name.removeprefix(f"{half}."): one for name, one in weights.items() if name.startswith(f"{half}.")}


def speech_encoder(config: SpeechConfig, weights: Mapping[str, Array | Tensor], batch: int) -> Graph:
    """Returns a graph from input_features (batch, mels, frames) fp32 to last_hidden_state (batch, positions, dim).

    weights: by the names of `read_speech`."""
    c = config
    layers = Layers(_Half(c.dim, c.encoder_layers, c.encoder_heads, c.activation), weights_of(ENCODER, weights), batch)
    x = hx.input(FEATURES, (batch, c.mels, c.frames))
    for name, stride in (("conv1", 1), ("conv2", 2)):
        with source_scope(name):
            x = hx.gelu(
                hx.conv(x, layers.weights[f"{name}.weight"], layers.weights[f"{name}.bias"], strides=stride, pad=1)
            )
    with source_scope("positions"):
        x = hx.transpose(x, perm=(0, 2, 1)) + layers.weights["positions"]
    return hx.graph({STATES: layers.norm("last", layers.layers(x))}, name="whisper_encoder")


def speech_decoder(config: SpeechConfig, weights: Mapping[str, Array | Tensor], batch: int, count: int) -> Graph:
    """Returns a graph from decoder_input_ids (batch, count) int32 and encoder_hidden_states (batch, positions, dim) to
    the logits (batch, count, vocab) after each token. Raises Error for more tokens than the model allows."""
    c = config
    if not 1 <= count <= c.tokens or batch < 1:
        raise Error(f"[speech] {IDS}: got {batch}x{count}, need a batch from 1 on and 1 to {c.tokens} tokens")
    layers = Layers(_decoder_half(c), weights_of(DECODER, weights), batch)
    ids = hx.input(IDS, (batch, count), "int32")
    sound = hx.input(SOUND, (batch, c.positions, c.dim))
    with source_scope("embeddings"):
        x = hx.gather(layers.weights["tokens"], ids) + layers.weights["positions"][:count]
    later = np.triu(np.full((count, count), HIDDEN, np.float32), 1).reshape(1, 1, count, count)
    hidden = hx.const(later) if count > 1 else None
    for i in range(c.decoder_layers):
        name = f"layer.{i}"
        with source_scope(name):
            y = layers.norm(f"{name}.before", x)
            x = x + layers.attention(name, y, y, hidden)
            x = x + layers.attention(f"{name}.cross", layers.norm(f"{name}.cross.before", x), sound)
            x = x + layers.mlp(name, layers.norm(f"{name}.after", x))
    return hx.graph({LOGITS: _logits(c, layers, x)}, name="whisper_decoder")


def sound_memory(config: SpeechConfig, weights: Mapping[str, Array | Tensor]) -> Graph:
    """Returns a graph from encoder_hidden_states (1, positions, dim) to each layer's keys and values of the audio
    (heads, positions, channels of a head), which `one_token` reads."""
    c = config
    layers = Layers(_decoder_half(c), weights_of(DECODER, weights), 1)
    sound = hx.reshape(hx.input(SOUND, (1, c.positions, c.dim)), shape=(c.positions, c.dim))
    outputs = {}
    for i in range(c.decoder_layers):
        for part, name in (("key", key_name(i)), ("value", value_name(i))):
            y = hx.reshape(layers.linear(f"layer.{i}.cross.{part}", sound), shape=(c.positions, c.decoder_heads, -1))
            outputs[name] = hx.transpose(y, perm=(1, 0, 2))
    return hx.graph(outputs, name="whisper_memory")


def key_name(layer: int) -> str:
    return f"layer.{layer}.sound_keys"


def value_name(layer: int) -> str:
    return f"layer.{layer}.sound_values"


def one_token(config: SpeechConfig, weights: Mapping[str, Array | Tensor]) -> Graph:
    """Returns a graph from token and position (1,) int32 and the results of `sound_memory` to logits (1, vocab). The
    earlier positions must have run before, in order.

    Each layer has two states (heads, tokens, channels of a head). A run writes one row of each state.
    """
    return hx.graph({LOGITS: _Step(config, weights).logits()}, name="whisper_token")


def _decoder_half(c: SpeechConfig) -> _Half:
    return _Half(c.dim, c.decoder_layers, c.decoder_heads, c.activation)


def _logits(c: SpeechConfig, layers: Layers, x: Tensor) -> Tensor:
    x = layers.norm("last", x)
    with source_scope("head"):
        return hx.linear(x, layers.weights["tokens" if c.tied else "head.weight"])


class _Step(Layers):
    """The decoder for one token. x is (1, dim)."""

    def __init__(self, config: SpeechConfig, weights: Mapping[str, Array | Tensor]) -> None:
        super().__init__(_decoder_half(config), weights_of(DECODER, weights), 1)
        self.config = config
        self.token, self.position = (hx.input(name, (1,), "int32") for name in (TOKEN, POSITION))
        self.seen = hx.const(np.arange(config.tokens, dtype=np.int32)) <= self.position

    def logits(self) -> Tensor:
        with source_scope("embeddings"):
            x = hx.gather(self.weights["tokens"], self.token) + hx.gather(self.weights["positions"], self.position)
        for i in range(self.config.decoder_layers):
            name = f"layer.{i}"
            with source_scope(name):
                x = x + self.of_text(i, name, self.norm(f"{name}.before", x))
                x = x + self.of_sound(i, f"{name}.cross", self.norm(f"{name}.cross.before", x))
                x = x + self.mlp(name, self.norm(f"{name}.after", x))
        return _logits(self.config, self, x)

    def heads(self, name: str, x: Tensor) -> Tensor:
        return hx.reshape(self.linear(name, x), shape=(self.config.decoder_heads, 1, -1))

    def of_text(self, i: int, name: str, x: Tensor) -> Tensor:
        c = self.config

        def cached(part: str) -> Tensor:
            cache = hx.state(f"layer.{i}.{part}s", (c.decoder_heads, c.tokens, c.dim // c.decoder_heads))
            return hx.write_state(cache, self.heads(f"{name}.{part}", x), self.position, axis=1)

        y = hx.scaled_dot_product_attention(self.heads(f"{name}.query", x), cached("key"), cached("value"), self.seen)
        return self.linear(f"{name}.out", hx.reshape(y, shape=(1, c.dim)))

    def of_sound(self, i: int, name: str, x: Tensor) -> Tensor:
        c = self.config
        shape = (c.decoder_heads, c.positions, c.dim // c.decoder_heads)
        keys, values = hx.input(key_name(i), shape), hx.input(value_name(i), shape)
        y = hx.scaled_dot_product_attention(self.heads(f"{name}.query", x), keys, values)
        return self.linear(f"{name}.out", hx.reshape(y, shape=(1, c.dim)))
