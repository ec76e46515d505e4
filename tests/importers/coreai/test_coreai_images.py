"""Tokens as images, for the engine: the same numbers as on tensors of tokens, in the forms that it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from apple_runtime import has_apple_runtime, run_apple
from architectures import ARCHITECTURES
from hexane.compression import Compression
from hexane.compression.compress import compress
from hexane.emit.coreai.pixels import tokens_as_images
from hexane.emit.coreai.prepare import for_engine
from hexane.emit.coreai.write import save_graph
from hexane.graph import Graph
from hexane.importers.coreai import import_coreai
from hexane.ops.encodings import is_encoded
from hexane.ops.reference import run_reference
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.simplify.simplify import simplify
from hexane.targets import load_target
from hexane.targets.query import load_chip
from random_graphs import random_graph

CHIP = load_chip("h16")


def feeds_of(graph: Graph, seed: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    feeds = {}
    for v in graph.inputs:
        data = rng.standard_normal(v.shape) if v.dtype.kind == "float" else rng.integers(0, 2, v.shape)
        feeds[str(v.node.attrs["name"])] = np.asarray(data).astype(v.dtype.numpy)
    return feeds


def as_images(graph: Graph) -> Graph:
    """The graph in images, which computes the same."""
    made = simplify(tokens_as_images(graph), CHIP)
    feeds = feeds_of(graph)
    with np.errstate(all="ignore"):
        want, got = run_reference(graph, feeds), run_reference(made, feeds)
    for name, array in want.items():
        assert got[name].dtype == array.dtype
        wide = [np.asarray(a, np.float64) for a in (got[name], array)]
        np.testing.assert_allclose(*wide, rtol=2e-5, atol=2e-5 * max(1.0, np.nanmax(np.abs(wide[1]), initial=0)))
    return made


def constant_products(graph: Graph) -> list[Any]:
    """Products of several rows with a constant matrix."""
    return [
        n for n in graph.nodes
        if n.op in ("linear", "matmul") and n.inputs[1] is not None and n.inputs[1].node.op == "const"
        and np.prod(n.types[0].shape[:-1]) > 1
    ]  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_network_in_images(name: str) -> None:
    graph = simplify(ARCHITECTURES[name](), CHIP)
    made = as_images(fuse_attention(graph, CHIP))
    assert not constant_products(made)
    assert all(n.types[0].shape[:2] == (n.types[0].shape[0], 1) for n in made.nodes if n.op == "matmul")
    assert all(v.type.rank <= 5 for n in made.nodes for v in n.values)
    assert not any(n.op == "scaled_dot_product_attention" for n in made.nodes)


def test_features_last_and_first_again_cost_nothing() -> None:
    graph = ARCHITECTURES["convnext"]()
    assert sum(n.op == "transpose" for n in graph.nodes) == 8
    assert sum(n.op == "transpose" for n in as_images(graph).nodes) == 0


def test_a_product_of_one_token_stays() -> None:
    x = hx.input("x", (1, 8))
    made = as_images(hx.graph(hx.linear(x, weight((6, 8)))))
    assert [n.op for n in made.nodes if n.inputs] == ["linear"]


def test_features_that_were_cut_and_moved_are_cut_again() -> None:
    x = hx.linear(hx.input("x", (2, 3, 8)), weight((8, 8)))
    x = hx.transpose(hx.reshape(x, shape=(2, 3, 2, 4)), perm=(0, 3, 1, 2))
    made = as_images(hx.graph(hx.softmax(hx.reshape(x, shape=(2, 2, 2, 3, 2)), axis=1)))
    assert sum(n.op == "transpose" for n in made.nodes) == 2  # at the ends


def test_tokens_of_many_axes() -> None:
    x = hx.input("x", (2, 2, 2, 3, 2, 8))
    made = as_images(hx.graph(hx.gelu(hx.linear(x, weight((6, 8)), weight((6,))))))
    assert not constant_products(made)


def test_no_tokens_at_all() -> None:
    as_images(hx.graph(hx.relu(hx.linear(hx.input("x", (1, 0, 8)), weight((8, 8))))))


def weight(shape: tuple[int, ...], seed: int = 1) -> Any:
    return hx.const(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


QUERIES = {
    "batches": ((2, 3, 5, 8), (2, 3, 7, 8), (2, 3, 7, 4), (5, 7)),
    "one query": ((1, 2, 1, 8), (1, 2, 7, 8), (1, 2, 7, 4), (1, 1, 1, 7)),
    "shared keys": ((1, 4, 5, 8), (1, 1, 7, 8), (1, 1, 7, 4), (1, 4, 5, 7)),
    "three axes": ((3, 5, 8), (3, 7, 8), (3, 7, 4), (3, 1, 7)),
    "two axes": ((5, 8), (7, 8), (7, 4), (7,)),
}


@pytest.mark.parametrize(
    "how", [{}, {"causal": True}, {"zero_hidden": True}, {"hidden": -2.5}, {"scale": 0.3}], ids=str
)
@pytest.mark.parametrize("dtype", ["fp32", "bool", None])
@pytest.mark.parametrize("name", QUERIES)
def test_attention(name: str, dtype: str | None, how: dict[str, Any]) -> None:
    *shapes, mask = QUERIES[name]
    operands = [hx.input(n, s) for n, s in zip("qkv", shapes, strict=True)]
    if dtype is not None:
        operands.append(hx.input("mask", mask, dtype))
    if how == {"zero_hidden": True} and dtype is None:
        how = {}
    made = as_images(hx.graph(hx.scaled_dot_product_attention(*operands, **how)))
    assert sum(n.op == "matmul" for n in made.nodes) == 2 * (shapes[0][-3] if len(shapes[0]) > 2 else 1)


@pytest.mark.parametrize("shape", [(5, 8), (1, 5, 8), (3, 5, 8), (2, 3, 5, 8)], ids=str)
def test_attention_of_projections_as_they_are(shape: tuple[int, ...]) -> None:
    """Their images have other axes than those of heads."""
    x = hx.input("x", shape)
    q, k, v = (hx.linear(x, weight((8, 8), seed)) for seed in range(3))
    as_images(hx.graph(hx.scaled_dot_product_attention(q, k, v, scale=3.0)))


class Tokens:
    """Random networks of tokens."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.seed = seed

    def graph(self) -> Graph:
        batch, tokens = int(self.rng.integers(1, 3)), int(self.rng.integers(1, 6))
        shape = [(tokens, 8), (batch, tokens, 8), (batch, 2, tokens, 8)][int(self.rng.integers(3))]
        made = [self.linear(hx.input("x", shape), 8), hx.input("y", shape)]
        for _ in range(8):
            x = made[int(self.rng.integers(len(made)))]
            step = self.STEPS[int(self.rng.integers(len(self.STEPS)))]
            made.append(step(self, x, made[int(self.rng.integers(len(made)))]))
        return hx.graph({f"o{i}": x for i, x in enumerate(made[-3:])})

    def linear(self, x: Any, out: int) -> Any:
        return hx.linear(x, weight((out, x.shape[-1]), self.seed), weight((out,), self.seed))

    def heads(self, x: Any, _: Any) -> Any:
        """Attention of two heads, after a rotation, their features side by side again."""
        if len(x.shape) != 3 or x.shape[-1] % 8:
            return hx.gelu(x)
        batch, tokens, features = x.shape
        one = hx.transpose(hx.reshape(x, shape=(batch, tokens, 2, features // 2)), perm=(0, 2, 1, 3))
        angles = weight((tokens, features // 4), 3)
        turned = hx.rotary_embedding(one, angles, angles, interleaved=bool(self.rng.integers(2)))
        y = hx.scaled_dot_product_attention(turned, turned, one, causal=True)
        return hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=x.shape)

    def packed(self, x: Any, _: Any) -> Any:
        """Three projections in one product, picked apart."""
        if len(x.shape) != 3:
            return hx.abs(x)
        batch, tokens = x.shape[:2]
        three = hx.transpose(hx.reshape(self.linear(x, 24), shape=(batch, tokens, 3, 2, 4)), perm=(2, 0, 3, 1, 4))
        q, k, v = (hx.gather(three, np.array(i, np.int32), axis=0) for i in range(3))
        y = hx.scaled_dot_product_attention(q, k, v)
        return hx.reshape(hx.transpose(y, perm=(0, 2, 1, 3)), shape=(batch, tokens, 8))

    def joined(self, x: Any, y: Any) -> Any:
        if x.shape[:-1] != y.shape[:-1]:
            return hx.concat(x, x, axis=-2)
        return hx.concat(x, y, axis=-1)

    def attended(self, x: Any, _: Any) -> Any:
        return hx.scaled_dot_product_attention(self.linear(x, 6), self.linear(x, 6), x)

    def added(self, x: Any, y: Any) -> Any:
        return x + (y if y.shape == x.shape else hx.reduce_mean(x, axes=(-1,)))

    def cut(self, x: Any, _: Any) -> Any:
        axis = int(self.rng.integers(len(x.shape)))
        return hx.split(x, axis=axis, num_splits=2)[1] if x.shape[axis] % 2 == 0 else hx.reduce_max(x, axes=(axis,))

    STEPS: tuple[Callable[["Tokens", Any, Any], Any], ...] = (
        heads, packed, attended, joined, added, cut, heads,
        lambda self, x, _: self.linear(x, 8), lambda _, x, __: hx.softmax(x, axis=-2),
        lambda _, x, __: hx.layer_norm(x, weight(x.shape[-1:])), lambda _, x, __: hx.rms_norm(x, weight(x.shape[-1:])),
        lambda _, x, __: x * weight((x.shape[-2], 1)), lambda _, x, __: hx.transpose(x),
        lambda _, x, __: hx.reshape(x, shape=(*x.shape[:-1], 2, -1) if len(x.shape) < 4 and x.shape[-1] % 2 == 0 else x.shape),
        lambda _, x, __: hx.reduce_sum(x, axes=(0,), keep_dims=False) if len(x.shape) > 2 else hx.relu(x),
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(500))
def test_a_random_network_of_tokens(seed: int) -> None:
    as_images(Tokens(seed).graph())


@pytest.mark.parametrize("seed", range(40))
def test_a_random_graph(seed: int) -> None:
    graph, feeds = random_graph(seed, "fp32")
    with np.errstate(all="ignore"):
        want, got = run_reference(graph, feeds), run_reference(tokens_as_images(graph), feeds)
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=2e-5, atol=2e-5, equal_nan=True)


def test_compressed_weights_stay_compressed(tmp_path: Path) -> None:
    x = hx.input("x", (1, 4, 64))
    graph = compress(hx.graph(hx.linear(x, weight((64, 64)))), Compression("palette4:g32"), load_target("host"))
    save_graph(for_engine(graph, CHIP), tmp_path / "net.aimodel")
    back = import_coreai(tmp_path / "net.aimodel")
    (conv,) = [n for n in back.nodes if n.op == "conv"]
    assert conv.inputs[1] is not None
    assert is_encoded(conv.inputs[1].node)
    feeds = feeds_of(graph)
    want, got = (next(iter(run_reference(g, feeds).values())) for g in (graph, back))
    np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["fp32", "fp16"])
@pytest.mark.parametrize("name", ["convnext", "vit", "swin", "bert", "gpt2", "whisper_encoder"])
def test_apples_runtime_computes_images(name: str, dtype: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    python = request.config.getoption("--apple-python")
    if not has_apple_runtime(python):
        pytest.skip("no coreai-core; pip install coreai-core==1.0.0b3, or --apple-python PATH of a Python that has it")
    graph = simplify(ARCHITECTURES[name](), CHIP)
    made = tokens_as_images(fuse_attention(graph, CHIP)) if dtype == "fp32" else for_engine(graph, CHIP)
    save_graph(made, tmp_path / "net.aimodel")
    feeds = feeds_of(graph)
    want = run_reference(graph, feeds)
    tolerance = 2e-5 if dtype == "fp32" else 2e-2
    for key, array in run_apple(python, tmp_path / "net.aimodel", feeds, tmp_path).items():
        np.testing.assert_allclose(array, want[key], rtol=tolerance, atol=tolerance * max(1, np.abs(want[key]).max()))
