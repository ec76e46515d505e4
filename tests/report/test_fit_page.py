"""The page of `hexane fit --html`: all of a report, one file, names as text; and in Chromium, where that is
installed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chromium import Chromium
from hexane.graph.origins import source_scope
from hexane.report.fit_page import fit_page

HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"


@pytest.fixture(scope="module")
def found() -> hx.Fit:
    y = hx.input("image", (1, 3, 32, 32))
    rng = np.random.default_rng(0)
    for name in ("stem", HOSTILE, "a/very/long/name/" * 12, "head"):
        with source_scope(name):
            y = hx.relu(hx.conv(y, rng.standard_normal((8, y.shape[1], 3, 3)).astype(np.float32), pad=1))
    return hx.fit(hx.graph({"y": y}), memory=hx.Memory("64K", flash="32K", stream_input=True))


@pytest.fixture(scope="module")
def page(found: hx.Fit, tmp_path_factory: pytest.TempPathFactory) -> str:
    path: Path = tmp_path_factory.mktemp("page") / "fit.html"
    path.write_text(fit_page(found, HOSTILE), encoding="utf-8")
    return path.as_uri()


def test_the_page_has_all_of_the_report_as_data(found: hx.Fit):
    text = fit_page(found, HOSTILE)
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert kept is not None
    data = json.loads(kept[1])
    assert (data["model"], data["verdict"]) == (HOSTILE, found.verdict)
    assert len(data["each"]) == len(found.each) == found.steps
    assert len(data["timeline"]) == len(found.timeline)
    assert "<img" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", text)


def test_in_a_browser_it_shows_each_part(browser: Chromium, page: str, found: hx.Fit):
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page]
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    heads = browser.evaluate("[...document.querySelectorAll('h2')].map(head => head.firstChild.textContent)")
    assert heads == [
        "Causes",
        "Ways to run the network that no other way beats",
        "The arena",
        "Latency",
        "Largest layers",
        "Every step",
    ]
    assert browser.evaluate("document.querySelectorAll('rect.held').length") == len(found.timeline)
    assert browser.evaluate("document.querySelectorAll('circle').length") == len(found.ways)
    assert browser.evaluate("document.querySelectorAll('.causes li').length") == len(found.causes)
    assert browser.evaluate("[...document.querySelectorAll('rect.held')].every(box => box.getBBox().height >= 0)")


@pytest.mark.parametrize("width", [1360, 420])
def test_in_a_browser_no_part_is_wider_than_the_window(browser: Chromium, page: str, width: int):
    browser.open(page, width, 900)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
