"""The sentence on where a network runs, and what to do: one text in the terminal, the page and JSON."""

import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from test_page import data

import hexane as hx
from hexane.build import Tensor
from hexane.graph.origins import source_scope
from hexane.report import html_page
from hexane.report.advice import MOST, NO_CHANGE, what_to_do
from hexane.report.outcome import Outcome, answer
from hexane.report.preflight import examine
from hexane.targets.query import load_chip


def x(*shape: int) -> Tensor:
    return hx.input("x", shape)


def tangent() -> Tensor:
    with source_scope("net/tan"):
        return hx.tan(hx.relu(x(4, 4)))


NETWORKS: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: hx.relu(x(4, 4)), "runs whole on the engine"),
    (tangent, "1 of 2 ops on the engine, 1 on the CPU, in 2 parts"),
    (lambda: hx.tan(x(4, 4)), "does not run on the engine: 1 op on the CPU"),
    (lambda: hx.relu(x(1, 3, 8, 20000)), "2 of 5 ops on the engine, 3 on the CPU, in 3 parts"),
    (lambda: hx.scaled_dot_product_attention(*(hx.input(n, (1, 2, 16, 8)) for n in "qkv")), "runs whole on the engine"),
]


@pytest.mark.parametrize(("build", "sentence"), NETWORKS, ids=[sentence for _, sentence in NETWORKS])
def test_one_sentence_is_the_verdict_everywhere(build: Callable[[], Tensor], sentence: str) -> None:
    report = hx.preflight(build(), "M1")
    assert str(report.outcome) == sentence
    assert re.match(rf"graph on M1 \(h13\): {re.escape(sentence)}[:;] ", str(report))
    record = json.loads(report.to_json())
    assert (record["verdict"], record["runs"]) == (sentence, report.outcome.kind)
    assert record["ok"] == report.ok == sentence.startswith("runs whole")
    page = data(html_page([report]))
    assert (page["answer"], page["chips"][0]["verdict"]) == (sentence, sentence)
    assert f"graph: {sentence}." in html_page([report])


def test_the_verdict_on_several_chips_counts_them() -> None:
    whole, parts, none = Outcome(3, 0, 1), Outcome(75, 2, 3), Outcome(0, 4, 1)
    assert answer([parts]) == "75 of 77 ops on the engine, 2 on the CPU, in 3 parts"
    assert answer([whole, whole]) == "runs whole on both chips"
    assert answer([whole, whole, whole]) == "runs whole on all 3 chips"
    assert answer([parts, parts]) == "runs in parts on both chips"
    assert answer([none, none]) == "runs on none of the 2 chips"
    assert answer([none, parts, none]) == "runs in parts on 1 of 3 chips, not on 2"
    assert answer([whole, parts, none]) == "runs whole on 1 of 3 chips, in parts on 1, not on 1"


def test_an_op_that_is_made_to_fit_is_not_counted_as_oversize() -> None:
    report = hx.preflight(hx.relu(x(1, 3, 8, 20000)), "M1")
    assert report.summary.endswith(": 1 made to fit")
    assert [row[0] for row in report.rows()] == ["made to fit"]
    page = data(html_page([report]))
    assert dict(zip(page["kinds"], page["chips"][0]["counts"], strict=True))["oversize"] == 0


def test_what_to_do_has_a_change_its_gain_and_its_place() -> None:
    report = hx.preflight(tangent(), "M1")
    (one, *_) = report.advice
    assert (one.change, one.place, one.chips) == (report.host[0].verdict.change, "tan at net/tan", ("M1 (h13)",))
    assert one.gain == "1 op fewer on the CPU; the network then runs whole on the engine"
    assert str(report).splitlines()[1:3] == ["what to do:", f"  1. {one}"]
    assert json.loads(report.to_json())["what_to_do"][0] == one.record()
    assert data(html_page([report]))["advice"][0] == one.record()


@pytest.mark.parametrize(
    ("ops", "place"),
    [
        (1, "softmax at net/0: iPhone 12 (A14, M1) and later run it on the engine"),
        (2, "softmax at net/0 and softmax at net/1: iPhone 12 (A14, M1) and later run them on the engine"),
        (3, "softmax at net/0 (1 of 3 ops): iPhone 12 (A14, M1) and later run them on the engine"),
    ],
)
def test_ops_that_only_newer_chips_run_promise_older_chips_no_gain(ops: int, place: str) -> None:
    y = x(4, 4)
    for i in range(ops):
        with source_scope(f"net/{i}"):
            y = hx.softmax(y)
    graph = hx.graph(y)
    assert str(hx.preflight(graph, "A12")).splitlines()[1:3] == ["what to do:", f"  1. {NO_CHANGE}: {place}"]
    (one, *_) = what_to_do(examine(graph, [load_chip(name) for name in ("A12", "A13", "M4")]))
    assert (str(one), one.chips) == (f"{NO_CHANGE}: {place}", ("A12 (h11)", "A13 (h12)"))


def test_a_change_beside_an_op_of_newer_chips_does_not_make_the_network_whole() -> None:
    graph = hx.graph({"y": hx.relu(x(1, 3, 8, 20000)), "z": hx.softmax(hx.input("t", (4, 4)))})
    first, second, *_ = hx.preflight(graph, "A12").advice
    assert (first.gain, second.change) == ("1 op fewer on the CPU", NO_CHANGE)


def test_what_to_do_keeps_to_three_lines_and_begins_with_what_brings_most() -> None:
    y = x(4, 4)
    for op in (hx.tan, hx.asin, hx.asin, hx.acosh, hx.acosh, hx.acosh):
        y = op(y)
    report = hx.preflight(hx.tanh(y), "M1")
    counts = [int(one.gain.split()[0]) for one in report.advice if not one.rule]
    assert len(report.advice) <= MOST
    assert counts == sorted(counts, reverse=True)
    assert not hx.preflight(hx.relu(x(64, 64)), "M1").advice


def test_a_reason_on_several_chips_names_its_chips() -> None:
    """A row of 20,000 is too wide for M1, not for M5."""
    reports = examine(hx.graph(hx.relu(x(1, 3, 8, 20000))), [load_chip("M1"), load_chip("M5")])
    (one,) = what_to_do(reports)
    assert one.chips == ("M1 (h13)",)
    assert "width 20000, the chip takes 16384" in one.change
    assert one.gain == "1 op fewer on the CPU; the network then runs whole on the engine on 1 chip"


def test_the_page_has_what_is_known_of_the_ops() -> None:
    reports = examine(hx.graph(hx.tanh(x(32, 64))), [load_chip("M1"), load_chip("M5")])
    known: list[Any] = data(html_page(reports))["known"]
    assert [text for text, _ in known] == [str(finding) for finding in reports[0].findings]
    assert known[0][1] == ["M1 (h13)", "M5 (h17)"]


def test_weights_alone_are_no_part() -> None:
    assert hx.preflight(hx.graph({"y": hx.const(np.ones(4, np.float32))}), "M1").ok
