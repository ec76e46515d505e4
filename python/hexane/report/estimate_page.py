"""Latencies of a network as one HTML file that works offline: with intervals across chips, and the bottleneck of each
layer."""

from collections.abc import Sequence
from typing import Any

from hexane.cost import Estimate
from hexane.errors import Error
from hexane.report.estimate import remarks
from hexane.report.html_document import Table, html_document
from hexane.targets import Target

STYLES = ("page.css", "fit.css", "estimate.css")
SCRIPTS = ("common.js", "parts.js", "estimate.js")


def estimate_page(name: str, chips: Sequence[Target], estimates: Sequence[Estimate | Error]) -> str:
    """Returns the page on a network's estimates, with an estimate or an error per chip."""
    words = Table()
    rows = [
        {"target": chip.label, "error": str(one)} if isinstance(one, Error) else _chip(one, words)
        for chip, one in zip(chips, estimates, strict=True)
    ]
    data = {"model": name, "chips": rows, "words": words.items}
    return html_document(f"{name}: latency", f"{name}: {len(estimates)} chips were asked about.", data, STYLES, SCRIPTS)


def _chip(one: Estimate, words: Table) -> dict[str, Any]:
    """Returns the record, with each layer as a row. Texts are replaced by their indices in `words`."""
    record = {key: value for key, value in one.record().items() if key != "layers"}
    layers = [
        [
            layer.index,
            words.place(layer.name),
            words.place(layer.kind),
            layer.us,
            words.place(layer.bound),
            layer.utilisation,
            layer.operations,
            layer.weights,
            layer.traffic,
        ]
        for layer in one.layers
    ]
    return {**record, "remarks": remarks(one), "layers": layers}
