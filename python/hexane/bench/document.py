"""Reads, checks and compares documents of results."""

import json
from collections.abc import Iterator, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from hexane.bench.noise import busy, interval, verdict
from hexane.errors import Error

VERSION = 2
NEEDED: dict[str, type] = {"device": str, "environment": dict, "results": list, "cliffs": list}
OPTIONAL: dict[str, type] = {"date": str, "load": dict, "repeats": int}  # absent in files of earlier versions
TIMES = ("min", "p10", "p50", "p90", "p99", "variation", "samples", "calls_per_sample")


def read(path: Path) -> dict[str, Any]:
    """A document that `hexane bench --json` wrote. Raises Error for any other file, with the reason."""
    try:
        document = json.loads(path.read_bytes())
    except ValueError as error:
        raise Error(f"[bench] {path}: got no JSON ({error}), need a document of `hexane bench --json`") from None
    if wrong := next(_not_finite(document), None):
        raise Error(f"[bench] {path}: {wrong[0]}: got {wrong[1]}, need a finite number: measure again")
    if not isinstance(document, dict) or document.get("format") != "hexane-bench":
        raise Error(f"[bench] {path}: got JSON of another kind, need a document of `hexane bench --json`")
    if document.get("version") != VERSION:
        raise Error(f"[bench] {path}: got version {document.get('version')!r}, need {VERSION}: measure again")
    for key, kind in NEEDED.items():
        if not isinstance(document.get(key), kind):
            raise Error(f"[bench] {path}: {key}: got {type(document.get(key)).__name__}, need {kind.__name__}")
    for key, kind in OPTIONAL.items():
        if not isinstance(document.get(key, kind()), kind):
            raise Error(f"[bench] {path}: {key}: got {type(document[key]).__name__}, need {kind.__name__}")
    numbers = {f"load.{key}": value for key, value in document.get("load", {}).items()}
    for key, value in (numbers | {"environment.cores": document["environment"].get("cores")}).items():
        if value is not None and not _is_number(value):
            raise Error(f"[bench] {path}: {key}: got {type(value).__name__}, need a number")
    for i, result in enumerate(document["results"]):
        if not isinstance(result, dict) or not isinstance(result.get("name"), str) or not _complete(result):
            raise Error(f"[bench] {path}: results[{i}]: got no name, or neither positive times nor an error; need both")
        if not _has_repeats(result):
            raise Error(f"[bench] {path}: results[{i}].repeats: got no list whose entries have p50_us, need one")
    return document


def _not_finite(value: object, where: str = "") -> Iterator[tuple[str, float]]:
    """The infinite and NaN numbers, each with its path in the document. JSON has no such numbers, but Python's reader
    accepts them."""
    if isinstance(value, float) and not isfinite(value):
        yield where, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _not_finite(inner, f"{where}.{key}".lstrip("."))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _not_finite(inner, f"{where}[{i}]")


def _complete(result: Mapping[str, Any]) -> bool:
    times = result.get("times_us")
    measured = isinstance(times, dict) and all(_is_number(times.get(key)) for key in TIMES) and times["p50"] > 0
    return isinstance(result.get("probe"), str) and (isinstance(result.get("error"), str) or measured)


def _has_repeats(result: Mapping[str, Any]) -> bool:
    """True if the repeats can be compared, or if there are none."""
    repeats = result.get("repeats", [])
    return isinstance(repeats, list) and all(
        isinstance(r, dict)
        and _is_number(r.get("p50_us"))
        and r["p50_us"] > 0
        and all(_is_number(r.get(key, 0)) for key in ("mean_us", "calls_per_second"))
        for r in repeats
    )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def compare(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each configuration in both documents `a` and `b`: its medians in us, their intervals over the repeats
    (None with too few), their ratio (below 1: `b` is faster), and a verdict.

    The verdict is "faster" or "slower" if the intervals of the repeated medians do not overlap, else "the same within
    noise"; "too few repeats" if an interval needs more repeats; "unsure: busy machine" if the intervals differ and
    other programs used a machine during its run; "no result" if the configuration failed in either document.
    """
    unsure = busy(a) or busy(b)
    known = {_key(r): r for r in a["results"]}
    rows = []
    for r in b["results"]:
        other = known.get(_key(r))
        if other is None:
            continue
        row: dict[str, Any] = {"probe": r["probe"], "name": r["name"], "verdict": "no result"}
        if "error" not in r and "error" not in other:
            s, t = other["times_us"], r["times_us"]
            said = verdict(other, r)
            row |= {
                "a_us": s["p50"],
                "a_interval": interval(other),
                "b_us": t["p50"],
                "b_interval": interval(r),
                "ratio": t["p50"] / s["p50"],
                "verdict": "unsure: busy machine" if unsure and said in ("faster", "slower") else said,
            }
        rows.append(row)
    return rows


def _key(result: Mapping[str, Any]) -> tuple[object, ...]:
    """The identity of a measurement, which includes its sizes."""
    return tuple(str(result.get(key)) for key in ("probe", "name", "network", "sizes", "dtype", "mode", "threads"))


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Differences between the machines and the measurement settings, as (key, value of a, value of b)."""
    whole = [
        {"device": d["device"], **{key: d.get(key) for key in ("hexane", "seconds", "repeats")}, **d["environment"]}
        for d in (a, b)
    ]
    keys = dict.fromkeys((*whole[0], *whole[1]))
    pairs = ((key, *(_told(d.get(key)) for d in whole)) for key in keys)
    return [(key, x, y) for key, x, y in pairs if x != y]


def _told(value: object) -> str:
    return "not told" if value in (None, "") else str(value)
