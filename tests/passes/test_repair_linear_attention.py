"""Linear attention on chips: two sums over all keys, one over the other."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.build import graph
from hexane.ops.reference import run_reference
from hexane.passes.repair import repair
from hexane.passes.repair.repair import repairs_of
from hexane.targets import load_target

Array = np.ndarray[Any, Any]
HEADS, TOKENS, WIDTH = 2, 256, 16
TURNED = (0, 1, 3, 2)
Form = Callable[[hx.Tensor, hx.Tensor, hx.Tensor], hx.Tensor]


def with_ones(q: hx.Tensor, k: hx.Tensor, v: hx.Tensor) -> hx.Tensor:
    """EfficientViT: a column of ones beside v."""
    o = hx.matmul(q, hx.matmul(k, hx.concat(v, np.ones((1, HEADS, TOKENS, 1), np.float32), axis=-1), transpose_x=True))
    return o[..., :WIDTH] / (o[..., WIDTH:] + 1e-15)


def with_padding(q: hx.Tensor, k: hx.Tensor, v: hx.Tensor) -> hx.Tensor:
    """The same with channels ahead of tokens, and the ones by a pad."""
    q, k, v = (hx.transpose(t, perm=TURNED) for t in (q, k, v))
    v = hx.pad(v, begin=(0, 0, 0, 0), end=(0, 0, 1, 0), value=1.0)
    o = hx.matmul(hx.matmul(v, k, transpose_y=True), q)
    return hx.transpose(o[:, :, :WIDTH] / (o[:, :, WIDTH:] + 1e-15), perm=TURNED)


def by_reciprocal(q: hx.Tensor, k: hx.Tensor, v: hx.Tensor) -> hx.Tensor:
    """Linear Transformers."""
    total = hx.transpose(hx.reduce_sum(k, axes=(-2,), keep_dims=True), perm=TURNED)
    return hx.matmul(q, hx.matmul(hx.transpose(k, perm=TURNED), v)) * (1.0 / (hx.matmul(q, total) + 1e-6))


def limited(q: hx.Tensor, k: hx.Tensor, v: hx.Tensor) -> hx.Tensor:
    """Performers: the lower sum of a product."""
    total = hx.reduce_sum(q * hx.reduce_sum(k, axes=(-2,), keep_dims=True), axes=(-1,), keep_dims=True)
    return hx.matmul(q, hx.matmul(k, v, transpose_x=True)) / hx.maximum(total, 1e-6)


def flat(q: hx.Tensor, k: hx.Tensor, v: hx.Tensor) -> hx.Tensor:
    """phi(q) @ phi(k).sum(-2)[..., None] of PyTorch: the sum has no axis of tokens."""
    total = hx.expand_dims(hx.reduce_sum(k, axes=(-2,), keep_dims=False), axes=(3,))
    return hx.matmul(q, hx.matmul(hx.transpose(k, perm=TURNED), v)) / (hx.matmul(q, total) + 1e-6)


FORMS: dict[str, Form] = {
    "flat": flat,
    "with ones": with_ones,
    "with padding": with_padding,
    "by a reciprocal": by_reciprocal,
    "limited": limited,
}
CHIPS = [("h13", "engine"), ("h17s", "ieee")]


def given(size: float, of_v: float) -> dict[str, Array]:
    """The queries of the second head are 50 times smaller, one has no positive number."""
    rng = np.random.default_rng(6)
    sizes = {"q": size, "k": size, "v": of_v}
    feeds = {name: rng.normal(0, s, (1, HEADS, TOKENS, WIDTH)) for name, s in sizes.items()}
    feeds["q"][0, 1] *= 0.02
    feeds["q"][0, 0, 7] = -abs(feeds["q"][0, 0, 7])
    return {name: np.clip(x, -6e4, 6e4).astype(np.float16).astype(np.float32) for name, x in feeds.items()}


def network(form: Form) -> hx.Graph:
    q, k, v = (hx.input(name, (1, HEADS, TOKENS, WIDTH)) for name in "qkv")
    return graph(form(hx.relu(q), hx.relu(k), v))


def exactly(feeds: dict[str, Array]) -> Array:
    q, k, v = (feeds[name].astype(np.float64) for name in "qkv")
    weights = np.maximum(q, 0) @ np.maximum(k, 0).swapaxes(2, 3)
    return weights @ v / (weights.sum(3, keepdims=True) + 1e-6)


@pytest.mark.filterwarnings("ignore::hexane.HazardWarning")
@pytest.mark.parametrize("of_v", [1.0, 5000.0])
@pytest.mark.parametrize("size", [0.05, 1.0, 30.0, 1000.0])
@pytest.mark.parametrize("name", FORMS)
def test_linear_attention_of_large_numbers_is_right(name: str, size: float, of_v: float) -> None:
    model, feeds = network(FORMS[name]), given(size, of_v)
    want = exactly(feeds)
    for target, numerics in CHIPS:
        net = hx.compile(model, target=target, numerics=numerics, threads=1)
        got = np.asarray(net(feeds), np.float64)
        assert np.linalg.norm(got - want) <= 2e-3 * np.linalg.norm(want), (target, numerics)


@pytest.mark.parametrize("name", FORMS)
def test_it_is_the_same_function(name: str) -> None:
    model, feeds = network(FORMS[name]), given(30.0, 300.0)
    written = repair(model, load_target("h17s"))
    (decision,) = repairs_of(written)
    assert "sums over all keys" in decision.reason
    assert str(repair(written, load_target("h17s"))) == str(written)
    (got,) = run_reference(written, feeds).values()
    np.testing.assert_allclose(got, exactly(feeds), rtol=1e-4, atol=1e-3)


def test_queries_that_are_slices_of_one_tensor_deep_in_a_network() -> None:
    """As a network has them: behind layers, and the output goes on."""
    rng = np.random.default_rng(2)
    x = h = hx.input("x", (1, 64, WIDTH))
    for _ in range(3):
        h = hx.matmul(h, rng.normal(0, 0.5, (WIDTH, WIDTH)).astype(np.float32))
        h = h + hx.gelu(h)
    qkv = hx.matmul(h, rng.normal(0, 30, (WIDTH, 3 * WIDTH)).astype(np.float32))
    q, k = hx.relu(qkv[..., :WIDTH]), hx.relu(qkv[..., WIDTH : 2 * WIDTH])
    v = qkv[..., 2 * WIDTH :]
    total = hx.reduce_sum(q * hx.reduce_sum(k, axes=(-2,), keep_dims=True), axes=(-1,), keep_dims=True)
    model = graph(hx.tanh(hx.matmul(q, hx.matmul(k, v, transpose_x=True)) / (total + 1e-6) * 0.01))
    feed = rng.normal(0, 1, x.shape).astype(np.float32)
    want = np.asarray(hx.compile(model)(feed), np.float64)
    got = np.asarray(hx.compile(model, target="h17s", numerics="ieee")(feed), np.float64)
    assert np.linalg.norm(got - want) <= 5e-3 * np.linalg.norm(want)


@pytest.mark.parametrize("numerics", ["engine", "ieee"])
def test_sums_with_several_readers_are_repaired_for_each_quotient(numerics: str) -> None:
    """Two groups of queries share keys and values, and a gate reads a product as well. The keys are added up once."""
    q, r, k, v = (hx.input(name, (1, HEADS, TOKENS, WIDTH)) for name in "qrkv")
    keys, sums = hx.relu(k), []
    both, total = hx.matmul(keys, v, transpose_x=True), hx.reduce_sum(keys, axes=(-2,), keep_dims=True)
    for t in (hx.relu(q), hx.relu(r)):
        sums.append((hx.matmul(t, both), hx.reduce_sum(t * total, axes=(-1,), keep_dims=True) + 1e-6))
    gate = hx.sigmoid(sums[0][0])
    model = graph({"of q": sums[0][0] / sums[0][1], "of r": sums[1][0] / sums[1][1], "gate": gate})
    feeds = given(300.0, 30.0)
    feeds["r"] = feeds["q"][:, :, ::-1].copy()
    net = hx.compile(model, target="h17s", numerics=numerics)
    got = net(feeds)
    assert isinstance(got, dict)
    for name in "qr":
        want = exactly({**feeds, "q": feeds[name]})
        assert np.linalg.norm(got[f"of {name}"] - want) <= 2e-3 * np.linalg.norm(want)
    products = [n for n in repair(model, load_target("h17s")).nodes if n.op == "matmul" and n.inputs[1] is not None]
    assert len(products) == 3 + 2, "those of the gate are the old ones"


def test_a_quotient_of_other_sums_is_left() -> None:
    """The divisor depends on v, or on k in another way, or on the head before."""
    q, k, v = (hx.input(name, (1, HEADS, TOKENS, WIDTH)) for name in "qkv")
    above = hx.matmul(q, hx.matmul(k, v, transpose_x=True))
    for below in (
        hx.reduce_sum(hx.exp(q), axes=(-1,), keep_dims=True),
        hx.reduce_sum(q * hx.reduce_max(hx.square(k), axes=(-2,), keep_dims=True), axes=(-1,), keep_dims=True),
        hx.reduce_sum(hx.reduce_sum(q * k, axes=(1,), keep_dims=True), axes=(-1,), keep_dims=True),
    ):
        written = repair(graph(above / (below + 1e-6)), load_target("h17s"))
        assert not any("sums over all keys" in d.reason for d in repairs_of(written))
