"""Separates differences from noise: intervals of repeats, busy machines, and impossible gains of threads."""

from collections.abc import Mapping
from typing import Any

# The fewest repeats of each of two measurements for a verdict. The intervals of two equal measurements do not overlap
# in 1 of 35 cases with 4 repeats each, in 1 of 126 with 5 (the default): 2 / binomial(2 n, n).
ENOUGH = 4
IMPOSSIBLE = 1.05  # factor on the limit, above a clock's errors
SAME = "the same within noise"


def interval(result: Mapping[str, Any], key: str = "p50_us") -> tuple[float, float] | None:
    """The lowest and the highest of the repeats; None if there are fewer than ENOUGH."""
    values = [r[key] for r in result.get("repeats", ()) if key in r]
    return (min(values), max(values)) if len(values) >= ENOUGH else None


def verdict(a: Mapping[str, Any], b: Mapping[str, Any]) -> str:
    """Compares b with a: "faster" or "slower" if their intervals do not overlap, SAME if they do."""
    first, second = interval(a), interval(b)
    if first is None or second is None:
        return "too few repeats"
    return "faster" if second[1] < first[0] else "slower" if second[0] > first[1] else SAME


def same_within_noise(a: Mapping[str, Any], b: Mapping[str, Any], key: str) -> bool:
    """True if a and b have intervals, and the intervals overlap."""
    first, second = interval(a, key), interval(b, key)
    return first is not None and second is not None and first[0] <= second[1] and second[0] <= first[1]


def busy(document: Mapping[str, Any]) -> str:
    """A description of the load if it exceeds the number of cores, before or during the run; else "".

    The benchmark's own threads do not count in the load during the run.
    """
    load, cores = document.get("load") or {}, document.get("environment", {}).get("cores")
    if not cores:
        return ""
    before, highest = load.get("before"), load.get("highest")
    count = f"{cores} core{'s' if cores > 1 else ''}"
    if before is not None and before > cores:
        return f"load {before:g} before the run, {count}"
    own = load.get("own") or 0
    if highest is not None and highest - own > cores:
        return f"load {highest:g} during the run, {own} of it the benchmark's own threads, {count}"
    return ""


def impossible(document: Mapping[str, Any], threads: int, gain: float) -> str:
    """The reason why these threads cannot make `gain` times the calls of one thread; "" if the gain is possible.

    Each thread adds at most the rate of a single thread. On a CPU each thread needs a core.
    """
    cores = document.get("environment", {}).get("cores") if document.get("device") == "cpu" else None
    most = min(threads, cores or threads)
    if gain <= most * IMPOSSIBLE:
        return ""
    where = f"{threads} threads" + (f" on {cores} core{'s' if cores > 1 else ''}" if cores else "")
    return f"noise: {where} make at most {most} times as many calls; measure again on a quiet machine"
