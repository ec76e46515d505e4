"""The page of results: one file with every section, which loads nothing and quotes names as text."""

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from chromium import MISSING, Chromium, find_chromium
from hexane.bench import Configuration, run, worker
from hexane.bench.page import html_page
from hexane.bench.suite import _cliffs
from hexane.cli.main import app

CHAIN = {"channels": 16, "depth": 2, "height": 2, "width": 4}
SMALL = (
    Configuration("dispatch", "bound call", "relu", {"elements": 64}, "fp32"),
    Configuration("peak", "conv 16x2", "conv_chain", CHAIN, "fp32"),
    Configuration("peak", "conv3x3 16x2", "conv_chain", CHAIN | {"kernel": 3}, "fp32"),
    Configuration("peak", "gemm 8", "gemm", {"rows": 8, "inner": 8, "columns": 8}, "fp32"),
    Configuration("int8", "conv 16x2", "conv_chain", CHAIN, "fp32"),
    Configuration("int8", "int8 16x2", "int8_chain", CHAIN, "fp32"),
    Configuration("threads", "relu, 2 at once", "relu", {"elements": 64}, "fp32", "threads", 2),
    Configuration("io", "<script>alert(1)</script>", "relu", {"elements": 64}, "fp32"),
    Configuration("io", "broken <b>", "pool", {}, "fp32"),
)
SECTIONS = (
    "Environment",
    "What a call costs",
    "Peak rates",
    "weights (sram)",
    "activations (sram)",
    "8 bits",
    "Threads",
)


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    """What a run says of small configurations, with memory whose cliffs lie at 2 and 4 MiB."""

    def measured(c: Configuration, *_: object) -> dict[str, Any]:
        return {"error": "no network"} if c.network == "pool" else worker.run(c, "cpu", 0.01, 1)

    with pytest.MonkeyPatch.context() as patch:  # in this process: 9 others take seconds to start
        patch.setattr("hexane.bench.suite._measured", measured)
        found = run(SMALL, "cpu", seconds=0.01, threads=1)
    sample = found["results"][0]
    for side, cliff in (("weights", 4), ("activations", 2)):
        for i in range(20):
            mib = 2 ** (i / 2 - 4)
            us = (90 + 10 * mib + 20 * max(mib - cliff, 0)) * (1.002 if i % 2 else 0.998)
            times = dict.fromkeys(sample["times_us"], us) | {"variation": 0.1}
            of = {"probe": "sram", "side": side, "name": f"{side} {i}", f"{side.removesuffix('s')}_bytes": mib * 2**20}
            found["results"].append(sample | of | {"times_us": times})
    return found | {"cliffs": _cliffs(found["results"])}


def test_a_page_has_every_section_and_says_what_was_measured(document: dict[str, Any]) -> None:
    page = html_page(document)
    heads = re.findall(r"<h2>(.*?)</h2>", page)
    assert all(any(section in head for head in heads) for section in SECTIONS)
    assert "Measured on the CPU, not on a Neural Engine." in page
    assert f"1 of {len(document['results'])} have no right result" in page
    tiles = re.findall(r'<div class="tile"><b>(.*?)</b><small>(.*?)</small>', page)
    assert [small.partition(":")[0] for _, small in tiles] == [
        "floor of a call (10 to 90 %",
        "peak of conv 1x1, median",
        "peak of conv 3x3, median",
        "peak of matmul, median",
        "cliff of activations (95 %",
        "cliff of weights (95 %",
        "int8 (W8A8) against fp32, at most",
    ]
    assert tiles[4][0] == "2 MiB"
    assert tiles[5][0] == "4 MiB"
    assert page.count("<svg") == 1 + 3 + 2 + 1 + 1  # dispatch, peaks, memory, threads, io
    assert page.count('class="interval"') == 2
    for key in ("power", "os_build", "energy", "date", "load before the run", "highest load during the run"):
        assert f"<td>{key}</td>" in page


