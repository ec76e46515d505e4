"""A table whose rows multiply activations is no embedding: its numbers stay as they are."""

from collections.abc import Callable

import numpy as np
import pytest

import hexane as hx
from decoders import decoder_weights
from hexane.compression import compress, find_weights
from hexane.graph import Array
from hexane.targets import load_target
from hexane.train.decoder.one_token import block, one_token

ROWS, WIDE = 300, 32


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).normal(0, 0.1, shape).astype(np.float32)


def ids(name: str = "ids") -> hx.Tensor:
    return hx.input(name, (1, 7), "int32")


def product() -> hx.Tensor:
    return hx.linear(hx.input("x", (1, 7, 64), "fp32"), normal(WIDE, 64))


def angles_in_one_table() -> hx.Tensor:
    """GPT-J: cosines and sines are halves of one table, and each is read by two neighbours."""
    parts = hx.split(hx.gather(normal(ROWS, WIDE), ids()), axis=-1, split_sizes=(WIDE // 2, WIDE // 2))
    cos, sin = (hx.expand_dims(part, axes=(-1,)) for part in parts)
    pairs = hx.reshape(product(), shape=(1, 7, WIDE // 2, 2))
    return pairs * cos + hx.reverse(pairs, axes=(-1,)) * -sin


def conditional_norm() -> hx.Tensor:
    gamma = hx.expand_dims(hx.gather(normal(ROWS, WIDE), hx.input("label", (1,), "int32")), axes=(1,))
    return product() * gamma


@pytest.mark.parametrize("make", [angles_in_one_table, conditional_norm])
def test_rows_that_multiply_what_a_product_computes_are_no_weight(make: Callable[[], hx.Tensor]) -> None:
    assert [w.node.op for w in find_weights(hx.graph(make()))] == []


def masked() -> hx.Tensor:
    keep = hx.sigmoid(hx.linear(hx.input("x", (1, 7, 64), "fp32"), normal(1, 64)))
    return hx.gather(normal(ROWS, WIDE), ids()) * keep


def normed() -> hx.Tensor:
    rows = hx.gather(normal(ROWS, WIDE), ids()) * 8.0
    return rows * hx.rsqrt(hx.reduce_mean(rows * rows, axes=(-1,), keep_dims=True) + 1e-5) * normal(WIDE)


def gated_by_itself() -> hx.Tensor:
    rows = hx.gather(normal(ROWS, WIDE), ids())
    return rows * hx.sigmoid(hx.linear(rows, normal(WIDE, WIDE)))


def matched() -> hx.Tensor:
    """A recommender: a user's row times an item's."""
    return hx.gather(normal(ROWS, WIDE), ids()) * hx.gather(normal(ROWS + 8, WIDE), ids("items"))


@pytest.mark.parametrize(("make", "count"), [(masked, 1), (normed, 1), (gated_by_itself, 1), (matched, 2)])
def test_rows_of_an_embedding_are_a_weight(make: Callable[[], hx.Tensor], count: int) -> None:
    assert [w.node.op for w in find_weights(hx.graph(make()))] == ["gather"] * count


@pytest.mark.parametrize("rope", ["half", "interleaved"])
def test_the_angles_of_a_decoder_are_no_weight(rope: str) -> None:
    c = hx.train.LlamaConfig(vocab=512, dim=64, hidden=96, layers=1, heads=4, seq=512, rope=rope)
    for graph in (one_token(c, decoder_weights(c)), block(c, decoder_weights(c), 8, 512)):
        assert [w.value.shape for w in find_weights(graph) if w.node.op == "gather"] == [(512, 64)]


def test_a_compressed_decoder_turns_by_the_angles_that_it_had() -> None:
    c = hx.train.LlamaConfig(vocab=64, dim=64, hidden=96, layers=1, heads=1, seq=512, rope="half")
    made = compress(one_token(c, decoder_weights(c)), hx.Compression("palette2"), load_target("host"))
    tables = sorted((a for a in made.constants().values() if a.shape == (512, 32)), key=lambda a: -a[0, 0])
    for table, angle in zip(tables, [np.cos(300.0), np.sin(300.0)], strict=True):
        assert abs(table[300, 0] - angle) < 1e-6
