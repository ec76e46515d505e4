"""Draws estimates: the latency of each chip with its interval."""

import io
from collections.abc import Sequence

from hexane.cost import Estimate
from hexane.report.plotting import check_plotting


def estimate_chart(name: str, estimates: Sequence[Estimate], kind: str) -> bytes:
    """Returns the picture as a file of this kind: "png", "svg" or "pdf". Raises Error if matplotlib is not
    installed."""
    check_plotting("estimate")
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.0, 1.6 + 0.32 * len(estimates)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for extrapolated, label in ((False, "measured chip"), (True, "no latency published, rates of another chip")):
        rows = [(place, one) for place, one in enumerate(estimates) if one.extrapolated == extrapolated]
        if rows:
            below, above = zip(
                *((one.latency_us - one.p10_us, one.p90_us - one.latency_us) for _, one in rows), strict=True
            )
            axes.errorbar(
                [one.latency_us for _, one in rows],
                [place for place, _ in rows],
                xerr=[below, above],
                fmt="o",
                capsize=3,
                markerfacecolor="white" if extrapolated else None,
                color="C1" if extrapolated else "C0",
                label=label,
            )
    axes.set_yticks(range(len(estimates)), [one.target for one in estimates])
    axes.set_ylim(len(estimates) - 0.5, -0.5)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda us, _: f"{us:g}")
    axes.xaxis.set_minor_formatter(lambda us, _: f"{us:g}" if f"{us:.0e}"[0] in "25" else "")
    axes.set_xlabel("us for a call, with the interval from p10 to p90")
    axes.grid(axis="x", which="both", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    axes.set_title(f"{name}: estimated latency", fontsize=10)
    file = io.BytesIO()
    figure.savefig(file, format=kind, dpi=120)
    return file.getvalue()
