"""The verdicts for a network on many chips as one HTML file that works offline."""

from collections.abc import Sequence
from typing import Any

from hexane.errors import Error
from hexane.program import Segment
from hexane.report.advice import what_to_do
from hexane.report.html_document import Table, html_document
from hexane.report.outcome import answer
from hexane.report.report import DEVICES, WORDS, Report, word_of
from hexane.targets import Verdict


def html_page(reports: Sequence[Report]) -> str:
    """Returns the page of reports on one network, one per chip. Raises Error for reports on several networks, and for
    none.

    Names become data in the page, never markup.
    """
    if not reports or any(report.graph is not reports[0].graph for report in reports):
        raise Error(f"[page] got {len(reports)} reports, need one or more on one graph")
    name = reports[0].name
    words = f"{name}: {answer(report.outcome for report in reports)}."
    return html_document(f"{name} on the Neural Engine", words, _data(reports), ("page.css",), ("common.js", "page.js"))


def _data(reports: Sequence[Report]) -> dict[str, Any]:
    """Returns the data of the page. verdicts: without duplicates. patterns: a node's verdicts, one for each group of
    chips with equal verdicts; without duplicates. nodes: (op, type, pattern, where), all but the last as indices.
    divisions: lists of segments, without duplicates. chips: their group, their division and their facts."""
    groups: dict[int, list[Verdict]] = {}
    divisions, division = Table(), {}
    for i, report in enumerate(reports):
        division[i] = divisions.place(tuple(map(_segment, report.segments)))
        if id(report.entries) not in groups:
            groups[id(report.entries)] = [entry.verdict for entry in report.entries]
    verdicts, patterns, ops, types = Table(), Table(), Table(), Table()
    number: dict[int, int] = {}  # the index of each verdict; most are one object for many nodes
    nodes = []
    for entry, *by_chip in zip(reports[0].entries, *groups.values(), strict=True):
        for verdict in by_chip:
            if id(verdict) not in number:
                number[id(verdict)] = verdicts.place(verdict)
        pattern = patterns.place(tuple([number[id(verdict)] for verdict in by_chip]))
        nodes.append([ops.place(entry.op), types.place(entry.type), pattern, entry.where])
    places = {key: i for i, key in enumerate(groups)}
    weights = reports[0].weights
    return {
        "model": reports[0].name,
        "answer": answer(report.outcome for report in reports),
        "advice": [one.record() for one in what_to_do(reports)],
        "known": _known(reports),
        "kinds": list(WORDS),
        "weights": str(weights) if weights.tensors else "",
        "chips": [_chip(report, places[id(report.entries)], division[i]) for i, report in enumerate(reports)],
        "divisions": divisions.items,
        "verdicts": [_verdict(verdict) for verdict in verdicts.items],
        "patterns": patterns.items,
        "ops": ops.items,
        "types": types.items,
        "nodes": nodes,
    }


def _known(reports: Sequence[Report]) -> list[tuple[str, list[str]]]:
    """Returns the known facts about the ops, with the chips for which they hold."""
    by_finding: dict[str, list[str]] = {}
    for report in reports:
        for finding in report.findings:
            by_finding.setdefault(str(finding), []).append(report.chip.label)
    return list(by_finding.items())


def _segment(segment: Segment) -> tuple[Any, ...]:
    """(device, number of ops, names of ops, number and bytes of values read from other segments, why it is a segment of
    its own)"""
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
    chip, streams, mil = report.chip, report.chip.facts["formats.streams"], report.mil
    return {
        "name": chip.name,
        "lead": chip.lead,
        "title": chip.title,
        "products": list(chip.products),
        "silicon": chip.silicon,
        "family": str(chip.family),
        "tier": str(chip.tier),
        "ok": report.ok,
        "runs": report.outcome.kind,
        "verdict": str(report.outcome),
        "mil": "" if mil is None else mil.reject,
        "mil_source": "" if mil is None else f"{mil.source}, {mil.status}",
        "counts": list(report.told_counts.values()),
        "group": group,
        "division": division,
        "streams": list(report.streams),
        "streams_source": f"{streams.source}, {streams.status}",
    }


def _verdict(v: Verdict) -> dict[str, Any]:
    return {
        "kind": WORDS.index(word_of(v)),
        "reason": v.reason,
        "rule": v.rule,
        "reject": v.reject,
        "published": v.published,
        "source": f"{v.source}, {v.status}",
        "change": v.change,
        "form": v.form,
        "claims": [f"{c.value} ({c.source}, {c.status})" for c in v.claims],
    }