def test_a_page_has_date_and_load_and_warns_of_a_busy_machine(document: dict[str, Any]) -> None:
    where = document["environment"] | {"cores": 2}
    quiet = document | {
        "environment": where,
        "date": "2026-03-01T12:00:00+00:00",
        "repeats": 5,
        "load": {"before": 0.4, "highest": 1.9, "own": 2},
    }
    page = html_page(quiet)
    assert "2026-03-01 12:00:00 UTC, 5 repeats, load 0.4 before the run and at most 1.9 during it." in page
    assert "warning: " not in page
    page = html_page(quiet | {"load": {"before": 7.3, "highest": 7.9, "own": 2}})
    assert '<p class="wrong">warning: the machine was busy (load 7.3 before the run, 2 cores)' in page
    bare = html_page({key: value for key, value in document.items() if key not in ("date", "load", "repeats")})
    assert "date not told, 1 repeat, load not told before the run" in bare


def test_a_page_marks_calls_that_its_cores_cannot_make(document: dict[str, Any]) -> None:
    two = next(r for r in document["results"] if r["mode"] == "threads")
    alone = two | {"name": "relu, alone", "threads": 1, "calls_per_second": two["calls_per_second"] / 5.2}
    where = document["environment"] | {"cores": 2}
    page = html_page(document | {"environment": where, "results": [alone, two]})
    assert "5.2 times as many calls per second as alone" in page
    assert "noise: 2 threads on 2 cores make at most 2 times as many" in page


def test_a_page_loads_nothing_and_closes_what_it_opens(document: dict[str, Any]) -> None:
    page = html_page(document)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "http:" not in page
    assert "https:" not in page
    assert "default-src 'none'" in page
    open_tags: list[str] = []

    class Balance(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag != "meta":
                open_tags.append(tag)

        def handle_startendtag(self, tag: str, attrs: object) -> None:
            pass

        def handle_endtag(self, tag: str) -> None:
            assert open_tags.pop() == tag

    Balance().feed(page)
    assert open_tags == []


@pytest.mark.parametrize("kept", range(3))
def test_a_page_of_one_probe_has_its_sections_alone(document: dict[str, Any], kept: int) -> None:
    page = html_page(document | {"results": document["results"][kept : kept + 1], "cliffs": []})
    assert "<h2>Threads</h2>" not in page
    assert "<h2>Environment</h2>" in page
    assert page.count("<svg") == 1


def test_all_ends_with_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("hexane.bench.configurations", lambda probe, device: list(SMALL[:1]))
    monkeypatch.setattr("hexane.bench.suite._measured", lambda c, *_: worker.run(c, "cpu", 0.01, 1))
    monkeypatch.chdir(tmp_path)
    for options, made in ((("all",), "hexane-bench.html"), (("dispatch", "--html", "a.html"), "a.html")):
        with pytest.raises(SystemExit) as ended:
            app(["bench", *options, "--seconds", "0.01"], prog_name="hexane")
        assert ended.value.code == 0
        assert f"wrote {made}" in capsys.readouterr().out
        assert "What a call costs" in (tmp_path / made).read_text()


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chromium]:
    program = find_chromium()
    if program is None:
        pytest.skip(MISSING)
    with Chromium(program, tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.mark.slow
@pytest.mark.parametrize("width", [400, 1000])
def test_a_browser_shows_it_without_a_complaint(
    document: dict[str, Any], browser: Chromium, tmp_path: Path, width: int
) -> None:
    path = tmp_path / "page.html"
    path.write_text(html_page(document))
    browser.open(path.as_uri(), width)
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.evaluate("document.documentElement.scrollWidth <= innerWidth")
    outside = """[...document.querySelectorAll('svg')].filter(svg => [...svg.querySelectorAll('text')].some(t => {
        const a = t.getBBox(), b = svg.viewBox.baseVal;
        return a.x < 0 || a.x + a.width > b.width || a.y < 0 || a.y + a.height > b.height; })).length"""
    assert browser.evaluate(outside) == 0
