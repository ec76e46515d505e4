"""Runs each workload next to its peers and prints one table of ratios at the end.

A benchmark is named by its group: "WORKLOAD | THREADS | BAR"; the contestant is `hexane` or a peer. The ratio is the
peer's median time over Hexane's: above 1, Hexane is faster.
"""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    folder = Path(__file__).parents[2] / "shared" / "models"
    parser.addoption(
        "--models", type=Path, default=folder, metavar="DIR", help="folder of gen.py, which builds the models"
    )
    parser.addoption(
        "--apple-python", default=sys.executable, metavar="PATH", help="a Python with coreai-core (default: this one)"
    )


@pytest.fixture
def contest(benchmark: Any) -> Callable[..., None]:
    """contest(group, contestant, call): times the call. setup: called before each round, untimed; then a round is one
    call."""

    def run(
        group: str,
        contestant: str,
        call: Callable[[], object],
        rounds: int = 30,
        iterations: int = 1,
        setup: Callable[[], None] | None = None,
    ) -> None:
        benchmark.group = group
        benchmark.extra_info["contestant"] = contestant
        benchmark.pedantic(call, rounds=rounds, iterations=iterations, warmup_rounds=3, setup=setup)

    return run


def rows(benchmarks: list[Any]) -> Iterator[tuple[str, dict[str, float]]]:
    groups: dict[str, dict[str, float]] = {}
    for bench in benchmarks:
        groups.setdefault(bench.group, {})[bench.extra_info["contestant"]] = bench.stats.median
    yield from groups.items()


def pytest_benchmark_group_stats() -> list[Any]:
    """Switches off pytest-benchmark's tables; this file prints its own."""
    return []


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    session = getattr(config, "_benchmarksession", None)
    measured = [b for b in getattr(session, "benchmarks", ()) if "contestant" in b.extra_info]
    if not measured:
        return
    terminalreporter.write_sep("=", "Hexane and its peers: median times, and the best peer's time over Hexane's")
    terminalreporter.write_line(f"{'workload':44} {'threads':>7} {'hexane':>11}  {'best peer':26} {'ratio':>6}  bar")
    for group, medians in rows(measured):
        workload, threads, bar = group.split(" | ")
        ours = medians.pop("hexane", None)
        if ours is None:
            continue
        peer, best = min(medians.items(), key=lambda item: item[1]) if medians else ("-", 0.0)
        ratio = f"{best / ours:6.2f}" if medians else "     -"
        shown = f"{peer} {_time(best)}" if medians else "-"
        terminalreporter.write_line(f"{workload:44} {threads:>7} {_time(ours):>11}  {shown:26} {ratio}  {bar}")


def _time(seconds: float) -> str:
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds * 1e9:.0f} ns"
