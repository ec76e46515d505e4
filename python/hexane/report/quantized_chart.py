"""Draws the error of each layer of a quantised network: of its own result, and of the outputs if it alone is
quantised."""

import io
from collections.abc import Sequence

from hexane.quant import QuantizedLayer
from hexane.report.plotting import check_plotting

MOST_LABELS = 60  # More names would be too small to read.


def quantized_chart(name: str, layers: Sequence[QuantizedLayer], error: float | None, kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". error: of the whole network. Raises Error if
    matplotlib is not installed."""
    check_plotting("quantize")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 1.6 + 0.24 * min(len(layers), MOST_LABELS)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    series = (("the layer's own result", "error", "o", "C0"), ("the outputs, with it alone", "output_error", "D", "C1"))
    for label, field, marker, color in series:
        points = [(getattr(layer, field), place) for place, layer in enumerate(layers)]
        known = [(value, place) for value, place in points if value]
        if known:
            values, places = zip(*known, strict=True)
            kept = [color if layers[place].dtype != "float" else "none" for place in places]
            axes.scatter(values, places, marker=marker, facecolors=kept, edgecolors=color, label=label)
    if error:
        axes.axvline(error, color="C3", linestyle="--", label="the outputs, with all that are in integers")
    labels = [layer.name for layer in layers] if len(layers) <= MOST_LABELS else []
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(layers) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.set_xlabel("relative error (empty: the layer stayed in floats)")
    axes.grid(axis="x", which="both", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    axes.set_title(f"{name}: error of each layer in integers", fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()
