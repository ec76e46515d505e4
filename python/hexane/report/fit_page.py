"""What memory a network takes as one HTML file that needs no network: verdict, ways of computing it, the arena over
time, its layers."""

from dataclasses import asdict
from typing import Any

from hexane.report.fit import Fit
from hexane.report.html_document import html_document


def fit_page(found: Fit, name: str) -> str:
    """The page. What comes from a model is data in it, never markup; it may run its own script and nothing else, and
    load nothing."""
    words = f"{name} {found.verdict}."
    styles, scripts = ("page.css", "fit.css"), ("common.js", "parts.js", "fit.js")
    return html_document(f"{name}: memory", words, {"model": name, **_data(found)}, styles, scripts)


def _data(found: Fit) -> dict[str, Any]:
    """Of `each` and `timeline`, which may be long, rows of values instead of records."""
    data = found.to_json()
    data["each"] = [list(asdict(one).values()) for one in found.each]
    data["timeline"] = [list(asdict(one).values()) for one in found.timeline]
    return data
