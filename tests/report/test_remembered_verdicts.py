"""Verdicts are remembered, and shared by chips that look the same to the rules: they have to be those of a fresh
start."""

import pytest

from cases import CASES, arrays, graph_of
from hexane.graph import Node
from hexane.ops import LEAVES
from hexane.targets import Chip
from hexane.targets.query import chip_names, load_chip
from hexane.validate import judge, judge_all, verdict_cache

CHIPS: list[Chip] = [load_chip(name) for name in chip_names(all=True)]


@pytest.fixture(scope="module")
def nodes() -> list[Node]:
    """Those of the graph of every case, operands first, each once."""
    graphs = [graph_of(op, op.cases[index], arrays(op, op.cases[index])) for op, index in CASES]
    return list(dict.fromkeys(node for graph in graphs for node in graph.nodes))


def test_chips_that_look_the_same_share_what_each_would_get_alone(nodes: list[Node]) -> None:
    together = judge_all(nodes, CHIPS)
    assert len({id(found) for found in together}) < len(CHIPS)
    for chip, found in zip(CHIPS, together, strict=True):
        verdict_cache._caches.clear()
        assert judge_all(nodes, [chip])[0] == found, chip.name


def test_what_is_remembered_is_what_was_found(nodes: list[Node]) -> None:
    assert judge_all(nodes, CHIPS) == judge_all(nodes, CHIPS)


@pytest.mark.parametrize("name", ["h12", "h13", "h14", "h17s"])
def test_one_node_is_judged_like_all(nodes: list[Node], name: str) -> None:
    chip = load_chip(name)
    found = judge_all(nodes, [chip])[0]
    verdict_cache._caches.clear()
    assert [judge(node, chip) for node in nodes if node.op not in LEAVES] == found
