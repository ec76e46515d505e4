"""The page of `hexane explain --html` in Chromium: the schedule, a layer's story, filters, addresses, ten thousand
layers."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chromium import Chromium
from hexane.graph.origins import source_scope
from hexane.report.explain import Explanation, explain
from hexane.report.explanation_page import explanation_page

HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"
ROWS = "[...document.querySelectorAll('#layers tr.row')].map(row => Number(row.dataset.layer))"
DECISIONS = "[...document.querySelectorAll('#decisions tbody tr')].map(row => row.children[1].textContent)"


@pytest.fixture(scope="module")
def found() -> Explanation:
    """Two convolutions with a sum, behind a host segment; a name that is no name; a tensor that is spilled."""
    x = hx.input("image", (1, 64, 96, 128))
    with source_scope("start"):
        x = hx.relu(x)
    with source_scope("wave"):
        x = y = hx.tan(x)
    for i in range(2):
        with source_scope(f"conv_{i}"):
            y = hx.conv(y, np.full((64, 64, 3, 3), i + 1, np.float32), pad=1)
    with source_scope(HOSTILE):
        y = hx.add(y, x)
    with source_scope("end"):
        y = hx.relu(y)
    return explain(hx.graph(y, name=HOSTILE), "h13")


@pytest.fixture(scope="module")
def page(found: Explanation, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(explanation_page(found), encoding="utf-8")
    return path.as_uri()


def long_chain(count: int) -> Explanation:
    """The records of so many pools in a row, from those of three: compiling them all would take longer than this file
    may."""
    y = hx.input("x", (1, 4, 8, 8))
    for _ in range(3):
        y = hx.max_pool(y, kernel_sizes=(3, 3), strides=(1, 1), pad=1)
    found = explain(hx.graph(y), "h13")
    program = found.program
    layer, tensor = program.layers[1], program.tensors[1]
    stay = tensor.stays[0]
    layers = [replace(layer, index=i, reads=(i,), makes=(i + 1,)) for i in range(count)]
    tensors = []
    for i in range(count + 1):
        touches = tuple(j for j in (i - 1, i) if 0 <= j < count)
        here = replace(stay, first=touches[0], last=touches[-1], touches=touches)
        tensors.append(
            replace(tensor, index=i, producer=i - 1 if i else None, readers=(i,) * (i < count), stays=(here,))
        )
    once = {
        stage: next(d for d in program.decisions if d.node == layer.name and d.stage == stage)
        for stage in ("schedule", "co_issue")
    }
    whole = next(d for d in program.decisions if d.stage == "schedule" and d.verdict == "apple")
    log = (whole, *[once["schedule"]] * count, *[once["co_issue"]] * (count - 1))
    partitions = (replace(program.partitions[0], end=count),)
    return replace(
        found,
        program=replace(program, layers=tuple(layers), tensors=tuple(tensors), partitions=partitions, decisions=log),
    )


def point(layer: int, panel: str, part: float = 0.5) -> str:
    """A click on the middle of a layer, at this part of the height of a panel from its bottom."""
    return (
        f"(() => {{ const box = timeline.plot.getBoundingClientRect(); const [top, height] = PANELS.{panel};"
        f"return {{ bubbles: true, clientX: box.left + GUTTER + timeline.x({layer}) + timeline.step / 2,"
        f" clientY: box.top + top + height * (1 - {part}) }}; }})()"
    )


def test_names_are_text_and_nothing_is_loaded(browser: Chromium, page: str, found: Explanation) -> None:
    browser.open(page)
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert browser.evaluate("document.title") == f"{HOSTILE} on h13"
    assert browser.evaluate(ROWS) == list(range(len(found.program.layers)))
    assert browser.complaints() == []
    assert browser.requests() == [page]


def test_the_timeline_draws_every_layer_edge_and_stay(browser: Chromium, page: str, found: Explanation) -> None:
    browser.open(page)
    pieces = (
        "[...document.querySelectorAll('.plot path.{0}')].map(p => p.getAttribute('d').split('M').length -"
        " 1).reduce((a, b) => a + b, 0)"
    )
    program = found.program
    assert browser.evaluate(pieces.format("box")) == len(program.layers)
    assert browser.evaluate(pieces.format("arc")) == sum(
        len(t.readers) for t in program.tensors if t.producer is not None
    )
    assert browser.evaluate(pieces.format("place")) == sum(len(s.offsets) for t in program.tensors for s in t.stays)
    assert browser.evaluate("document.querySelectorAll('.plot line.limit, .plot line.capacity').length") == 4
    assert browser.evaluate("document.querySelectorAll('.plot path.spilled').length") >= 1
    browser.evaluate(f"timeline.plot.dispatchEvent(new PointerEvent('pointermove', {point(2, 'head')}))")
    told = browser.evaluate("document.querySelector('.tip.shown').innerText")
    assert "segment 1: CPU: tan \u25b8 segment 2: engine" in told


def test_a_click_on_a_layer_opens_its_story_with_producers_and_readers(
    browser: Chromium, page: str, found: Explanation
) -> None:
    browser.open(page)
    layer = next(layer for layer in found.program.layers if layer.kind == "ElementWise")
    browser.evaluate(f"timeline.plot.dispatchEvent(new MouseEvent('click', {point(layer.index, 'lanes')}))")
    told = browser.evaluate("document.querySelector('#story').innerText")
    for words in (
        "both operands are computed",
        "guide ch22, table 22.3",
        "post_activation",
        HOSTILE,
        "native",
        "simple_activation",
        "computed in the engine's arithmetic: ",
    ):
        assert words in told
    assert f"layer {layer.index}" in told
    assert browser.evaluate("document.querySelectorAll('.arc.from').length") == 1
    assert browser.evaluate("document.querySelectorAll('.place.made').length") >= 1
    producer = found.program.tensors[layer.reads[0]].producer
    browser.evaluate("[...document.querySelectorAll('#story .tensor')].at(1).querySelector('button').click()")
    assert browser.evaluate("document.querySelector('#story .number').textContent") == f"layer {producer}"
    browser.evaluate("document.querySelector('#story header .link').click()")
    assert browser.evaluate("document.querySelector('#story').textContent") == ""


def test_a_rectangle_names_its_tensor(browser: Chromium, page: str, found: Explanation) -> None:
    browser.open(page)
    tensor, stay = next(
        (t, s) for t in found.program.tensors for s in t.stays if not s.spilled and t.producer is not None
    )
    part = (stay.offsets[0] + stay.bytes / 2) / 2_097_152
    where = point(stay.first, "offsets", part)
    assert browser.evaluate("timeline.top") == 2_097_152
    browser.evaluate(f"timeline.plot.dispatchEvent(new PointerEvent('pointermove', {where}))")
    told = browser.evaluate("document.querySelector('.tip.shown').innerText")
    assert f"{stay.bytes:,} bytes at {stay.offsets[0]:,}" in told
    browser.evaluate(f"timeline.plot.dispatchEvent(new MouseEvent('click', {where}))")
    assert browser.evaluate("document.querySelector('#story .number').textContent") == f"layer {tensor.producer}"


def test_small_programs_are_drawn_as_high_as_large_ones(browser: Chromium, tmp_path: Path, page: str) -> None:
    path = tmp_path / "small.html"
    path.write_text(explanation_page(long_chain(3)), encoding="utf-8")
    browser.open(path.as_uri())
    pressed = "document.getElementById('fit').getAttribute('aria-pressed')"
    lines = "document.querySelectorAll('.plot line.capacity').length"
    assert (browser.evaluate(pressed), browser.evaluate(lines)) == ("true", 0)
    browser.evaluate("document.getElementById('fit').click()")
    assert (browser.evaluate(pressed), browser.evaluate(lines)) == ("false", 2)
    browser.open(page)
    assert browser.evaluate(pressed) == "false"


def test_filters_leave_what_they_name(browser: Chromium, page: str, found: Explanation) -> None:
    browser.open(page)
    layers, decisions = found.program.layers, found.program.decisions
    browser.evaluate("document.querySelector('[data-engine=NE]').click()")
    assert browser.evaluate(ROWS) == [layer.index for layer in layers if layer.engine == "NE"]
    assert browser.evaluate("document.querySelectorAll('.box.dim').length") >= 1
    assert 0 < len(browser.evaluate(DECISIONS)) < len(decisions)
    browser.evaluate("document.getElementById('clear').click()")
    assert len(browser.evaluate(DECISIONS)) == len(decisions)
    set_to = (
        "(name, value, what) => { const field = document.getElementById(name); field.value = value;"
        " field.dispatchEvent(new Event(what)); }"
    )
    browser.evaluate(f"({set_to})('stage', 'simple_activation', 'change')")
    assert set(browser.evaluate(DECISIONS)) == {"simple_activation"}
    fused = [layer.index for layer in layers if any("post_activation" in slot for slot in layer.slots)]
    assert browser.evaluate(ROWS) == fused
    browser.evaluate(f"({set_to})('stage', '', 'change')")
    browser.evaluate(f"({set_to})('q', 'CONV_1', 'input')")
    assert browser.evaluate(ROWS) == [layer.index for layer in layers if "conv_1" in layer.name]
    browser.evaluate(f"({set_to})('q', '', 'input')")
    browser.evaluate(f"({set_to})('partition', '1', 'change')")
    assert browser.evaluate(ROWS) == [layer.index for layer in layers if layer.partition == 1]


def test_an_address_keeps_the_view(browser: Chromium, page: str) -> None:
    browser.open(page)
    browser.evaluate("document.querySelector('[data-engine=PE]').click()")
    browser.evaluate("document.querySelectorAll('#layers tr.row')[1].click()")
    address = browser.evaluate("location.href")
    assert re.fullmatch(re.escape(page) + r"#engine=PE&layer=\d+", address)
    rows, told = browser.evaluate(ROWS), browser.evaluate("document.querySelector('#story').innerText")
    browser.open(address)
    assert (browser.evaluate(ROWS), browser.evaluate("document.querySelector('#story').innerText")) == (rows, told)
    browser.open(f"{page}#layer=999&engine=XX&stage=odd&partition=-1&segment=x")
    assert browser.evaluate("document.querySelector('#story').textContent") == ""
    assert browser.complaints() == []


@pytest.mark.parametrize("count", [2_000, pytest.param(10_000, marks=pytest.mark.slow)])
def test_thousands_of_layers_are_drawn_a_part_at_a_time(browser: Chromium, tmp_path: Path, count: int) -> None:
    path, found, at = tmp_path / "large.html", long_chain(count), count - 500
    path.write_text(explanation_page(found), encoding="utf-8")
    assert path.stat().st_size < 600 * count
    browser.open(f"{path.as_uri()}#layer={at}")
    assert browser.evaluate("document.querySelectorAll('#layers tr.row').length") <= 200
    assert browser.evaluate(f"timeline.from <= {at} && {at} < timeline.to && timeline.to - timeline.from < 100")
    assert browser.evaluate("document.querySelectorAll('.plot svg *').length") < 500
    browser.evaluate("[...document.querySelectorAll('.controls button')].find(b => b.textContent === 'All').click()")
    assert browser.evaluate("document.getElementById('range').textContent") == f"layers 0 to {count - 1} of {count:,}"
    assert browser.evaluate("document.querySelectorAll('.plot svg *').length") < 500
    assert browser.complaints() == []


def test_a_picture_can_be_taken_at_every_width(browser: Chromium, page: str, tmp_path: Path) -> None:
    for width in (380, 1280, 2000):
        browser.open(f"{page}#layer=1", width)
        wide = browser.evaluate("document.documentElement.scrollWidth")
        assert wide <= width, "the page must not scroll sideways, only its tables"
        browser.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
