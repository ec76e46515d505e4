"""Results as one HTML file without scripts, which loads nothing from a network: environment, figures, plots, all
measurements."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from html import escape
from pathlib import Path
from typing import Any

from hexane.bench.plot import per_mib
from hexane.bench.svg import Bar, bars, curve
from hexane.bench.table import (
    HEAD,
    RIGHT,
    conditions,
    figure,
    findings,
    peaks,
    rows,
    size,
    thread_findings,
    warning,
)

Result = Mapping[str, Any]
KINDS = {"conv 1x1": "one", "conv 3x3": "two", "matmul": "three"}
METHOD = (
    "Each configuration ran in a process of its own, with weights of its own in every layer. The result of the timed"
    " calls was compared with NumPy's: the error is the relative distance (L2), and a result with an error above 0.2 is"
    " wrong. A sample is one call, or the mean of several in a row if a call is shorter than 20 us. Times are medians"
    " unless they say otherwise. Repeats ran in rounds, each in a new process, and the repeat in the middle is shown. A"
    " multiply-add is two operations. Cold: the first call of a process, and a compile without the copies that the"
    " system keeps of programs. Intervals of fits are 95 %, from a bootstrap over"
    " the errors of the fit."
)


def html_page(document: Mapping[str, Any]) -> str:
    """The page. All data of the document become text in it, never markup, and the page may load and run nothing."""
    style = Path(__file__).with_name("page.css").read_text(encoding="utf-8")
    allowed = b64encode(sha256(style.encode()).digest()).decode()
    title = f"{_machine(document)}: hexane bench"
    sections = (_head, _environment, _dispatch, _peaks, _cliffs, _int8, _threads, _rest, _everything)
    body = "\n".join(part for section in sections for part in section(document))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-{allowed}'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body><main>
{body}
</main></body>
</html>
"""


def _machine(document: Mapping[str, Any]) -> str:
    what = "CPU" if document["device"] == "cpu" else "Neural Engine"
    return f"{document['environment'].get('cpu') or 'unknown machine'}, {what}"


def _right(document: Mapping[str, Any], probe: str = "") -> list[Result]:
    return [r for r in document["results"] if "error" not in r and probe in ("", r["probe"])]


