"""The page of `hexane dashboard --html` in Chromium, where that is installed; tests/cli/test_cli_dashboard.py holds its
data."""

import json
from pathlib import Path

import pytest

from chromium import Chromium
from hexane.report.training_page import training_page
from hexane.train.dashboard import Plan, RunLog, run_of

HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"


def page_of(folder: Path, count: int) -> str:
    """Of a run whose 40th step has no finite loss, with an evaluation after every 25 steps."""
    entries = [
        {"call": c, "step": c + 1, "loss": None if c == 39 else 4 - c / 50, "lr": 3e-4, "norm": 1.5, "ms": 20 + c % 3}
        | ({"evaluation.loss": 4.25 - c / 50, f"evaluation.{HOSTILE}": 0.5} if c % 25 == 24 else {})
        for c in range(count)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    log = RunLog(folder / "log.jsonl")
    log.read()
    (folder / "page.html").write_text(training_page(HOSTILE, run_of(log, Plan(200, 1))), encoding="utf-8")
    return (folder / "page.html").as_uri()


def test_in_a_browser_it_shows_each_part(browser: Chromium, tmp_path: Path) -> None:
    page = page_of(tmp_path, 100)
    browser.open(page)
    assert browser.complaints() == []
    assert browser.requests() == [page]
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelector('.answer').textContent") == "100 of 200 steps done"
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    heads = browser.evaluate("[...document.querySelectorAll('h2')].map(head => head.firstChild.textContent)")
    assert heads == ["Loss", "Norm of gradients", "Learning rate", "Milliseconds of a step", "Evaluations"]
    assert browser.evaluate("document.querySelector('svg').querySelectorAll('.mean').length") == 2  # and a gap
    assert browser.evaluate("document.querySelectorAll('.held-dot').length") == 4
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 4
    assert browser.evaluate("!document.body.outerHTML.includes('NaN')")


def test_in_a_browser_it_shows_what_the_machine_did(browser: Chromium, tmp_path: Path) -> None:
    row = {"step": 1, "loss": 4.0, "lr": 3e-4, "norm": 1.5, "ms": 20, "tflops": 0.0625, "of_peak": 0.034}
    row |= {"memory": 3 << 29, "compiles_left": 47, "mw.cpu": 4321.0, "ms.engine": 1.5, "ms.products": 12.0}
    (tmp_path / "log.jsonl").write_text(json.dumps({"call": 0, **row}) + "\n")
    log = RunLog(tmp_path / "log.jsonl")
    log.read()
    (tmp_path / "page.html").write_text(training_page("run", run_of(log, Plan(2, 1))), encoding="utf-8")
    browser.open((tmp_path / "page.html").as_uri())
    assert browser.complaints() == []
    told = browser.evaluate("document.querySelector('.figures').textContent")
    for text in ("62.5 GFLOP/s", "the engine at 3.4 % of its peak", "4.32 W", "drawn by the cpu", "1.50 GiB", "47"):
        assert text in told, told
    lanes = browser.evaluate("[...document.querySelectorAll('tbody tr')].map(row => row.textContent)")
    assert lanes == ["products12 ms", "engine1.5 ms"]


@pytest.mark.parametrize("count", [0, 1])
def test_in_a_browser_a_run_that_has_just_begun_has_a_page(browser: Chromium, tmp_path: Path, count: int) -> None:
    browser.open(page_of(tmp_path, count))
    assert browser.complaints() == []
    told = browser.evaluate("document.querySelector('.answer').textContent")
    assert told == ("1 of 200 steps done" if count else "no step is done yet")


@pytest.mark.parametrize("width", [1360, 420])
def test_in_a_browser_no_part_is_wider_than_the_window(browser: Chromium, tmp_path: Path, width: int) -> None:
    browser.open(page_of(tmp_path, 100), width, 900)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
