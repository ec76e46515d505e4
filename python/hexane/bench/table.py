"""Results as text: rows for a terminal and a table in Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from math import exp, floor, fsum, isfinite, log, log10
from typing import Any

from hexane.bench.noise import SAME, busy, impossible, same_within_noise

HEAD = (
    "probe",
    "configuration",
    "p50 us",
    "min",
    "p90",
    "p99",
    "var",
    "first us",
    "GFLOPS",
    "weights",
    "error",
    "result",
)
RIGHT = HEAD[2:-1]
MEANINGS = {
    "p50 us, min, p90, p99": "median, least, and quantiles of a call's time in microseconds",
    "var": "standard deviation of the time, divided by the mean; one pause of the machine makes it large",
    "first us": "time of the first call",
    "GFLOPS": "10^9 operations a second, at the median time",
    "weights": "bytes of weights",
    "error": "relative L2 from NumPy's result",
    "result": "right, or what failed",
}
ESTIMATE_HEAD = ("probe", "configuration", "p50 us", "estimate", "p10", "p90", "measured / estimate", "rates of")


def rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """A row for each configuration, with the columns of HEAD."""
    for r in document["results"]:
        name = f"{r['name']} {r['dtype']}" if r["dtype"] not in r["name"] else r["name"]
        if "times_us" not in r:
            yield (r["probe"], name, *("-",) * len(RIGHT), r["error"])
            continue
        t = r["times_us"]
        yield (
            r["probe"],
            name,
            *(figure(t[key]) for key in ("p50", "min", "p90", "p99")),
            f"{t['variation']:.0%}",
            figure(r["first_us"]),
            figure(r["gflops"]) if r["operations"] else "-",
            size(r["weight_bytes"]) if r["weight_bytes"] else "-",
            f"{r['distance']:.2g}",
            r.get("error", "right"),
        )


def estimate_rows(document: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Measured and estimated times of an engine, for the columns of ESTIMATE_HEAD."""
    for r in estimated(document):
        e, p50 = r["estimate"], r["times_us"]["p50"]
        name = e["measured_on"] + (" (extrapolated)" if e["extrapolated"] else "")
        times = (p50, e["latency_us"], e["p10_us"], e["p90_us"])
        yield r["probe"], r["name"], *map(figure, times), f"{p50 / e['latency_us']:.2f}", name


def estimated(document: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The right results that have an estimate."""
    return [r for r in document["results"] if "error" not in r and "estimate" in r]


def findings(document: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about the results: the best rate of each probe, the gain of 8 bits, and the sizes of memories."""
    right = [r for r in document["results"] if "error" not in r]
    for (probe, kind), best in peaks(right).items():
        fastest = best["operations"] / best["times_us"]["min"] / 1000
        yield (
            f"{probe}, {kind}: at most {figure(best['gflops'])} GFLOPS (median; {figure(fastest)} at the fastest):"
            f" {best['name']}"
        )
    if known := estimated(document):
        factors = [max(x, 1 / x) for x in (r["times_us"]["p50"] / r["estimate"]["latency_us"] for r in known)]
        inside = sum(r["estimate"]["p10_us"] <= r["times_us"]["p50"] <= r["estimate"]["p90_us"] for r in known)
        mean = exp(fsum(map(log, factors)) / len(factors))
        held = f"{inside} of {len(known)} between p10 and p90"
        yield f"estimates: {mean:.2f} times off in the mean, {max(factors):.2f} at worst; {held}"
    metered = [r for r in right if "microjoules" in r]
    for probe in dict.fromkeys(r["probe"] for r in metered if r["operations"] >= 1e6):
        best = max((r for r in metered if r["probe"] == probe), key=lambda r: r["operations"] / r["microjoules"])
        rate = best["operations"] / best["microjoules"] / 1e3
        yield f"{probe}: at most {figure(rate)} GFLOPS per watt (CPU and engine together): {best['name']}"
    if not metered and "environment" in document:
        yield f"energy: {document['environment']['energy']}"
    floats = {(r["probe"], str(r["sizes"])): r for r in right if r["network"] == "conv_chain"}
    for r in right:
        other = floats.get((r["probe"], str(r["sizes"])))
        if r["network"] == "int8_chain" and other is not None:
            noise = f" ({SAME})" if same_within_noise(r, other, "p50_us") else ""
            gain = r["gflops"] / other["gflops"]
            yield f"{r['probe']}: {r['name']} is {gain:.3g} times as fast as {other['dtype']}{noise}"
        if r["network"] == "int8_chain":
            yield (
                f"{r['probe']}: {r['name']} differs from NumPy's int32 sums by {r['distance']:.2g} (relative L2),"
                f" at most {r['largest_error']:.3g} in one number"
            )
    yield from thread_findings(document)
    for cliff in document["cliffs"]:
        what = f"{cliff['probe']}, {cliff['side']}"
        if cliff["floor"] is None:
            yield f"{what}: {cliff['points']} sizes are too few for a fit"
            continue
        if cliff["floor_low"] > 0:
            yield (
                f"{what}: every call takes {figure(cliff['floor'])} us (95 %: {figure(cliff['floor_low'])} to"
                f" {figure(cliff['floor_high'])}), the floor that the fit subtracts"
            )
        else:
            yield f"{what}: no floor that can be told from 0 (95 %: at most {figure(cliff['floor_high'])} us)"
        if not cliff["breaks"]:
            yield f"{what}: no break in {cliff['points']} sizes"
        for b in cliff["breaks"]:
            yield (
                f"{what}: a {'cliff' if b['slope_after'] > b['slope_before'] else 'break'} at {size(b['bytes'])} (95 %:"
                f" {size(b['low'])} to {size(b['high'])}), {figure(b['slope_before'])} us per MiB below,"
                f" {figure(b['slope_after'])} above"
            )


def thread_findings(document: Mapping[str, Any]) -> Iterator[str]:
    """Sentences about the gains of several threads over one. Noise and impossible gains are marked."""
    right = [r for r in document["results"] if "error" not in r and r["mode"] == "threads"]
    alone = {(r["probe"], r["network"]): r for r in right if r["threads"] == 1}
    for r in right:
        one = alone.get((r["probe"], r["network"]))
        if r["threads"] > 1 and one is not None:
            more = r["calls_per_second"] / one["calls_per_second"]
            longer = r["mean_us"] / one["mean_us"]
            noise = impossible(document, r["threads"], more)
            if not noise and same_within_noise(r, one, "calls_per_second"):
                noise = f"as many calls as alone: {SAME}"
            yield (
                f"{r['probe']}: {r['name']}: {more:.3g} times as many calls per second as alone; a call takes"
                f" {longer:.3g} times as long (mean)" + (f" ({noise})" if noise else "")
            )


def peaks(right: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], Mapping[str, Any]]:
    """The result with the highest rate for each peak probe and kind. A kind is convolutions with one kernel size, or
    products of matrices. right: results without errors."""
    best: dict[tuple[str, str], Mapping[str, Any]] = {}
    for r in right:
        if not r["probe"].endswith("peak"):
            continue
        kernel = r["sizes"].get("kernel", 1)
        key = (r["probe"], "matmul" if r["network"] == "gemm" else f"conv {kernel}x{kernel}")
        if key not in best or r["gflops"] > best[key]["gflops"]:
            best[key] = r
    return best


