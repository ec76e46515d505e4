"""Draws an arena: the byte range of each buffer over the steps of its live range."""

import io

from hexane.errors import Error
from hexane.report.fit import Fit

LABELLED = 0.04  # share of the picture's height: smaller boxes have no label


def arena_chart(fit: Fit, name: str, kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". Raises Error if matplotlib is not
    installed."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise Error("[fit] --plot needs matplotlib, which is not installed: pip install 'hexane[plot]'") from None
    figure = Figure(figsize=(min(max(8.0, 0.25 * fit.steps), 30.0), 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    top = max(fit.streamed, 1)
    for i, one in enumerate(fit.timeline):
        left, width = one.first - 0.5, one.last - one.first + 1
        box = Rectangle(
            (left, one.offset), width, one.bytes, facecolor=f"C{i % 10}", edgecolor="black", linewidth=0.4, alpha=0.75
        )
        box.set_hatch("//" if one.kept else "")
        axes.add_patch(box)
        if one.bytes >= LABELLED * top:
            rows = f" {one.kept}/{one.rows} rows" if one.kept else ""
            label = f"{one.kernel}{rows}, {one.bytes}"
            text = axes.text(left + 0.1, one.offset + one.bytes / 2, label, fontsize=7, va="center", clip_on=True)
            text.set_clip_path(box)
    axes.axhline(fit.bound, color="grey", linestyle=":", linewidth=1)
    axes.set_xlim(-0.5, fit.steps - 0.5)
    axes.set_ylim(0, top * 1.05)
    axes.set_xlabel("step")
    axes.set_ylabel("byte of the arena")
    axes.set_title(
        f"{name}: {fit.streamed} bytes streamed (hatched: rings of rows), {fit.whole} in whole tensors", fontsize=10
    )
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()
