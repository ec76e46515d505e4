"""A training as one HTML file that works offline: its figures, and curves of its metrics."""

from hexane.report.html_document import html_document
from hexane.train.dashboard import Run

STYLES = ("page.css", "fit.css", "training.css")
SCRIPTS = ("common.js", "parts.js", "training.js")


def training_page(name: str, run: Run) -> str:
    """Returns the page of a run."""
    return html_document(
        f"{name}: training", f"{name}: {run.step} steps are done.", {"run": name, **run.record()}, STYLES, SCRIPTS
    )
