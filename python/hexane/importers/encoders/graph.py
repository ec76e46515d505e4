"""The graph of a text encoder for a fixed batch and number of tokens."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from hexane import build as hx
from hexane.build import Tensor
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.graph.origins import source_scope
from hexane.importers.encoders.config import EncoderConfig
from hexane.importers.encoders.families import FAMILIES
from hexane.importers.encoders.pooling import Pooling
from hexane.importers.weights import as_tensor

ACTIVATION: Mapping[str, Callable[[Tensor], Tensor]] = {
    "silu": hx.silu,
    "gelu": hx.gelu,
    "gelu_tanh": hx.gelu_tanh,
    "relu": hx.relu,
    "tanh": hx.tanh,
}
HIDDEN = -40000.0  # added to the attention scores of padding: fits fp16, and exp(HIDDEN) is 0.
FARTHEST = 128  # MPNet: all relative positions from 128 on share one bucket.
SHORTEST = 1e-12  # The smallest divisor in torch's normalize.

IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
STATES, POOLER, EMBEDDING, LOGITS = "last_hidden_state", "pooler_output", "sentence_embedding", "logits"
ANSWERS = ("start_logits", "end_logits")


def outputs_of(config: EncoderConfig, pooling: Pooling) -> tuple[str, ...]:
    """Returns the names of a model's outputs: sentence-transformers' names if the folder has its files, else
    transformers' names."""
    if pooling.given:
        return (EMBEDDING, STATES)
    if config.head == "ForQuestionAnswering":
        return ANSWERS
    if config.head:
        return (LOGITS,)
    return (STATES, POOLER) if config.pooled else (STATES,)


def encoder(
    config: EncoderConfig,
    weights: Mapping[str, Array | Tensor],
    batch: int,
    count: int,
    outputs: Sequence[str],
    *,
    pooling: Pooling = Pooling(),  # noqa: B008 - Pooling is frozen
    typed: bool = False,
) -> Graph:
    """Returns a graph from input_ids, attention_mask (batch, count) int32, and token_type_ids if `typed`, to the named
    outputs: last_hidden_state (batch, count, dim), pooler_output and sentence_embedding (batch, dim), logits (batch,
    labels), (batch, count, labels) or (batch, count, vocab), start_logits and end_logits (batch, count).

    weights: by the names of `read_encoder`. attention_mask is 1 for tokens and 0 for padding. Without `typed`, all
    tokens have type 0. Raises Error for more tokens than the model allows.
    """
    if not 1 <= count <= config.longest or batch < 1:
        raise Error(
            f"[encoder] input_ids: got {batch}x{count}, need a batch from 1 on and 1 to {config.longest} tokens"
        )
    layers = _Encoder(config, {name: as_tensor(one) for name, one in weights.items()}, batch, count)
    x = layers.layers(typed)
    by_name = {}
    for name in outputs:
        if name == STATES:
            by_name[name] = x
        elif name == POOLER:
            by_name[name] = hx.tanh(layers.linear("pooler", x[:, 0]))
        elif name == EMBEDDING:
            by_name[name] = layers.embedding(x, pooling)
        elif name == LOGITS:
            by_name[name] = layers.logits(x)
    if set(ANSWERS) & set(outputs):
        both = layers.logits(x)
        by_name |= {name: both[:, :, i] for i, name in enumerate(ANSWERS)}
    return hx.graph({name: by_name[name] for name in outputs}, name=config.family)


