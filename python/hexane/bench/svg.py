"""Plots as SVG text, styled by the page's classes: bars with whiskers, and a curve against bytes with its breaks."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log2, log10
from typing import Any

from hexane.bench.table import figure, size

WIDTH = 860


@dataclass(frozen=True, slots=True)
class Bar:
    """A name, a value with the interval of its samples, and a class of the page's style."""

    name: str
    value: float
    low: float
    high: float
    kind: str = "one"


def bars(rows: Sequence[Bar], unit: str, samples: bool = True, most: float = 0) -> str:
    """A row for each bar, beginning at 0, with whiskers if values have samples. A bar that is too long is cut at the
    edge.

    most: the scale reaches at least to this value.
    """
    left, right, step = 250, 110, 22
    most = max(most, max(row.value for row in rows), sorted(row.high for row in rows)[(len(rows) - 1) // 2])
    scale = (WIDTH - left - right) / (most or 1)
    said = "; line: 10 to 90 % of the samples" if samples else ""
    parts = []
    for i, row in enumerate(rows):
        y, width = 8 + i * step, row.value * scale
        low, high = (left + min(max(end, 0), most) * scale for end in (row.low, row.high))
        parts.append(
            f'<text class="label" x="{left - 8}" y="{y + 12}" text-anchor="end">{escape(row.name)}</text>'
            f'<rect class="{escape(row.kind)}" x="{left}" y="{y}" width="{width:.1f}" height="16"/>'
            + (f'<path class="whisker" d="M{low:.1f} {y + 8}H{high:.1f}"/>' if samples else "")
            + f'<text class="value" x="{WIDTH - right + 8}" y="{y + 12}">{figure(row.value)}</text>'
        )
    height = 12 + len(rows) * step + 20
    parts.append(
        f'<path class="axis" d="M{left} 2V{height - 20}"/>'
        f'<text class="tick" x="{left}" y="{height - 6}">{escape(unit + said)}</text>'
    )
    return _svg(height, f"{unit} of {len(rows)} configuration{'s' if len(rows) > 1 else ''}", parts)


def curve(points: Sequence[Mapping[str, float]], breaks: Sequence[Mapping[str, Any]], x_name: str, y_name: str) -> str:
    """Medians against bytes with the band of 10 to 90 %, on logarithmic axes, and breaks with their intervals."""
    height, left, right, top, bottom = 330, 64, 16, 26, 46
    x0, x1 = log2(points[0]["bytes"]) - 0.3, log2(points[-1]["bytes"]) + 0.3
    y0 = log10(min(p["p10"] for p in points)) - 0.05
    y1 = log10(max(p["p90"] for p in points)) + 0.05

    def x(count: float) -> float:
        return left + (min(max(log2(count), x0), x1) - x0) / (x1 - x0) * (WIDTH - left - right)

    def y(value: float) -> float:
        return top + (y1 - log10(value)) / (y1 - y0) * (height - top - bottom)

    parts = []
    for b in breaks:
        low, at, high = x(b["low"]), x(b["bytes"]), x(b["high"])
        parts.append(
            f'<path class="interval" d="M{low:.1f} {top}H{high:.1f}V{height - bottom}H{low:.1f}Z"/>'
            f'<path class="break" d="M{at:.1f} {top}V{height - bottom}"/>'
            f'<text class="mark" x="{at:.1f}" y="{top - 8}" text-anchor="middle">{size(b["bytes"])}</text>'
        )
    for power in range(ceil(x0), floor(x1) + 1):
        if power % 2 == 0:
            at = x(2.0**power)
            parts.append(
                f'<path class="grid" d="M{at:.1f} {top}V{height - bottom}"/><text class="tick" x="{at:.1f}"'
                f' y="{height - bottom + 16}" text-anchor="middle">{size(2.0**power)}</text>'
            )
    for value in _steps(10**y0, 10**y1):
        parts.append(
            f'<path class="grid" d="M{left} {y(value):.1f}H{WIDTH - right}"/><text class="tick" x="{left - 6}"'
            f' y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>'
        )
    band = [(x(p["bytes"]), y(p["p90"])) for p in points] + [(x(p["bytes"]), y(p["p10"])) for p in reversed(points)]
    middle = [(x(p["bytes"]), y(p["p50"])) for p in points]
    parts.append(f'<polygon class="band" points="{_points(band)}"/><polyline class="line" points="{_points(middle)}"/>')
    parts.extend(f'<circle class="dot" cx="{px:.1f}" cy="{py:.1f}" r="2.6"/>' for px, py in middle)
    parts.append(
        f'<text class="tick" x="{WIDTH - right}" y="{height - 8}" text-anchor="end">{escape(x_name)}</text>'
        f'<text class="tick" x="{left}" y="{height - 8}">{escape(y_name)}; band: 10 to 90 % of the samples</text>'
    )
    return _svg(height, f"{y_name} over {x_name}", parts)


def _steps(least: float, most: float) -> Iterator[float]:
    """Labels 1, 2, 5, 10, ... between two numbers; finer steps if fewer than two labels lie between them."""
    for digits in ((1, 2, 5), (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9), tuple(1 + i / 10 for i in range(90))):
        steps = [
            d * 10.0**power
            for power in range(floor(log10(least)), ceil(log10(most)) + 1)
            for d in digits
            if least <= d * 10.0**power <= most
        ]
        if len(steps) >= 2:
            break
    yield from steps


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in pairs)


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img"><title>{escape(title)}</title>{body}</svg>'
