"""Draws a training: its loss with evaluations, and below it the norm of the gradients, the learning rate and the time
of a step."""

import io
from math import isfinite

import numpy as np

from hexane.report.plotting import check_plotting
from hexane.train.dashboard import Run, thinned

MOST_POINTS = 1200
PANELS = (("norm", "norm"), ("lr", "learning rate"), ("ms", "ms a step"))


def training_chart(name: str, run: Run, kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". Raises Error if matplotlib is not
    installed."""
    check_plotting("dashboard")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 8.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(4, 1, sharex=True, height_ratios=(3, 1, 1, 1))
    for place, (series, label) in enumerate((("loss", "loss"), *PANELS)):
        buckets = thinned(run.series[series], MOST_POINTS)
        numbers = [float(np.mean(run.numbers[b.first : b.last + 1])) for b in buckets]
        if len(run.numbers) > MOST_POINTS:
            axes[place].fill_between(numbers, [b.low for b in buckets], [b.high for b in buckets], alpha=0.25, lw=0)
        axes[place].plot(numbers, [b.mean for b in buckets], lw=1, label="training")
        axes[place].set_ylabel(label)
        axes[place].grid(alpha=0.3)
    held = [(one.step, loss) for one in run.evaluations if isfinite(loss := one.metrics.get("loss", float("nan")))]
    if held:
        axes[0].plot(*zip(*held, strict=True), "o-", lw=1, markersize=4, label="evaluation")
        axes[0].legend(fontsize=8)
    axes[-1].set_xlabel("step")
    axes[0].set_title(name.replace("$", r"\$"), fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()
