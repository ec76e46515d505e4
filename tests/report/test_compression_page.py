"""The page and the picture of `hexane compress`: every layer with what it might have become, one file, names as text;
and in Chromium, where that is installed."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

import hexane as hx
from chromium import Chromium
from hexane.graph.origins import source_scope
from hexane.options import Options
from hexane.report.compression_chart import compression_chart
from hexane.report.compression_page import compression_page
from hexane.runtime.compile_graphs import compile_compressed
from hexane.runtime.compressed import Compressed

pytestmark = pytest.mark.filterwarnings("ignore")
HOSTILE = "<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"
REMARKS = {"dense in the file": [HOSTILE, "stem"]}
LIMIT = 0.2


@pytest.fixture(scope="module")
def made() -> Compressed:
    rng = np.random.default_rng(4)
    y = hx.input("image", (1, 32, 8, 8))
    for name in ("stem", HOSTILE, "head"):
        with source_scope(name):
            y = hx.relu(hx.conv(y, (rng.standard_normal((32, 32, 3, 3)) * 0.1).astype(np.float32), pad=1))
    asked = hx.Compression("auto", tolerance=LIMIT, per_layer={"*head*": "blockwise4:b8"})
    return compile_compressed(hx.graph({"y": y}), asked, Options(target="M4"), surveys=True)[0]


def page_of(made: Compressed) -> str:
    return compression_page(HOSTILE, "M4 (h16g)", made, REMARKS, LIMIT)


def test_a_survey_measures_each_layer_and_all_together(made: Compressed) -> None:
    survey = made.survey
    assert survey is not None
    for layer, choices in zip(made.layers, survey.layers, strict=True):
        known = {choice.encoding: choice for choice in choices}
        assert {"int8", "palette4", "none", layer.encoding} <= known.keys()
        assert (known[layer.encoding].bytes, known[layer.encoding].error) == (layer.bytes_after, layer.error)
        assert known["none"].error == 0
    alike = {one.encoding: one for one in survey.alike}
    assert alike["none"].error == 0
    assert alike["none"].bytes == sum(layer.bytes_before for layer in made.layers)
    assert alike["palette2"].error > alike["palette4"].error > alike["int8"].error > 0
    assert [one.bytes for one in survey.mixed] == sorted(one.bytes for one in survey.mixed)
    assert survey.mixed[0].bytes == sum(min(choice.bytes for choice in choices) for choices in survey.layers)


def test_what_is_measured_of_all_layers_is_the_error_of_a_program_with_them(made: Compressed) -> None:
    """Of one encoding, on the inputs of the survey, by the decompressed weights in NumPy's hands."""
    assert made.survey is not None
    rng = np.random.default_rng(4)
    kernels = [(rng.standard_normal((32, 32, 3, 3)) * 0.1).astype(np.float32) for _ in range(3)]

    def run(weights: list[np.ndarray], x: np.ndarray) -> np.ndarray:
        for w in weights:
            padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
            windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), axis=(2, 3))
            x = np.maximum(np.einsum("ncyxij,ocij->noyx", windows, w), 0)
        return x

    def rounded(w: np.ndarray) -> np.ndarray:
        scale = (np.abs(w).max(axis=(1, 2, 3), keepdims=True) / 127).astype(np.float16).astype(np.float32)
        return np.round(w / scale) * scale

    feeds = np.random.default_rng(0)
    worst = 0.0
    for _ in range(2):
        x = feeds.standard_normal((1, 32, 8, 8)).astype(np.float32)
        whole, got = run(kernels, x), run([rounded(w) for w in kernels], x)
        worst = max(worst, float(np.linalg.norm(whole - got) / np.linalg.norm(whole)))
    found = next(one for one in made.survey.alike if one.encoding == "int8")
    assert found.error == pytest.approx(worst, rel=1e-3)


def test_the_page_has_every_layer_and_choice_as_data(made: Compressed) -> None:
    text = page_of(made)
    kept = re.search(r'<script type="application/json" id="data">(.*?)</script>', text)
    assert kept is not None
    data = json.loads(kept[1])
    assert made.survey is not None
    for layer, choices, record in zip(made.layers, made.survey.layers, data["layers"], strict=True):
        assert (record["layer"], record["encoding"], record["error"]) == (layer.layer, layer.encoding, layer.error)
        assert record["choices"] == [[one.encoding, one.bytes, one.error] for one in choices]
    assert (data["error"], data["limit"]) == (made.error, LIMIT)
    assert "<img" not in text
    assert not re.search(r"""(src|href)\s*=\s*["']?http""", text)


def test_in_a_browser_it_shows_points_layers_and_choices(browser: Chromium, made: Compressed, tmp_path: Path) -> None:
    path = tmp_path / "compressed.html"
    path.write_text(page_of(made), encoding="utf-8")
    browser.open(path.as_uri())
    assert browser.complaints() == []
    assert browser.requests() == [path.as_uri()]
    assert browser.evaluate("document.querySelector('h1').textContent") == HOSTILE
    assert browser.evaluate("document.querySelectorAll('img, main script').length") == 0
    assert made.survey is not None
    drawn = sum(one.error > 0 for one in made.survey.alike)
    assert browser.evaluate("document.querySelectorAll('circle.alike').length") == drawn
    assert browser.evaluate("document.querySelectorAll('text.alike-label').length") == drawn
    assert browser.evaluate("document.querySelectorAll('circle.written, line.tolerance').length") == 2
    chosen = browser.evaluate("[...document.querySelectorAll('td.chosen')].map(cell => cell.cellIndex)")
    heads = browser.evaluate(
        "[...[...document.querySelectorAll('table')].at(-1).tHead.rows[0].cells].map(c => c.textContent)"
    )
    assert [heads[index] for index in chosen] == [one.encoding for one in made.layers if one.encoding != "none"]
    assert f"{HOSTILE}, stem: dense in the file" in browser.evaluate("document.querySelector('.remarks').textContent")


@pytest.mark.parametrize(("kind", "start"), [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_the_picture_is_a_file_of_its_kind(made: Compressed, kind: str, start: bytes) -> None:
    pytest.importorskip("matplotlib")
    assert compression_chart("net $x$", made, LIMIT, kind).startswith(start)
