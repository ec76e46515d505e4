"""Pictures of results: time against bytes with its breaks, and rates."""

from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import Any

from hexane import _core
from hexane.bench.table import figure as shorter
from hexane.bench.table import size, summary
from hexane.errors import Error


def need_matplotlib() -> None:
    """Raises Error if matplotlib is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise Error("[bench] --plot: matplotlib is missing; need `pip install 'hexane[plot]'`") from None
    matplotlib.use("Agg")


def plot(document: Mapping[str, Any], folder: Path) -> list[Path]:
    """Writes PNG files into the folder, which is created if necessary, and returns their paths. Needs matplotlib (extra
    `plot`)."""
    need_matplotlib()
    folder.mkdir(parents=True, exist_ok=True)
    result = [_cliff(document, cliff, folder) for cliff in document["cliffs"] if cliff["points"]]
    for probe in dict.fromkeys(r["probe"] for r in document["results"] if not r["side"] and "times_us" in r):
        result.append(_bars(document, probe, folder))
    return result


def _cliff(document: Mapping[str, Any], cliff: Mapping[str, Any], folder: Path) -> Path:
    """Plots the time per MiB, without the fixed time of a call: constant while memory keeps up, and larger beyond a
    cliff."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    shown = per_mib(document, cliff)
    x = [p["bytes"] for p in shown]
    axes.fill_between(x, [p["p10"] for p in shown], [p["p90"] for p in shown], alpha=0.25, label="10 to 90 %")
    axes.plot(x, [p["p50"] for p in shown], marker="o", markersize=4, label="median")
    for b in cliff["breaks"]:
        axes.axvspan(b["low"], b["high"], alpha=0.15, color="tab:red")
        axes.axvline(b["bytes"], color="tab:red", label=f"break at {size(b['bytes'])}")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: size(value))
    above = f", without the floor of {shorter(cliff['floor'])} us" if cliff["floor"] else ""
    axes.set(
        xlabel=f"{cliff['side']}, bytes", ylabel=f"us for each MiB{above}", title=f"{cliff['probe']}: {cliff['side']}"
    )
    axes.grid(alpha=0.3)
    axes.legend()
    return _save(document, figure, folder / f"{cliff['probe']}-{cliff['side']}.png")


def per_mib(document: Mapping[str, Any], cliff: Mapping[str, Any]) -> list[dict[str, float]]:
    """For each size: bytes, and quantiles of the time above the floor, in us for each MiB.

    Sizes are left out if their fastest times (10 %) are within the interval of the floor, because then nothing but the
    floor was measured.
    """
    key = f"{cliff['side'].removesuffix('s')}_bytes"
    floor, least = cliff["floor"] or 0.0, cliff["floor_high"] or 0.0
    ours = [r for r in document["results"] if (r["probe"], r["side"]) == (cliff["probe"], cliff["side"])]
    return sorted(
        (
            {"bytes": r[key], **{q: (r["times_us"][q] - floor) / r[key] * 2**20 for q in ("p10", "p50", "p90")}}
            for r in ours
            if "error" not in r and r["times_us"]["p10"] > least
        ),
        key=lambda p: p["bytes"],
    )


def _bars(document: Mapping[str, Any], probe: str, folder: Path) -> Path:
    """The rate of each configuration, or its time if nothing is computed, with the range from the 10 % to the 90 %
    quantile of the samples."""
    from matplotlib.figure import Figure

    ours = [r for r in document["results"] if r["probe"] == probe and "times_us" in r]
    rates = all(r["operations"] >= 1e6 for r in ours)
    figure = Figure(figsize=(9, 1.5 + 0.3 * len(ours)), layout="constrained")
    axes = figure.add_subplot()

    def value(r: Mapping[str, Any], q: str) -> float:
        us: float = r["times_us"][q]
        return r["operations"] / us / 1000 if rates else us

    middle = [value(r, "p50") for r in ours]
    low, high = ("p90", "p10") if rates else ("p10", "p90")
    spread = [
        [max(m - value(r, low), 0) for m, r in zip(middle, ours, strict=True)],
        [max(value(r, high) - m, 0) for m, r in zip(middle, ours, strict=True)],
    ]
    names = [r["name"] + (" (wrong result)" if "error" in r else "") for r in ours]
    axes.barh(names, middle, xerr=spread, error_kw={"alpha": 0.6})
    axes.invert_yaxis()
    axes.set(xlabel="GFLOPS, median" if rates else "us for a call, median", title=probe)
    axes.grid(axis="x", alpha=0.3)
    return _save(document, figure, folder / f"{probe}.png")


def _save(document: Mapping[str, Any], figure: Any, path: Path) -> Path:
    figure.suptitle(summary(document), fontsize="small")
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=120)
    _core.save_file(str(path), picture.getvalue())
    return path
