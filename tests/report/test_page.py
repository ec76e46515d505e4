"""The page of `hexane check --html`: one file, its data, and names that try to be markup."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import hexane as hx
from hexane.graph import Graph
from hexane.graph.origins import source_scope
from hexane.report import Report, html_page
from hexane.report.preflight import examine
from hexane.targets.query import load_chip

HOSTILE = "</script><script>alert('&quot;')</script><!-- \u2028 \u202e \ud800"


def network(name: str = "net/tan") -> Graph:
    with source_scope(name):
        y = hx.tan(hx.relu(hx.input("x", (1, 4))))
    return hx.graph(hx.sin(y) @ np.ones((4, 2), np.float32))


def reports(graph: Graph, *chips: str, name: str = "net.onnx") -> list[Report]:
    return examine(graph, [load_chip(chip) for chip in chips or ("h13", "h13g", "h14", "h17s")], name)


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def data(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    record: dict[str, Any] = json.loads(found[1])
    return record


def test_every_verdict_is_in_the_data() -> None:
    made = reports(network())
    record = data(html_page(made))
    assert [chip["name"] for chip in record["chips"]] == ["h13", "h13g", "h14", "h17s"]
    for report, chip in zip(made, record["chips"], strict=True):
        assert (chip["ok"], chip["counts"]) == (report.ok, list(report.told_counts.values()))
        for entry, (op, kind, pattern, where) in zip(report.entries, record["nodes"], strict=True):
            verdict = record["verdicts"][record["patterns"][pattern][chip["group"]]]
            assert (record["ops"][op], record["types"][kind], where) == (entry.op, entry.type, entry.where)
            assert (verdict["reason"], verdict["change"]) == (entry.verdict.reason, entry.verdict.change)
            assert record["kinds"][verdict["kind"]] in ("native", "decomposed", "host")


def test_chips_that_no_program_in_mil_reaches_are_told_apart() -> None:
    chips = data(html_page(reports(network(), "h12", "h13")))["chips"]
    assert [chip["mil"] for chip in chips] == ["MIL is only supported for H13+ ANE architectures", ""]
    assert [chip["mil_source"] for chip in chips] == ["ANEForge 0.4.0, read", ""]


def test_every_segment_is_in_the_data() -> None:
    made = reports(network())
    record = data(html_page(made))
    for report, chip in zip(made, record["chips"], strict=True):
        found = record["divisions"][chip["division"]]
        assert [(device, ops, why) for device, ops, *_, why in found] == [
            ("engine" if s.device == "ane" else "CPU", len(s.nodes), s.why) for s in report.segments
        ]
        assert sum(values for *_, values, _, _ in found) == len(report.crossings)


def test_equal_verdicts_are_there_once() -> None:
    x = hx.input("x", (1, 4))
    for _ in range(1000):
        x = hx.tan(x)
    page = html_page(reports(hx.graph(x), "h13", "h14"))  # both measured: one verdict with one status
    assert page.count("no chip has a path for it") == 1
    assert len(data(page)["nodes"]) == 1000


def test_names_of_a_model_are_never_markup() -> None:
    page = html_page(reports(network(HOSTILE), name=HOSTILE))
    plain = html_page(reports(network(), name="net"))
    assert [tag for tag, _ in Tags(page).found] == [tag for tag, _ in Tags(plain).found]
    assert data(page)["model"] == HOSTILE
    assert HOSTILE in {where for *_, where in data(page)["nodes"]}
    assert page.encode("utf-8", "xmlcharrefreplace")


def test_the_page_loads_nothing_and_runs_its_own_script_only() -> None:
    found = Tags(html_page(reports(network()))).found
    assert not [
        tag for tag, attrs in found if tag in ("link", "img", "iframe") or attrs.keys() & {"src", "href", "onclick"}
    ]
    policy = next(attrs["content"] for tag, attrs in found if attrs.get("http-equiv") == "Content-Security-Policy")
    assert policy
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_a_page_needs_reports_on_one_network() -> None:
    with pytest.raises(hx.Error, match="got 0 reports"):
        html_page([])
    with pytest.raises(hx.Error, match="need one or more on one graph"):
        html_page([*reports(network()), *reports(network("other"))])
