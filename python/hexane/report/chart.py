"""Draws a comparison: the distance of each target from the base by layer, and how close numbers come to overflow."""

import io
from collections.abc import Sequence

from hexane.report.compare import ComparedLayer, Comparison
from hexane.report.difference import Difference
from hexane.report.plotting import check_plotting

FLOOR, CEILING = 1e-7, 1e7  # drawn in place of 0 and infinity on the logarithmic axis
LIMITS = ((32768.0, "accumulator"), (65504.0, "fp16"))


def chart(comparison: Comparison, kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". Raises Error if matplotlib is not
    installed."""
    check_plotting("compare")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    layers = comparison.layers
    figure = Figure(figsize=(min(max(8.0, 0.3 * len(layers)), 40.0), 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    distances, sizes = figure.subplots(2, 1, sharex=True)
    for i, names in enumerate(_alike(comparison)):
        style = {"color": f"C{i}", "marker": "osD^v<>p"[i % 8], "markersize": 5, "linewidth": 1, "alpha": 0.8}
        label = ", ".join(comparison.labels[name] for name in names)
        ranges = [(x, layer.ranges[names[0]]) for x, layer in enumerate(layers) if names[0] in layer.ranges]
        largest = [(x, max(abs(r[0]), abs(r[1]), FLOOR)) for x, r in ranges if r is not None]
        sizes.plot(*_columns(largest), **style, label=label)
        points = [
            (x, d) for x, layer in enumerate(layers) if (d := _from_base(comparison, layer, names[0])) is not None
        ]
        if points:
            heights = [(x, min(max(d.relative_l2, FLOOR), CEILING)) for x, d in points]
            distances.plot(*_columns(heights), **style, label=label)
            over = [height for height, (_, d) in zip(heights, points, strict=True) if d.overflows]
            distances.plot(*_columns(over), "x", color=f"C{i}", markersize=12, markeredgewidth=2)
    for limit, name in LIMITS:
        sizes.axhline(limit, color="grey", linestyle=":", linewidth=1)
        sizes.annotate(name, (0, limit), xytext=(2, 2), textcoords="offset points", color="grey", fontsize=8)
    for axes in (distances, sizes):
        axes.set_yscale("log")
        axes.grid(alpha=0.3)
        axes.legend(loc="best", fontsize=8)
    distances.set_ylabel(f"relative L2 from {comparison.labels[comparison.base]} (x: overflows)")
    sizes.set_ylabel("largest finite number")
    sizes.set_xticks(
        range(len(layers)), [f"{layer.number} {layer.node.op}" for layer in layers], rotation=90, fontsize=7
    )
    figure.suptitle(f"{comparison.name}: {', '.join(comparison.labels.values())}", fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()


def _alike(comparison: Comparison) -> list[list[str]]:
    """Groups the targets for drawing: targets with equal numbers in every layer share a line."""
    groups: dict[object, list[str]] = {}
    for name in comparison.targets:
        seen = tuple((layer.ranges.get(name), _from_base(comparison, layer, name)) for layer in comparison.layers)
        groups.setdefault((name == comparison.base, seen), []).append(name)
    return list(groups.values())


def _from_base(comparison: Comparison, layer: ComparedLayer, name: str) -> Difference | None:
    return layer.differences.get(name) if layer.base == comparison.base else None


def _columns(points: Sequence[tuple[int, float]]) -> tuple[list[int], list[float]]:
    return [x for x, _ in points], [y for _, y in points]
