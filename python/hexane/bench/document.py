"""Documents of results: read, checked, and compared."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hexane.errors import Error

VERSION = 2
NEEDED = {"device": str, "environment": dict, "results": list, "cliffs": list}
TIMES = ("min", "p10", "p50", "p90", "p99", "variation", "samples", "calls_per_sample")


def read(path: Path) -> dict[str, Any]:
    """A document that `hexane bench --json` wrote. Raises Error for a file that is none, naming what is wrong with
    it."""
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise Error(f"[bench] {path}: got no JSON ({error}), need a document of `hexane bench --json`") from None
    if not isinstance(found, dict) or found.get("format") != "hexane-bench":
        raise Error(f"[bench] {path}: got JSON of another kind, need a document of `hexane bench --json`")
    if found.get("version") != VERSION:
        raise Error(f"[bench] {path}: got version {found.get('version')!r}, need {VERSION}: measure again")
    for key, kind in NEEDED.items():
        if not isinstance(found.get(key), kind):
            raise Error(f"[bench] {path}: {key}: got {type(found.get(key)).__name__}, need {kind.__name__}")
    for i, result in enumerate(found["results"]):
        if not isinstance(result, dict) or not isinstance(result.get("name"), str) or not _complete(result):
            raise Error(f"[bench] {path}: results[{i}]: got no name, or neither times nor an error; need both")
    return found


def _complete(result: Mapping[str, Any]) -> bool:
    times = result.get("times_us")
    measured = isinstance(times, dict) and all(isinstance(times.get(key), (int, float)) for key in TIMES)
    return isinstance(result.get("probe"), str) and (isinstance(result.get("error"), str) or measured)


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each configuration that both have: its medians in us, their ratio (below 1: `after` is faster), and a
    verdict.

    The verdict is "faster" or "slower" where the middle 80 % of the times of one lie wholly outside the other's, else
    "same"; "no result" where one of the two failed.
    """
    known = {(r["probe"], r["name"]): r for r in before["results"]}
    rows = []
    for r in after["results"]:
        other = known.get((r["probe"], r["name"]))
        if other is None:
            continue
        row: dict[str, Any] = {"probe": r["probe"], "name": r["name"], "verdict": "no result"}
        if "error" not in r and "error" not in other:
            a, b = other["times_us"], r["times_us"]
            verdict = "faster" if b["p90"] < a["p10"] else "slower" if b["p10"] > a["p90"] else "same"
            row |= {"before_us": a["p50"], "after_us": b["p50"], "ratio": b["p50"] / a["p50"], "verdict": verdict}
        rows.append(row)
    return rows
