"""The page of `hexane check --html` in Chromium: filters, rows that open, addresses that keep a view.

Without Chromium these tests are left out, and the last line of the test run says so. `make test` installs it on Debian
under CI=true, as root. What the page says is checked without a browser in test_page.py.
"""

import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chromium import Chromium
from hexane.graph.origins import source_scope
from hexane.report import html_page
from hexane.report.preflight import examine
from hexane.targets.query import load_chip

HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"
ROWS = "[...document.querySelectorAll('tr.row')].map(row => row.querySelector('.name').textContent)"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A network with something of every verdict, and a name that is no name."""
    y = hx.input("image", (1, 3, 32, 32))
    with source_scope("stem"):
        y = hx.conv(y, np.ones((8, 3, 15, 15), np.float32), pad=7)
    for i in range(3):
        with source_scope(f"layer{i}"):
            y = hx.relu(hx.conv(y, np.full((8, 8, 3, 3), i, np.float32), pad=1))
    with source_scope("wave"):
        y = hx.sin(y)
    with source_scope(HOSTILE):
        y = hx.tan(y)
    with source_scope("head"):
        y = hx.topk(hx.reshape(y, shape=(1, 8192)), k=5)[0]
    chips = [load_chip(name) for name in ("h13", "h13g", "h14", "h17s")]
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(html_page(examine(hx.graph(y), chips, HOSTILE)), encoding="utf-8")
    return path.as_uri()


def test_the_worst_is_on_top_and_names_are_text(browser: Chromium, page: str) -> None:
    browser.open(page)
    assert browser.evaluate(ROWS) == ["topk", "tan", "conv", "sin", "conv", "relu", "reshape"]
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("document.title") == f"{HOSTILE} on the Neural Engine"
    assert browser.complaints() == []
    assert browser.requests() == [page]


def test_what_no_program_in_mil_reaches_is_said_under_the_chips(browser: Chromium, page: str, tmp_path: Path) -> None:
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('.netplists').length") == 0
    path = tmp_path / "older.html"
    chips = [load_chip(name) for name in ("h11", "h12", "h13")]
    path.write_text(html_page(examine(hx.graph(hx.relu(hx.input("x", (1, 4)))), chips)), encoding="utf-8")
    browser.open(path.as_uri())
    said = browser.evaluate("[...document.querySelectorAll('.netplists')].map(line => line.textContent)")
    assert len(said) == 1
    assert said[0].startswith("As a netplist only: iPhone XS (h11); iPhone 11 (h12).")
    assert "MIL is only supported for H13+" in said[0]


def test_filters_leave_what_they_name(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('[data-verdict=host]').click()")
    assert browser.evaluate(ROWS) == ["tan"]
    browser.evaluate("document.querySelector('[data-verdict=\"made to fit\"]').click()")
    assert browser.evaluate(ROWS) == ["tan", "conv"]
    browser.evaluate("document.querySelector('[data-chip=h17s]').click()")
    assert browser.evaluate(ROWS) == ["tan"]
    assert browser.evaluate("document.getElementById('found').textContent") == "1 of 11 ops"
    browser.evaluate("document.getElementById('clear').click()")
    assert len(browser.evaluate(ROWS)) == 7
    browser.evaluate(
        "find = document.getElementById('q'); find.value = 'LAYER1'; find.dispatchEvent(new Event('input'))"
    )
    assert browser.evaluate(ROWS) == ["conv", "relu"]


def test_a_row_opens_into_its_reasons(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.evaluate("document.querySelectorAll('tr.row')[2].click()")
    told = browser.evaluate("document.querySelector('tr.detail').innerText")
    for words in (
        "Invalid conv kernel width = 15, It should be in [1,13]",
        "word for word",
        "tiled: kernel width, 2 pieces",
        "validator Conv",
        "guide ch22, decoded",
        "iPhone 12, M1 (h13); M1 Pro, M1 Max, M1 Ultra (h13g); iPhone 13, M2 (h14)",
        "stem",
        "fp32[1, 8, 32, 32]",
    ):
        assert words in told
    browser.evaluate("document.querySelectorAll('tr.row')[2].click()")
    assert browser.evaluate("document.querySelector('tr.detail')") is None


def test_segments_are_shown_for_the_chips_that_get_them(browser: Chromium, page: str) -> None:
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('.division').length") > 1
    browser.evaluate("document.querySelector('[data-chip=h17s]').click()")
    told = browser.evaluate("document.getElementById('divisions').textContent")
    assert "segments" in told
    assert "h17s" in told
    assert "h13" not in told
    assert "tan" in told
    assert "does not run on the engine: no chip has a path for it" in told


def test_an_address_keeps_the_view(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('[data-chip=h13]').click(); document.getElementById('order').click()")
    browser.evaluate("document.querySelectorAll('tr.row')[0].click()")
    address = browser.evaluate("location.href")
    assert re.fullmatch(re.escape(page) + "#chip=h13&order=network&open=0", address)
    browser.open(address)
    in_order = ["conv", *["conv", "relu"] * 3, "sin", "tan", "reshape", "topk"]
    assert browser.evaluate(ROWS) == in_order
    assert "Invalid conv kernel" in browser.evaluate("document.querySelector('tr.detail').innerText")
    browser.open(f"{page}#op=nothing&chip=h99&verdict=odd&open=x")
    assert len(browser.evaluate(ROWS)) == 7
    assert browser.complaints() == []


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_ops_are_shown_a_part_at_a_time(browser: Chromium, tmp_path: Path, count: int) -> None:
    y = hx.input("x", (1, 4))
    for i in range(count):
        y = hx.tan(y) if i % 1000 == 999 else hx.leaky_relu(y, alpha=i)
    path = tmp_path / "large.html"
    path.write_text(html_page(examine(hx.graph(y), [load_chip("h13"), load_chip("h14")])), encoding="utf-8")
    assert path.stat().st_size < 200 * count
    browser.open(f"{path.as_uri()}#order=network&open={count - 500}")
    shown = browser.evaluate("document.querySelectorAll('tr.row').length")
    assert shown <= 200
    assert browser.evaluate("document.querySelector('tr.row.open').dataset.node") == str(count - 500)
    browser.evaluate("document.querySelector('#matrix .link').click()")
    assert browser.evaluate("document.querySelectorAll('tr.row').length") > shown


def test_a_picture_can_be_taken_at_every_width(browser: Chromium, page: str, tmp_path: Path) -> None:
    for width in (380, 1280, 2000):
        browser.open(page, width)
        wide = browser.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "the page must not scroll sideways, only its tables"
        browser.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