def summary(document: Mapping[str, Any]) -> str:
    """One line about the measurement and its machine."""
    e = document["environment"]
    how = "the CPU, not a Neural Engine" if document["device"] == "cpu" else "the Neural Engine"
    power = f", on {e['power']}" if e["power"] else ""
    return f"measured on {how}: {e['cpu']}, {e['cores']} cores, {e['os']}{power}; times of one call"


def conditions(document: Mapping[str, Any]) -> str:
    """When and how often it was measured, and the machine's load."""
    date = str(document.get("date") or "").replace("T", " ").replace("+00:00", " UTC")
    repeats = document.get("repeats") or 1
    load = document.get("load") or {}
    before, highest = ("not told" if load.get(key) is None else f"{load[key]:g}" for key in ("before", "highest"))
    count = f"{repeats} repeat{'s' if repeats > 1 else ''}"
    return f"{date or 'date not told'}, {count}, load {before} before the run and at most {highest} during it"


def warning(document: Mapping[str, Any]) -> str:
    """A warning with advice if the machine was busy; else ""."""
    if why := busy(document):
        return (
            f"warning: the machine was busy ({why}): times include those of other programs. Measure again when the"
            " load is below the number of cores"
        )
    return ""


def markdown(document: Mapping[str, Any]) -> str:
    """The summary, a table, and the findings of the fits."""
    lines = [
        summary(document),
        "",
        conditions(document),
        "",
        *((warned, "") if (warned := warning(document)) else ()),
        *_table(HEAD, list(rows(document))),
        "",
        *(f"* {line}" for line in findings(document)),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(head: Sequence[str], cells: Sequence[Sequence[str]]) -> list[str]:
    marks = ["--:" if name in RIGHT else "---" for name in head]
    return ["| " + " | ".join(c.replace("|", "/") for c in line) + " |" for line in (head, marks, *cells)]


def figure(value: float, digits: int = 4) -> str:
    """The number with four digits and no exponent: 103,812; 1,038; 10.38; 0.01038."""
    if not value or not isfinite(value):
        return f"{value:g}"
    decimals = max(digits - 1 - floor(log10(abs(value))), 0)
    return f"{value:,.{decimals}f}"


def size(count: float) -> str:
    """1,536 -> 1.5 KiB."""
    for unit in ("B", "KiB"):
        if count < 1024:
            return f"{count:.3g} {unit}"
        count /= 1024
    return f"{count:.3g} MiB"
