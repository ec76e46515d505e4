"""The memory of a network as one HTML file that works offline: verdict, ways of computing it, the arena over time, and
its layers."""

from dataclasses import asdict
from typing import Any

from hexane.report.fit import Fit
from hexane.report.html_document import html_document


def fit_page(fit: Fit, name: str) -> str:
    """Returns the page."""
    words = f"{name} {fit.verdict}."
    styles, scripts = ("page.css", "fit.css"), ("common.js", "parts.js", "fit.js")
    return html_document(f"{name}: memory", words, {"model": name, **_data(fit)}, styles, scripts)


def _data(fit: Fit) -> dict[str, Any]:
    """Returns the record. Long lists (`each` and `timeline`) are rows of values without names."""
    data = fit.to_json()
    data["each"] = [list(asdict(one).values()) for one in fit.each]
    data["timeline"] = [list(asdict(one).values()) for one in fit.timeline]
    return data