class _Encoder:
    def __init__(self, config: EncoderConfig, weights: Mapping[str, Tensor], batch: int, count: int) -> None:
        self.config, self.weights, self.batch, self.count = config, weights, batch, count
        self.family = FAMILIES[config.family]
        self.ids = hx.input(IDS, (batch, count), "int32")
        with source_scope(MASK):
            self.mask = hx.cast(hx.input(MASK, (batch, count), "int32") != 0, dtype="fp32")

    def linear(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            return hx.linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))

    def norm(self, name: str, x: Tensor) -> Tensor:
        with source_scope(name):
            gamma, beta = (self.weights[f"{name}.{part}"] for part in ("weight", "bias"))
            return hx.layer_norm(x, gamma, beta, epsilon=self.config.epsilon)

    def table(self, name: str) -> Tensor:
        return self.weights[f"embeddings.{name}.weight"]

    def embedded(self, typed: bool) -> Tensor:
        c = self.config
        with source_scope("embeddings"):
            x = hx.gather(self.table("word"), self.ids)
            if typed:
                x = x + hx.gather(self.table("type"), hx.input(TYPES, (self.batch, self.count), "int32"))
            elif c.types:
                x = x + self.table("type")[:1]
            if c.counted:
                token = hx.cast(self.ids != c.padding, dtype="int32")
                x = x + hx.gather(self.table("position"), hx.cumsum(token, axis=1) * token + c.padding)
            else:
                x = x + self.table("position")[: self.count]
        return self.norm("embeddings.norm", x)

    def layers(self, typed: bool) -> Tensor:
        x = self.embedded(typed)
        with source_scope(MASK):
            hidden = hx.reshape((1 - self.mask) * HIDDEN, shape=(self.batch, 1, 1, self.count))
        if self.config.buckets:
            with source_scope("distances"):
                hidden = hidden + self.distances()
        for i in range(self.config.layers):
            with source_scope(f"layer.{i}"):
                x = self.layer(f"layer.{i}", x, hidden)
        return x

    def layer(self, name: str, x: Tensor, hidden: Tensor) -> Tensor:
        c = self.config

        def heads(part: str) -> Tensor:
            y = hx.reshape(self.linear(f"{name}.{part}", x), shape=(self.batch, self.count, c.heads, c.head_dim))
            return hx.transpose(y, perm=(0, 2, 1, 3))

        y = hx.scaled_dot_product_attention(heads("query"), heads("key"), heads("value"), hidden)
        y = hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=(self.batch, self.count, c.dim))
        x = self.norm(f"{name}.attention_norm", x + self.linear(f"{name}.out", y))
        y = ACTIVATION[c.activation](self.linear(f"{name}.up", x))
        return self.norm(f"{name}.norm", x + self.linear(f"{name}.down", y))

    def distances(self) -> Tensor:
        """Returns MPNet's bias of the attention scores, (1, heads, count, count), by the distance of query and key:
        each small distance has its own entry, larger ones share buckets of logarithmic width."""
        half = self.config.buckets // 2
        exact = half // 2
        place = np.arange(self.count)
        away = place[:, None] - place
        far = np.maximum(np.abs(away), 1).astype(np.float32)
        scale = np.float32(np.log(FARTHEST / exact))
        wide = exact + (np.log(far / np.float32(exact)) / scale * np.float32(half - exact)).astype(np.int32)
        bucket = np.where(np.abs(away) < exact, np.abs(away), np.minimum(wide, half - 1)) + half * (away < 0)
        rows = hx.gather(self.weights["distances.weight"], hx.const(bucket.astype(np.int32)))
        return hx.reshape(hx.transpose(rows, perm=(2, 0, 1)), shape=(1, self.config.heads, self.count, self.count))

    def embedding(self, x: Tensor, pooling: Pooling) -> Tensor:
        def over_tokens(reduce: Callable[..., Tensor], y: Tensor) -> Tensor:
            return reduce(y, axes=(1,), keep_dims=False)

        with source_scope("pooling"):
            mask = hx.reshape(self.mask, shape=(self.batch, self.count, 1))
            if pooling.mode == "cls":
                y = x[:, 0]
            elif pooling.mode == "max":
                y = over_tokens(hx.reduce_max, x + (1 - mask) * HIDDEN)
            else:
                tokens = hx.maximum(over_tokens(hx.reduce_sum, mask), 1e-9)
                by = hx.sqrt(tokens) if pooling.mode == "mean_sqrt_len_tokens" else tokens
                y = over_tokens(hx.reduce_sum, x * mask) / by
            if pooling.normalized:
                y = y / hx.maximum(hx.reduce_l2_norm(y, axes=(1,), keep_dims=True), SHORTEST)
            return y

    def logits(self, x: Tensor) -> Tensor:
        head = self.family.heads[self.config.head]
        if head.first_token:
            x = x[:, 0]
        if head.first:
            x = ACTIVATION[head.activation or self.config.activation](self.linear("head.first", x))
        if head.norm:
            x = self.norm("head.norm", x)
        if head.tied:
            with source_scope("head.last"):
                return hx.linear(x, self.table("word"), self.weights["head.last.bias"])
        return self.linear("head.last", x)
