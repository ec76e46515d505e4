"""Draws compressed weights: error of the outputs over bytes of all weights, and the alternatives for each layer."""

import io
from math import inf, isfinite, log2

from hexane.graph.printer import size_text
from hexane.report.plotting import check_plotting
from hexane.runtime.compressed import Compressed

MARKS = 5  # The approximate number of marks on the axis of bytes.
MOST_LABELS = 60  # The most names of layers: more would be too small to read.


def compression_chart(name: str, compression: Compressed, limit: float | None, kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". `compression` needs a survey. limit: the
    largest error asked for, if any. Raises Error if matplotlib is not installed."""
    check_plotting("compress")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    survey = compression.survey
    assert survey is not None
    height = 0.6 + 0.24 * min(len(compression.layers), MOST_LABELS)
    figure = Figure(figsize=(9.0, 5.2 + height), layout="constrained")
    FigureCanvasAgg(figure)
    over_bytes, of_layers = figure.subplots(2, height_ratios=(4.4, height))
    named = [one.encoding for one in survey.alike if one.encoding != "none"]
    style = {one: {"color": f"C{i % 10}", "marker": "os^D"[i // 10 % 4]} for i, one in enumerate(named)}

    mixed = [(one.bytes, one.error) for one in survey.mixed if 0 < one.error < inf]
    if mixed:
        over_bytes.plot(*zip(*mixed, strict=True), ".-", color="0.6", lw=1, label="mixtures")
    for one in survey.alike:
        if 0 < one.error < inf:
            over_bytes.scatter(one.bytes, one.error, zorder=3, **style[one.encoding])
            over_bytes.annotate(
                one.encoding, (one.bytes, one.error), xytext=(5, 4), textcoords="offset points", fontsize=8
            )
    size = sum(layer.bytes_after for layer in compression.layers)
    if compression.error and isfinite(compression.error):
        over_bytes.scatter(size, compression.error, marker="*", s=160, color="k", zorder=4, label="as written")
    whole = sum(layer.bytes_before for layer in compression.layers)
    over_bytes.axvline(whole, color="0.6", ls=":", lw=1, label="whole, in fp16")
    if limit is not None:
        over_bytes.axhline(limit, color="C3", ls="--", lw=1, label="tolerance")
    step = 1 << round(log2(max(whole, 1) / MARKS))
    marks = range(0, whole + 1, step)
    over_bytes.set_xticks(marks, [size_text(mark) for mark in marks], fontsize=8)
    over_bytes.set_xlim(0, whole * 1.06)
    over_bytes.set_yscale("log")
    over_bytes.set_xlabel("bytes of all weights")
    over_bytes.set_ylabel("relative error of the outputs")
    over_bytes.legend(fontsize=8, loc="upper right")

    for place, (layer, choices) in enumerate(zip(compression.layers, survey.layers, strict=True)):
        for choice in choices:
            if 0 < choice.error < inf:
                taken = choice.encoding == layer.encoding
                of_layers.scatter(
                    choice.error,
                    place,
                    **style[choice.encoding],
                    s=70 if taken else 22,
                    edgecolors="k" if taken else "none",
                    zorder=3 if taken else 2,
                )
    labels = [f"{layer.layer}  ({layer.encoding})" for layer in compression.layers]
    shown = labels if len(labels) <= MOST_LABELS else []
    of_layers.set_yticks(range(len(shown)), [label.replace("$", r"\$") for label in shown], fontsize=8)
    of_layers.set_ylim(len(labels) - 0.5, -0.5)
    of_layers.set_xscale("log")
    of_layers.set_xlabel("relative error of the outputs, with this layer alone compressed; ringed: its choice")
    for axes in (over_bytes, of_layers):
        axes.grid(which="both", alpha=0.25)
    for encoding, look in style.items():
        of_layers.scatter([], [], s=22, label=encoding, **look)
    figure.legend(*of_layers.get_legend_handles_labels(), loc="outside lower center", ncols=6, fontsize=8)
    over_bytes.set_title(f"{name}: error over bytes, on {compression.measured_on}".replace("$", r"\$"), fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()
