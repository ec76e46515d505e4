"""Small transformers whose masks are as exporters write them: the least number of fp32 where a key is hidden."""

from collections.abc import Callable

import numpy as np

import hexane as hx
from architectures import Layers
from hexane.build import Tensor
from hexane.graph import Array, Graph

LEAST = float(np.finfo(np.float32).min)
TOKENS, WIDTH, HEADS = 6, 16, 2
# By name: which tokens of a sequence count.
PADDINGS: dict[str, Array] = {
    "none": np.ones((1, TOKENS), np.int32),
    "left": np.array([[0, 0, 0, 1, 1, 1]], np.int32),
    "right": np.array([[1, 1, 1, 1, 0, 0]], np.int32),
    "full": np.zeros((1, TOKENS), np.int32),
}
Hide = Callable[[Tensor], Tensor]  # scores -> scores where hidden keys count nothing


def heads(x: Tensor) -> Tensor:
    return hx.transpose(hx.reshape(x, shape=(1, TOKENS, HEADS, WIDTH // HEADS)), perm=(0, 2, 1, 3))


def attended(
    b: Layers, x: Tensor, hide: Hide, weigh: Callable[[Tensor], Tensor], encoded: Tensor | None = None
) -> Tensor:
    """encoded: what keys and values are made of; None: x itself."""
    query, key, value = (heads(b.linear(v, WIDTH)) for v in (x, *2 * (x if encoded is None else encoded,)))
    scores = hx.matmul(query, key, transpose_y=True) * (WIDTH // HEADS) ** -0.5
    mixed = hx.matmul(weigh(hide(scores)), value)
    return b.linear(hx.reshape(hx.transpose(mixed, perm=(0, 2, 1, 3)), shape=(1, TOKENS, WIDTH)), WIDTH)


def transformer(
    seed: int, make: Callable[[Layers, Tensor], tuple[Hide, Callable[[Tensor], Tensor]]], *, reads_encoder: bool = False
) -> Graph:
    """Two layers. make: from the tokens that count, what hides scores, and what makes weights of them. reads_encoder:
    each layer attends to what an encoder said, too, of which nothing is hidden."""
    b = Layers(seed)
    x, counts = hx.input("x", (1, TOKENS, WIDTH)), hx.input("counts", (1, TOKENS), "int32")
    hide, weigh = make(b, counts)
    for _ in range(2):
        x = b.layer_norm(x + attended(b, x, hide, weigh))
        if reads_encoder:
            encoded = hx.const(b.normal(1, TOKENS, WIDTH, scale=1))
            x = b.layer_norm(x + attended(b, x, lambda scores: scores, softmax, encoded))
        x = b.layer_norm(x + b.mlp(x))
    return hx.graph(x)


def softmax(scores: Tensor) -> Tensor:
    return hx.softmax(scores, axis=-1)


def hidden_keys(counts: Tensor) -> Tensor:
    """1 for a key that does not count, else 0."""
    return 1.0 - hx.cast(hx.reshape(counts, shape=(1, 1, 1, TOKENS)), dtype="fp32")


def later_keys() -> Array:
    return np.triu(np.ones((1, 1, TOKENS, TOKENS), np.bool_), 1)


def bert() -> Graph:
    """(1 - counts) * least is added."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        mask = hidden_keys(counts) * LEAST
        return lambda scores: scores + mask, softmax

    return transformer(1, make)


def distilbert() -> Graph:
    """Hidden scores are replaced."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        hidden = hx.reshape(counts, shape=(1, 1, 1, TOKENS)) == 0
        return lambda scores: hx.select(hidden, np.float32(LEAST), scores), softmax

    return transformer(2, make)


def gpt2() -> Graph:
    """Later keys are replaced, and padding is added to that: a score may be hidden twice."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        mask = hidden_keys(counts) * LEAST
        return lambda scores: hx.select(~later_keys(), scores, np.float32(LEAST)) + mask, softmax

    return transformer(3, make)


def llama() -> Graph:
    """A constant triangle, in which padding is filled in."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        triangle = np.where(later_keys(), np.float32(LEAST), np.float32(0))
        padded = hx.cast(hidden_keys(counts), dtype="bool")
        mask = hx.select(padded, np.float32(LEAST), triangle)
        return lambda scores: scores + mask, softmax

    return transformer(4, make)


def opt() -> Graph:
    """The sum of two masks, no less than the least number."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        triangle = np.where(later_keys(), np.float32(LEAST), np.float32(0))
        padded = hx.cast(hidden_keys(counts), dtype="bool")
        mask = hx.select(padded, np.float32(LEAST), np.zeros((1, 1, 1, TOKENS), np.float32)) + triangle
        return lambda scores: hx.maximum(scores + mask, np.float32(LEAST)), softmax

    return transformer(5, make)


def t5() -> Graph:
    """A constant bias by distance, to which the mask is added."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        distance = np.arange(TOKENS)[:, None] - np.arange(TOKENS) + TOKENS
        table = b.normal(HEADS, 2 * TOKENS, scale=8)
        bias = hx.gather(table, distance.astype(np.int32), axis=1)
        mask = hx.reshape(bias, shape=(1, HEADS, TOKENS, TOKENS)) + hidden_keys(counts) * LEAST
        return lambda scores: scores + mask, softmax

    return transformer(6, make)


def deberta() -> Graph:
    """Tokens are hidden from either side by a truth, and hidden weights become 0."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        kept = hx.cast(counts, dtype="fp32")
        pairs = hx.reshape(kept, shape=(1, 1, 1, TOKENS)) * hx.reshape(kept, shape=(1, 1, TOKENS, 1))
        hidden = hx.logical_not(hx.cast(pairs, dtype="bool"))

        def weigh(scores: Tensor) -> Tensor:
            return hx.select(hidden, np.float32(0), softmax(scores))

        return lambda scores: hx.select(hidden, np.float32(LEAST), scores), weigh

    return transformer(7, make)


def clip_text() -> Graph:
    """Two masks, added one after the other: a score that both hide is minus infinity."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        triangle = np.where(later_keys(), np.float32(LEAST), np.float32(0))
        padded = hx.cast(hidden_keys(counts), dtype="bool")
        mask = hx.select(padded, np.float32(LEAST), np.zeros((1, 1, 1, TOKENS), np.float32))
        return lambda scores: scores + triangle + mask, softmax

    return transformer(8, make)


def whisper() -> Graph:
    """A decoder's keys are hidden where a triangle and the tokens that count add up to 0; no key of the encoder is."""

    def make(b: Layers, counts: Tensor) -> tuple[Hide, Callable[[Tensor], Tensor]]:
        triangle = np.where(later_keys(), np.float32(LEAST), np.float32(0))
        seen = hx.cast(hx.reshape(counts, shape=(1, 1, 1, TOKENS)), dtype="fp32") + triangle
        mask = hx.select(seen == 0.0, np.float32(LEAST), triangle)
        return lambda scores: scores + mask, softmax

    return transformer(9, make, reads_encoder=True)


MASKED: dict[str, Callable[[], Graph]] = {
    "bert": bert, "distilbert": distilbert, "gpt2": gpt2, "llama": llama, "opt": opt, "t5": t5, "deberta": deberta,
    "clip text": clip_text, "whisper": whisper,
}  # fmt: skip
