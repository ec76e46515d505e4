"""Compressed weights as one HTML file that works offline: the outputs' error over bytes, and the encoding chosen for
each layer among its alternatives."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from math import isfinite
from typing import Any

from hexane.compression.search import Choice
from hexane.report.html_document import html_document
from hexane.runtime.compressed import Compressed, Point

STYLES = ("page.css", "fit.css", "compression.css")
SCRIPTS = ("common.js", "parts.js", "compression.js")


def compression_page(
    name: str, target: str, compression: Compressed, remarks: Mapping[str, Sequence[str]], limit: float | None
) -> str:
    """Returns the page. `compression` needs a survey. remarks: on how a file stores the layers' weights. limit: the
    user's limit of the error, if any."""
    survey = compression.survey
    assert survey is not None
    data = {
        "model": name,
        "target": target,
        "error": _finite(compression.error),
        "measured_on": compression.measured_on,
        "limit": limit,
        "remarks": [[words, list(layers)] for words, layers in remarks.items()],
        "alike": [_numbers(one) for one in survey.alike],
        "mixed": [_numbers(one) for one in survey.mixed],
        "layers": [
            {**asdict(layer), "error": _finite(layer.error), "choices": [_numbers(choice) for choice in choices]}
            for layer, choices in zip(compression.layers, survey.layers, strict=True)
        ],
    }
    words = f"{name}: {len(compression.layers)} weights for {target}."
    return html_document(f"{name}: compressed weights", words, data, STYLES, SCRIPTS)


def _numbers(one: Point | Choice) -> list[Any]:
    return [one.encoding, one.bytes, _finite(one.error)]


def _finite(error: float | None) -> float | None:
    return error if error is not None and isfinite(error) else None
