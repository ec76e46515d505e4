"""Hexane's verdicts next to ANEForge's, on graphs built in Hexane and in ANEForge: `python
benchmarks/aneforge_verdicts.py`.

Each step of each graph is judged for every target that programs in MIL reach and ANEForge maps to a family. Every
difference has a row in aneforge_differences.csv that says why; a difference without one, and a row without a
difference, end with exit code 1. Then Hexane's preflight and ANEForge's are timed, each in a process of its own.
`--list` prints the differences as rows to explain.
"""

import argparse
import csv
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from aneforge import _targets as theirs
from aneforge_graphs import GRAPHS, Step, built

import hexane as hx
from hexane.ops import LEAVES
from hexane.targets import Chip
from hexane.targets.floors import route_of
from hexane.targets.query import load_chip
from hexane.targets.verdict import KINDS
from hexane.validate import judge, verdict_cache

TABLE = Path(__file__).with_name("aneforge_differences.csv")
CHIPS = [load_chip(name) for name in sorted(theirs._ARCH_FAMILY) if theirs.supports_mil(theirs.family_of_arch(name))]
THEIRS = {"decompose": "decomposed", "reject": "rejected"}


class Difference(NamedTuple):
    graph: str
    op: str
    ours: str
    theirs: str
    targets: str


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--list", action="store_true", help="print the differences as rows of the table")
    arguments.add_argument("--no-timing", action="store_true", help="compare only")
    arguments.add_argument("--time", choices=("hexane", "aneforge"), help=argparse.SUPPRESS)
    given = arguments.parse_args()
    if given.time:
        print(*timed(given.time))
        return 0
    found = list(differences())
    if given.list:
        csv.writer(sys.stdout, lineterminator="\n").writerows(found)
        return 0
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = {Difference(*(row[name] for name in Difference._fields)): row["why"] for row in csv.DictReader(file)}
    new, stale = [d for d in found if not rows.get(d)], [d for d in rows if d not in found]
    for what, some in (("no fact explains", new), ("the table explains what is no difference", stale)):
        for d in some:
            print(f"{what}: {d.graph}, {d.op}: Hexane {d.ours}, ANEForge {d.theirs} on {d.targets}")
    steps = sum(len(list(steps_of(name))) for name in GRAPHS)
    print(
        f"{len(GRAPHS)} graphs, {steps} steps, {len(CHIPS)} targets: {len(found)} differences, {len(found) - len(new)}"
        " explained"
    )
    if not given.no_timing:
        speed()
    return 1 if new or stale else 0


def steps_of(name: str) -> Iterator[Step]:
    with built(name) as b:
        yield from b.steps


def differences() -> Iterator[Difference]:
    """Yields differences in the verdicts on a step. Targets with the same pair of verdicts, and equal steps of a graph,
    are merged."""
    for name in GRAPHS:
        found: dict[tuple[str, str, str], dict[str, None]] = {}
        with built(name) as b:
            for step in b.steps:
                others = {family: their_verdict(step, family) for family in theirs.Family}
                for chip in CHIPS:
                    ours, other = our_verdict(step, chip), others[theirs.family_of_arch(chip.name)]
                    if ours != other:
                        found.setdefault((step.op, ours, other), {})[chip.name] = None
        for (op, ours, other), targets in found.items():
            yield Difference(name, op, ours, other, _names(list(targets)))


def _names(targets: Sequence[str]) -> str:
    """ANEForge's families whose targets are all listed, then the names of the other targets."""
    families: dict[str, list[str]] = {}
    for chip in CHIPS:
        families.setdefault(theirs.Family(theirs.family_of_arch(chip.name)).name, []).append(chip.name)
    whole = {family: names for family, names in families.items() if set(names) <= set(targets)}
    rest = [name for name in targets if not any(name in names for names in whole.values())]
    return " ".join([*sorted(whole), *rest])


def our_verdict(step: Step, chip: Chip) -> str:
    """Hexane's worst verdict on the nodes of a step. Only programs in MIL count, because ANEForge writes no others."""
    if route_of(chip) != "mil":
        return "rejected"
    before = {id(pair.ours.value.node) for pair in step.before}
    made, stack = [], [step.made.ours.value.node]
    while stack:
        node = stack.pop()
        if id(node) not in before and node.op not in LEAVES:
            made.append(node)
            stack += [v.node for v in node.inputs if v is not None]
    return max((judge(node, chip).verdict for node in made), key=KINDS.index)


def their_verdict(step: Step, family: int) -> str:
    """ANEForge's worst verdict on the tensors of a step. An oversize operand of the step counts too, as in Hexane."""
    if step.refused:
        return "rejected"
    report = theirs.preflight(step.made.theirs, family)
    before = {id(pair.theirs): pair.theirs for pair in step.before}
    made, stack = [], [step.made.theirs]
    while stack:
        tensor = stack.pop()
        if id(tensor) not in before:
            made.append(tensor)
            stack += tensor.srcs
    # A report names tensors by op and shape only.
    new, read = ({(t.op, tuple(t.shape)) for t in tensors} for tensors in (made, before.values()))
    kinds = []
    for status in ("native", "decompose", "reject"):
        kinds += [THEIRS.get(status, status) for r in getattr(report, status) if (r.op, r.shape) in new]
    kinds += ["oversize" for r in report.oversize if (r.op, r.shape) in new | read]
    return max(kinds, key=KINDS.index)


# ---- speed ----


def speed() -> None:
    """Prints the median times of Hexane's and ANEForge's preflight, each in a process of its own."""
    medians = {}
    for contestant in ("hexane", "aneforge"):
        command = [sys.executable, __file__, "--time", contestant]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
        medians[contestant] = [float(word) for word in ran.stdout.split()]
    (warm, cold), (peer, _) = medians["hexane"], medians["aneforge"]
    print(
        f"preflight of ResNet-18 for h13: Hexane {warm:.3f} ms, {cold:.3f} ms with every verdict forgotten; ANEForge"
        f" {peer:.3f} ms"
    )


def timed(contestant: str) -> tuple[float, float]:
    """Milliseconds of a preflight: with cached verdicts, and without. ANEForge remembers nothing."""
    with built("resnet18") as b:
        last = b.steps[-1].made
    graph = hx.graph(last.ours)
    if contestant == "aneforge":
        found = _median(lambda: theirs.preflight(last.theirs, theirs.Family.A13))
        return found, found
    return _median(lambda: hx.preflight(graph, "h13")), _median(lambda: hx.preflight(graph, "h13"), forget)


def forget() -> None:
    verdict_cache._caches.clear()


def _median(call: Any, before: Any = lambda: None) -> float:
    times = []
    for _ in range(200):
        before()
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return 1e3 * median(times)


if __name__ == "__main__":
    sys.exit(main())