def _head(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h1>{escape(_machine(document))}</h1>"
    wrong = sum("error" in r for r in document["results"])
    count = len(document["results"])
    verdict = f"{wrong} of {count} have no right result" if wrong else f"the results of all {count} are right"
    on_cpu = "Measured on the CPU, not on a Neural Engine. " if document["device"] == "cpu" else ""
    yield f'<p class="soft">{on_cpu}Measured by hexane bench {escape(str(document.get("hexane", "")))}: {verdict}.</p>'
    yield f'<p class="soft">{escape(conditions(document))}.</p>'
    if warned := warning(document):
        yield f'<p class="wrong">{escape(warned)}.</p>'
    yield f'<div class="tiles">{"".join(_tiles(document))}</div>'


def _tiles(document: Mapping[str, Any]) -> Iterator[str]:
    floor = next((r for r in _right(document, "dispatch") if r["name"] == "bound call"), None)
    if floor:
        t = floor["times_us"]
        yield _tile(f"{figure(t['p50'])} us", f"floor of a call (10 to 90 %: {figure(t['p10'])} to {figure(t['p90'])})")
    for (probe, kind), r in peaks(_right(document)).items():
        if probe == "peak":
            yield _tile(f"{figure(r['gflops'])} GFLOPS", f"peak of {kind}, median: {r['name']}")
    for cliff in document["cliffs"]:
        for b in cliff["breaks"]:
            if cliff["probe"] == "sram" and b["slope_after"] > b["slope_before"]:
                yield _tile(size(b["bytes"]), f"cliff of {cliff['side']} (95 %: {size(b['low'])} to {size(b['high'])})")
    if pairs := _pairs(document):
        gain, r = max((eight["gflops"] / other["gflops"], eight) for other, eight in pairs)
        yield _tile(f"{gain:.2f} x", f"int8 (W8A8) against {r['dtype']}, at most: {r['name']}")


def _tile(big: str, small: str) -> str:
    return f'<div class="tile"><b>{escape(big)}</b><small>{escape(small)}</small></div>'


def _environment(document: Mapping[str, Any]) -> Iterator[str]:
    pairs = [(key, _known(value)) for key, value in document["environment"].items()]
    yield "<h2>Environment</h2>"
    pairs += [("seconds for each repeat", document.get("seconds")), ("repeats", document.get("repeats", 1))]
    pairs += [(name, _known(value)) for name, value in _conditions(document)]
    yield _table(("what", "value"), pairs)
    yield f'<p class="soft">{escape(METHOD)}</p>'


def _conditions(document: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    load = document.get("load") or {}
    yield "date", document.get("date")
    yield "load before the run", load.get("before")
    yield "highest load during the run", load.get("highest")
    yield "threads of the benchmark in that load", load.get("own")


def _known(value: object) -> object:
    return "not told" if value in (None, "") else value


def _dispatch(document: Mapping[str, Any]) -> Iterator[str]:
    if results := _right(document, "dispatch"):
        yield "<h2>What a call costs</h2>"
        yield bars([_time(r) for r in results], "us for a call, median")
        cells = [(r["name"], *(figure(x) for x in (r["compile_ms"], r["first_us"], *_quantiles(r)))) for r in results]
        yield _table(("configuration", "compile ms, cold", "first call us, cold", "min", "p50", "p99"), cells, number=1)


def _quantiles(r: Result) -> tuple[float, ...]:
    return tuple(r["times_us"][q] for q in ("min", "p50", "p99"))


def _time(r: Result) -> Bar:
    t = r["times_us"]
    return Bar(r["name"], t["p50"], t["p10"], t["p90"])


def _rate(r: Result, kind: str) -> Bar:
    def rate(quantile: str) -> float:
        value: float = r["operations"] / r["times_us"][quantile] / 1000
        return value

    return Bar(r["name"], rate("p50"), rate("p90"), rate("p10"), KINDS.get(kind, "one"))


def _peaks(document: Mapping[str, Any]) -> Iterator[str]:
    results = _right(document, "peak")
    if not results:
        return
    yield "<h2>Peak rates</h2>"
    yield _sentences(document, "peak,")
    most = max(r["gflops"] for r in results)  # all kinds share one scale
    for kind in KINDS:
        ours = [r for r in results if (("peak", kind) in peaks([r]))]
        if ours:
            yield f"<h3>{escape(kind)}</h3>"
            yield bars([_rate(r, kind) for r in ours], "GFLOPS, median", most=most)


def _cliffs(document: Mapping[str, Any]) -> Iterator[str]:
    for cliff in document["cliffs"]:
        shown = [p for p in per_mib(document, cliff) if p["p10"] > 0]
        if len(shown) < 2:
            continue
        yield f"<h2>Memory: time against bytes of {escape(cliff['side'])} ({escape(cliff['probe'])})</h2>"
        yield _sentences(document, f"{cliff['probe']}, {cliff['side']}:")
        above = "" if not cliff["floor"] else f", without the floor of {figure(cliff['floor'])} us"
        yield curve(shown, cliff["breaks"], f"bytes of {cliff['side']}", f"us for each MiB{above}")


def _pairs(document: Mapping[str, Any]) -> list[tuple[Result, Result]]:
    """Pairs of a chain in floats and the same chain in 8 bits."""
    results = _right(document, "int8")
    floats = {str(r["sizes"]): r for r in results if r["network"] == "conv_chain"}
    return [(floats[str(r["sizes"])], r) for r in results if r["network"] == "int8_chain" and str(r["sizes"]) in floats]


def _int8(document: Mapping[str, Any]) -> Iterator[str]:
    if pairs := _pairs(document):
        head = ("chain", "floats", "GFLOPS", "int8 GOPS", "int8 / floats", "error (L2)", "largest error")
        cells = [
            (
                f"{eight['name'].removeprefix('int8 ')}",
                other["dtype"],
                figure(other["gflops"]),
                figure(eight["gflops"]),
                f"{eight['gflops'] / other['gflops']:.2f}",
                f"{eight['distance']:.2g}",
                f"{eight['largest_error']:.3g}",
            )
            for other, eight in pairs
        ]
        yield "<h2>8 bits: weights and activations (W8A8)</h2>"
        yield "<p>Numbers that need all 8 bits in every layer. Errors are distances from NumPy's sums in int32.</p>"
        yield _table(head, cells, number=2)


def _threads(document: Mapping[str, Any]) -> Iterator[str]:
    if results := [r for r in _right(document, "threads") if "calls_per_second" in r]:
        head = ("configuration", "threads", "calls per second", "mean us", "p10", "p50", "p90", "p99")
        cells = [
            (
                r["name"],
                str(r["threads"]),
                *(figure(x) for x in (r["calls_per_second"], r["mean_us"])),
                *(figure(r["times_us"][q]) for q in ("p10", "p50", "p90", "p99")),
            )
            for r in results
        ]
        yield "<h2>Threads</h2>"
        yield "<p>Each thread has a program of its own and times its own calls.</p>"
        yield from (f"<p>{escape(line)}</p>" for line in thread_findings(document))
        for network in dict.fromkeys(r["network"] for r in results):
            ours = [r for r in results if r["network"] == network]
            yield bars([_together(r) for r in ours], "calls per second of all threads together", samples=False)
        yield _table(head, cells, number=1)


def _together(r: Result) -> Bar:
    rate = r["calls_per_second"]
    return Bar(r["name"], rate, rate, rate, "three")


def _rest(document: Mapping[str, Any]) -> Iterator[str]:
    shown = {"dispatch", "peak", "int8", "threads", *(c["probe"] for c in document["cliffs"])}
    for probe in dict.fromkeys(r["probe"] for r in _right(document) if r["probe"] not in shown):
        yield f"<h2>{escape(probe)}</h2>"
        yield bars([_time(r) for r in _right(document, probe)], "us for a call, median")


def _everything(document: Mapping[str, Any]) -> Iterator[str]:
    yield "<details><summary>Every measurement</summary>"
    yield f'<div class="wide">{_table(HEAD, list(rows(document)), number=2, last=len(RIGHT) + 2)}</div></details>'


def _sentences(document: Mapping[str, Any], start: str) -> str:
    return "".join(f"<p>{escape(line)}</p>" for line in findings(document) if line.startswith(start))


def _table(head: Sequence[str], cells: Sequence[Sequence[object]], number: int = 99, last: int = 99) -> str:
    """A table. The columns from `number` up to `last` are aligned as numbers."""

    def line(tag: str, values: Sequence[object]) -> str:
        marks = (' class="n"' if number <= i < last else "" for i in range(len(values)))
        return "".join(f"<{tag}{mark}>{escape(str(v))}</{tag}>" for mark, v in zip(marks, values, strict=True))

    body = "".join(f"<tr>{line('td', row)}</tr>" for row in cells)
    return f"<table><thead><tr>{line('th', head)}</tr></thead><tbody>{body}</tbody></table>"
