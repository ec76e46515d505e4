"""The gradients of an attention become one step on this CPU, whose numbers are those of the ops that it takes the place
of."""

from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Array, Graph
from hexane.pipeline import lower
from hexane.program.work import multiply_adds
from hexane.targets import load_target
from oracles import all_values

SHAPE = (2, 3, 37, 16)


def gradients(
    shape: tuple[int, ...] = SHAPE, key: tuple[int, ...] | None = None, mask: Any = None, **attrs: Any
) -> Graph:
    query, weight = hx.input("query", shape), hx.input("weight", shape)
    keys, values = hx.input("key", key or shape), hx.input("value", key or shape)
    y = hx.scaled_dot_product_attention(query, keys, values, *([] if mask is None else [mask]), **attrs)
    made = hx.grad(hx.reduce_sum(y * weight), [query, keys, values])
    return hx.graph(dict(zip(("dq", "dk", "dv"), made, strict=True)))


def kernels(graph: Graph) -> list[str]:
    net = hx.compile(graph)
    assert isinstance(net, hx.Model)
    return [step["kernel"] for step in net.steps]


def feeds_of(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    feeds: dict[str, Array] = {}
    for value in graph.inputs:
        drawn = rng.standard_normal(value.shape)
        feeds[str(value.node.attrs["name"])] = drawn > 0 if value.dtype.name == "bool" else drawn.astype(np.float32)
    return feeds


FORMS: dict[str, Any] = {
    "plain": {},
    "causal": {"causal": True},
    "scale": {"scale": 0.5},
    "hidden": {"mask": hx.input("mask", (37, 37), "bool"), "hidden": -3.0},
    "added": {"mask": hx.input("mask", (3, 37, 37))},
    "constant": {"mask": np.arange(37) % 5 != 3},
    "two axes": {"shape": (20, 8)},
}


@pytest.mark.parametrize("form", FORMS)
def test_it_is_one_step_with_the_same_numbers(form: str) -> None:
    graph = gradients(**FORMS[form])
    assert kernels(graph) == ["attention_gradient"]
    assert sum(map(multiply_adds, lower(graph, load_target("host")).nodes)) == sum(map(multiply_adds, graph.nodes))
    feeds = feeds_of(graph)
    got, known = hx.compile(graph)(**feeds), all_values(graph, feeds)
    for port in graph.outputs:
        right = known[port.value]
        assert np.abs(got[port.name] - right).max() <= 4e-6 * np.abs(right).max()


@pytest.mark.parametrize(
    "form",
    [
        {"shape": (2, 3, 37, 16), "key": (2, 1, 37, 16)},
        {"shape": (2, 30, 16), "key": (2, 37, 16)},
        {"zero_hidden": True},
    ],
    ids=["heads that share keys", "other keys than queries", "rows that become 0"],
)
def test_other_forms_stay_as_they_are(form: dict[str, Any]) -> None:
    assert "attention_gradient" not in kernels(gradients(**form))


def test_a_mask_that_learns_stays_as_it_is() -> None:
    query, keys, values, mask = (hx.input(n, s) for n, s in zip("qkvm", [(9, 4)] * 3 + [(9, 9)], strict=True))
    y = hx.scaled_dot_product_attention(query, keys, values, mask)
    made = hx.grad(hx.reduce_sum(y * y), [query, keys, values, mask])
    assert "attention_gradient" not in kernels(hx.graph({str(i): t for i, t in enumerate(made)}))


def test_scores_that_are_also_a_result_stay_as_they_are() -> None:
    query, keys, values = (hx.input(n, (9, 4)) for n in "qkv")
    weights = hx.softmax(hx.matmul(query, keys, transpose_y=True) * 0.5, axis=-1)
    made = hx.grad(hx.reduce_sum(hx.matmul(weights, values) ** 2.0), [query, keys, values])
    assert "attention_gradient" not in kernels(hx.graph({"p": weights, **{str(i): t for i, t in enumerate(made)}}))


def test_each_layer_of_a_decoder_has_one() -> None:
    model = hx.train.llama(hx.train.LlamaConfig(dim=16, hidden=32, layers=3, heads=2, vocab=20, seq=8))
    step = hx.train.step(model.loss, list(model.params.values()), hx.train.adamw(1e-3))
    assert kernels(step).count("attention_gradient") == 3
