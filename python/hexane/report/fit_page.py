"""The memory of a network as one HTML file that needs no network: verdict, ways of computing it, the arena over time,
its layers."""

from dataclasses import asdict
from typing import Any

from hexane.report.fit import Fit
from hexane.report.html_document import html_document


def fit_page(fit: Fit, name: str) -> str:
    """The page. Content from a model is data in it, never markup. It runs only its own script and loads nothing."""
    words = f"{name} {fit.verdict}."
    styles, scripts = ("page.css", "fit.css"), ("common.js", "parts.js", "fit.js")
    return html_document(f"{name}: memory", words, {"model": name, **_data(fit)}, styles, scripts)


def _data(fit: Fit) -> dict[str, Any]:
    """The record, with `each` and `timeline`, which may be long, as rows of values."""
    data = fit.to_json()
    data["each"] = [list(asdict(one).values()) for one in fit.each]
    data["timeline"] = [list(asdict(one).values()) for one in fit.timeline]
    return data
