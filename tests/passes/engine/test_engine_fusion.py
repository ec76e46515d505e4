"""Each fusion pass over layers: what it fires on, what it leaves alone, and that the layers still compute the same."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hexane as hx
from engine import run_layers
from engine_cases import FIRES, LEAVES, restart
from hexane.graph import Array, Graph, Node, Value
from hexane.graph.printer import print_graph
from hexane.ops import OPS, apply
from hexane.ops.reference import run_reference
from hexane.ops.slots import activation
from hexane.ops.verify import verify
from hexane.passes.engine.lower_segment import PHASES, lower_segment
from hexane.targets import Chip, load_target

H13 = load_target("h13")
assert isinstance(H13, Chip)
FUSION = [p.name for p in PHASES[1 : [p.name for p in PHASES].index("record_barriers")]]
CASES = [(name, case) for name in FIRES for case in FIRES[name]]
LEFT = [(name, case) for name in LEAVES for case in LEAVES[name]]


@pytest.fixture(autouse=True)
def _same_weights_in_whatever_order_tests_run() -> None:
    restart()


def ids(cases: list[tuple[str, str]]) -> list[str]:
    return [f"{name}-{case}" for name, case in cases]


def before(graph: Graph, name: str) -> Graph:
    """The graph as the pass gets it."""
    for phase in PHASES:
        if phase.name == name:
            break
        graph = phase.run(graph, H13)  # type: ignore[arg-type]
    return graph


def after(graph: Graph, name: str) -> Graph:
    return next(p for p in PHASES if p.name == name).run(graph, H13)  # type: ignore[arg-type]


def feeds(graph: Graph) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {str(v.node.attrs["name"]): rng.integers(-3, 4, v.shape).astype(v.dtype.numpy) for v in graph.inputs}


def same(graph: Graph, layers: Graph, exact: bool = True) -> None:
    want, got = run_reference(graph, feeds(graph)), run_layers(layers, feeds(graph))
    for name, array in want.items():
        if exact:
            np.testing.assert_array_equal(got[name], array)
        else:
            np.testing.assert_allclose(got[name], array, rtol=4e-3, atol=4e-3)


@pytest.mark.parametrize(("name", "case"), CASES, ids=ids(CASES))
def test_a_fusion_fires(name: str, case: str, golden: Callable[[str, str], None]) -> None:
    graph = hx.graph(FIRES[name][case]())
    had = before(graph, name)
    made = after(had, name)
    assert print_graph(made) != print_graph(had)
    verify(made, "engine", H13)
    same(graph, made, exact=case != "gelu")
    said = "\n".join(str(d).replace("\n", " ") for d in made.decisions[len(had.decisions) :])
    text = "\n".join([print_graph(had, sources=False), print_graph(made, sources=False), _without_places(said)])
    golden(f"engine/{name}_{case}", text)


def _without_places(said: str) -> str:
    return re.sub(r"engine_cases\.py:\d+", "model.py", said)


@pytest.mark.parametrize(("name", "case"), LEFT, ids=ids(LEFT))
def test_a_fusion_leaves_alone(name: str, case: str) -> None:
    graph = hx.graph(LEAVES[name][case]())
    had = before(graph, name)
    assert print_graph(after(had, name), sources=False) == print_graph(had, sources=False)
    assert after(had, name).decisions[: len(had.decisions)] == had.decisions


def test_every_fusion_has_its_cases() -> None:
    assert set(FIRES) == set(LEAVES) == set(FUSION)


@pytest.mark.parametrize(("name", "case"), [*CASES, *LEFT], ids=ids([*CASES, *LEFT]))
def test_all_of_the_passes_keep_what_a_graph_computes(name: str, case: str) -> None:
    make: Any = FIRES[name].get(case) or LEAVES[name][case]
    graph = hx.graph(make())
    layers = lower_segment(graph, H13)
    verify(layers, "engine", H13)
    same(graph, layers, exact=case not in ("gelu", "two_kinds", "inexact_division", "constant_divided"))


def test_a_wrong_fusion_gives_a_wrong_number() -> None:
    """The executor has nothing but the layers: what a slot says is what is computed."""
    graph = hx.graph(FIRES["simple_activation"]["after_a_bias"]())
    layers = lower_segment(graph, H13)

    def spoil(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op != "anec.convolution":
            return None
        slots = (node.attrs["epilogue"][0], activation("post_activation", "abs"))
        return apply(OPS[node.op], inputs, {**node.attrs, "epilogue": slots}, node.sources)

    same(graph, layers)
    with pytest.raises(AssertionError):
        same(graph, layers.rewrite(spoil))
