"""A network on many chips as one HTML file that needs no network: verdicts as data, rows made by the page's own script."""

import json
from base64 import b64encode
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.program import Segment
from hexane.report.report import DEVICES, WORDS, Report
from hexane.targets import Verdict

FOLDER = Path(__file__).parent


def html_page(reports: Sequence[Report]) -> str:
    """The page on reports of one network, one for each chip. Raises Error for reports of several networks, and for none.

    What comes from a model is data in the page, never markup; the page may run its own script and nothing else, and load nothing.
    """
    if not reports or any(report.graph is not reports[0].graph for report in reports):
        raise Error(f"[page] got {len(reports)} reports, need one or more on one graph")
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    name, ok = reports[0].name, sum(report.ok for report in reports)
    data = json.dumps(_data(reports), separators=(",", ":")).replace("<", "\\u003c")
    policy = f"default-src 'none'; style-src {_source(style)}; script-src {_source(script)}"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(name)} on the Neural Engine</title>
<style>{style}</style>
</head>
<body>
<noscript>{escape(name)} runs on {ok} of {len(reports)} chips. This page needs its script to show more.</noscript>
<script type="application/json" id="data">{data}</script>
<script>{script}</script>
</body>
</html>
"""


def _source(text: str) -> str:
    """What a policy allows by its content."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"


def _data(reports: Sequence[Report]) -> dict[str, Any]:
    """verdicts: each once; patterns: for each group of chips with equal verdicts the verdict of a node, each pattern once;
    nodes: (op, type, pattern, where), all but the last by their place in a list; divisions: lists of segments, each once; chips: their
    group and division beside what is known of them."""
    groups: dict[int, list[Verdict]] = {}
    divisions, division = _Table(), {}
    for report in reports:
        if id(report.entries) not in groups:
            groups[id(report.entries)] = [entry.verdict for entry in report.entries]
            division[id(report.entries)] = divisions.place(tuple(map(_segment, report.segments)))
    verdicts, patterns, ops, types = _Table(), _Table(), _Table(), _Table()
    number: dict[int, int] = {}  # of verdicts, most of which are one object for many nodes
    nodes = []
    for entry, *found in zip(reports[0].entries, *groups.values(), strict=True):
        for verdict in found:
            if id(verdict) not in number:
                number[id(verdict)] = verdicts.place(verdict)
        pattern = patterns.place(tuple([number[id(verdict)] for verdict in found]))
        nodes.append([ops.place(entry.op), types.place(entry.type), pattern, entry.where])
    places = {key: i for i, key in enumerate(groups)}
    weights = reports[0].weights
    return {
        "model": reports[0].name,
        "kinds": list(WORDS.values()),
        "weights": str(weights) if weights.tensors else "",
        "chips": [_chip(report, places[id(report.entries)], division[id(report.entries)]) for report in reports],
        "divisions": divisions.items,
        "verdicts": [_verdict(verdict) for verdict in verdicts.items],
        "patterns": patterns.items,
        "ops": ops.items,
        "types": types.items,
        "nodes": nodes,
    }


class _Table:
    """Items in the order in which they came, each once."""

    def __init__(self) -> None:
        self.places: dict[Any, int] = {}

    def place(self, item: Any) -> int:
        return self.places.setdefault(item, len(self.places))

    @property
    def items(self) -> list[Any]:
        return list(self.places)


def _segment(segment: Segment) -> tuple[Any, ...]:
    """(device, number of ops, their names, values that it reads of others, bytes of those, why it is a segment of its own)"""
    names = ", ".join(dict.fromkeys(node.op for node in segment.nodes))
    return (
        DEVICES[segment.device],
        len(segment.nodes),
        names,
        len(segment.crossings),
        segment.crossing_bytes,
        segment.why,
    )


def _chip(report: Report, group: int, division: int) -> dict[str, Any]:
    chip, streams = report.chip, report.chip.facts["formats.streams"]
    return {
        "name": chip.name,
        "products": list(chip.products),
        "silicon": chip.silicon,
        "family": str(chip.family),
        "tier": str(chip.tier),
        "ok": report.ok,
        "counts": list(report.counts.values()),
        "group": group,
        "division": division,
        "streams": list(report.streams),
        "streams_source": f"{streams.source}, {streams.status}",
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "kind": list(WORDS).index(v.verdict),
        "reason": v.reason,
        "rule": v.rule,
        "reject": v.reject,
        "published": v.published,
        "source": f"{v.source}, {v.status}",
        "change": v.change,
        "form": v.form,
        "claims": [f"{c.value} ({c.source}, {c.status})" for c in v.claims],
    }
