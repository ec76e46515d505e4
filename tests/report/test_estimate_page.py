"""The page and the picture of `hexane estimate`: all of the estimates, one file, names as text; and in Chromium, where
that is installed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chromium import Chromium
from hexane.cost.formula import SAID
from hexane.errors import Error
from hexane.graph.origins import source_scope
from hexane.report.estimate import remarks
from hexane.report.estimate_chart import estimate_chart
from hexane.report.estimate_page import estimate_page
from hexane.targets.query import load_chip

HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"
CHIPS = tuple(load_chip(name) for name in ("M1", "A14", "M5 Pro"))


@pytest.fixture(scope="module")
def found() -> list[hx.Estimate]:
    y = hx.input("image", (1, 64, 56, 56), "fp16")
    for i, name in enumerate(("stem", HOSTILE, "head")):
        with source_scope(name):
            y = hx.tan(y) if name == "head" else hx.conv(y, np.full((64, 64, 3, 3), (i + 1) / 64, np.float16), pad=1)
    return [hx.estimate(hx.graph({"y": hx.relu(y)}), chip) for chip in CHIPS]


@pytest.fixture(scope="module")
def page(found: list[hx.Estimate], tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "estimate.html"
    chips = (*CHIPS, load_chip("M4"))
    path.write_text(estimate_page(HOSTILE, chips, [*found, Error(f"[estimate] {HOSTILE}")]), encoding="utf-8")
    return path.as_uri()


def test_the_page_has_all_of_the_estimates_as_data(found: list[hx.Estimate]) -> None:
    text = estimate_page(HOSTILE, CHIPS, found)
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert kept is not None
    data = json.loads(kept[1])
    for one, record in zip(found, data["chips"], strict=True):
        assert (record["target"], record["latency_us"], record["p90_us"]) == (one.target, one.latency_us, one.p90_us)
        assert record["remarks"] == remarks(one)
        named = [(data["words"][row[1]], data["words"][row[4]], row[3]) for row in record["layers"]]
        assert named == [(layer.name, layer.bound, layer.us) for layer in one.layers]
    assert "<img" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", text)


def test_in_a_browser_it_shows_chips_and_the_layers_of_each(
    browser: Chromium, page: str, found: list[hx.Estimate]
) -> None:
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page]
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("document.querySelectorAll('circle.point').length") == len(found)
    assert browser.evaluate("document.querySelectorAll('circle.far').length") == sum(one.extrapolated for one in found)
    lines = browser.evaluate("[...document.querySelector('tbody').rows].map(row => row.cells[0].textContent)")
    assert lines == [*(one.target for one in found), "M4 (h16g)"]
    assert "[estimate]" in browser.evaluate("[...document.querySelector('tbody').rows].at(-1).textContent")
    for i, one in enumerate(found):
        browser.evaluate(
            f"(s => {{ s.value = '{i}'; s.dispatchEvent(new Event('change')); }})(document.querySelector('select'))"
        )
        bounds = browser.evaluate("[...document.querySelectorAll('#layers tbody tr')].map(r => r.cells[5].textContent)")
        assert bounds == [SAID.get(layer.bound, layer.bound) or "\u2013" for layer in one.layers]


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_picture_is_a_file_of_its_kind(found: list[hx.Estimate], kind: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    assert estimate_chart("net $x$", found, kind).startswith(start)


def test_the_picture_names_every_chip(found: list[hx.Estimate]) -> None:
    pytest.importorskip("matplotlib")
    text = estimate_chart("net", found, "svg").decode()
    assert all(f"<!-- {one.target} -->" in text for one in found)
