"""The page of `hexane explain --html`: one file, its data, and names that try to be markup."""

import json
import re
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.report.explain import Explanation, explain
from hexane.report.explanation_page import explanation_page
from hexane.report.html_document import html_document

HOSTILE = "</script><script>alert('&quot;')</script><!-- \u2028 \u202e \ud800"


def network(name: str = "net/conv") -> Graph:
    """Engine, host, engine; a tensor that is spilled."""
    x = hx.input("x", (1, 64, 96, 128))
    with source_scope(name):
        y = hx.relu(hx.conv(x, np.ones((64, 64, 3, 3), np.float32), pad=1))
    with source_scope("wave"):
        y = hx.tan(y)
    with source_scope("sum"):
        y = hx.add(hx.relu(y), x)
    return hx.graph(y, name=name)


@pytest.fixture(scope="module")
def found() -> Explanation:
    return explain(network(), "h13")


def data(page: str) -> dict[str, Any]:
    made = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert made
    record: dict[str, Any] = json.loads(made[1])
    return record


def test_every_layer_and_tensor_is_in_the_data(found: Explanation) -> None:
    record = data(explanation_page(found))
    words, program = record["words"], found.program
    assert len(record["layers"]) == len(program.layers)
    for row, layer, work in zip(record["layers"], program.layers, found.work, strict=True):
        (
            name,
            kind,
            slots,
            engine,
            segment,
            partition,
            reads,
            makes,
            operations,
            loaded,
            stored,
            weights,
            on_chip,
            *_,
        ) = row
        assert (words[name], words[kind], engine, segment, partition) == (
            layer.name, layer.kind, layer.engine, layer.segment, layer.partition,
        )  # fmt: skip
        assert ([words[slot] for slot in slots], reads, makes) == (list(layer.slots), [*layer.reads], [*layer.makes])
        assert (operations, loaded, stored) == (work.operations, layer.loaded, layer.stored)
        assert weights == (layer.weights.bytes if layer.weights else 0)
        assert on_chip == found.occupancy[layer.index].bytes
    for row, tensor in zip(record["tensors"], program.tensors, strict=True):
        assert (words[row[1]], row[2], row[3]) == (str(tensor.type), tensor.producer, [*tensor.readers])
        assert words[row[5]] == tensor.allocation
        assert record["meaning"][tensor.allocation]


def test_rectangles_are_the_stays_and_never_overlap(found: Explanation) -> None:
    record = data(explanation_page(found))
    rectangles = [
        (first, last, offset, offset + size)
        for row in record["tensors"]
        for _, size, places, _ in row[-1]
        for first, last, offset in places
    ]
    assert len(rectangles) == sum(len(s.offsets) for t in found.program.tensors for s in t.stays)
    for i, (first, last, low, high) in enumerate(rectangles):
        for other_first, other_last, other_low, other_high in rectangles[:i]:
            assert last < other_first or other_last < first or high <= other_low or other_high <= low
    assert any(cost >= 0 for row in record["tensors"] for *_, cost in row[-1]), "a spilled one is among them"


def test_every_decision_is_in_the_data_and_found_from_its_layer(found: Explanation) -> None:
    record = data(explanation_page(found))
    words, program = record["words"], found.program
    told = [tuple(words[i] for i in texts) for texts in record["decisions"]]
    assert told == [(d.stage, d.node, d.verdict, d.reason, d.source) for d in program.decisions]
    for layer, row in zip(program.layers, record["layers"], strict=True):
        sources, own = row[-2:]
        assert all(told[i][1] == layer.name or told[i][0] == "schedule" for i in own)
        said = {told[i] for source in sources for i in record["decided"].get(str(source), [])} | {told[i] for i in own}
        story = found.story(layer.index)
        for line in story.lines:
            if line.phase in ("fusion", "legalisation", "order", "co-issue", "weights"):
                assert any(verdict == line.verdict and reason == line.reason for _, _, verdict, reason, _ in said)


def test_equal_words_are_there_once() -> None:
    x = hx.input("x", (1, 4, 8, 8))
    for i in range(500):
        with source_scope(f"n{i}"):
            x = hx.max_pool(x, kernel_sizes=(3, 3), strides=(1, 1), pad=1)
    page = explanation_page(explain(hx.graph(x), "h13"))
    assert page.count("nothing else was ready") == 1
    assert len(data(page)["layers"]) == 500


def test_names_of_a_model_are_never_markup() -> None:
    page = explanation_page(explain(network(HOSTILE), "h13"))
    plain = explanation_page(explain(network(), "h13"))
    assert page.count("<script") == plain.count("<script") == 2
    assert data(page)["model"] == HOSTILE
    assert HOSTILE in data(page)["sources"]
    assert page.encode("utf-8", "xmlcharrefreplace")


def test_the_page_loads_nothing_and_runs_its_own_script_only(found: Explanation) -> None:
    page = explanation_page(found)
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert re.fullmatch(r"default-src 'none'; style-src 'sha256-[^']+'; script-src 'sha256-[^']+'", policy[1])
    assert not re.search(r"<(link|img|iframe)| (src|href)=", page)
    shell = html_document("t", "w", {}, ("page.css",), ("common.js",))
    assert re.search(r"style-src '([^']*)'", shell) != re.search(r"style-src '([^']*)'", page)
