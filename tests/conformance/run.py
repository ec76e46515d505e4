"""`make conformance`: judges every case in a process that may die, and writes what came out.

docs/conformance.md has the counts, and why cases are refused; tests/conformance/passing.txt has the cases that pass.
"""

import multiprocessing
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from conformance.suite import KINDS, PASSING, Case, Outcome, judge, load_cases

REPORT = Path(__file__).parents[2] / "docs" / "conformance.md"
TIMEOUT = 60  # seconds for one case
VERDICTS = ("pass", "unsupported", "wrong", "crash")


def judge_all(cases: Sequence[Case]) -> dict[str, Outcome]:
    """Two processes at a time; where one dies, its case has crashed and another goes on behind it."""
    found: dict[str, Outcome] = {}
    pending = [list(cases[0::2]), list(cases[1::2])]
    workers = {connection: (process, todo) for process, connection, todo in map(_start, pending)}
    while workers:
        ready = wait(list(workers), TIMEOUT)
        for connection in ready or list(workers):
            process, todo = workers[connection]
            try:
                found[str(todo[0])] = connection.recv() if ready else Outcome("crash", f"more than {TIMEOUT} s")
                todo.pop(0)
                died = not ready
            except EOFError:
                found[str(todo.pop(0))] = Outcome("crash", "the process died")
                died = True
            if died or not todo:
                del workers[connection]
                process.kill()
                process.join()
            if died and todo:
                process, connection, todo = _start(todo)
                workers[connection] = (process, todo)
    return found


def _start(todo: list[Case]) -> tuple[multiprocessing.Process, Connection, list[Case]]:
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_work, args=(list(todo), sender))
    process.start()
    sender.close()
    return process, receiver, todo


def _work(cases: Sequence[Case], results: Connection) -> None:
    for case in cases:
        results.send(judge(case))


def report(cases: Sequence[Case], found: dict[str, Outcome]) -> str:
    """The text of docs/conformance.md."""
    groups = {kind: [c for c in cases if c.kind == kind] for kind in KINDS}
    groups["plain node cases"] = [c for c in cases if c.plain]
    lines = [
        "# ONNX conformance",
        "",
        (
            "Written by `make conformance`: the backend tests inside the `onnx` package, imported, compiled and run on"
            " the CPU."
        ),
        "A case passes if every output has the expected dtype and shape, and the expected values:",
        "",
        "* integers exactly;",
        "* floats within the case's own tolerances, or within 2^-24 of the largest expected number (where sums cancel);",
        "* fp16 and bf16 also within two units in the last place;",
        "* random draws of Bernoulli need only be zeros and ones;",
        "* the elements that Dropout in training keeps need the expected values.",
        "",
        "A case is unsupported if Hexane refuses it with an error. Plain cases are the node cases whose tensors are all fp32,",
        "fp16, int8, uint8, int32, int64 or bool, without subgraphs or ops of other domains.",
        "",
        "| cases | number | " + " | ".join(VERDICTS) + " |",
        "|---|--:|" + "--:|" * len(VERDICTS),
    ]
    for name, group in groups.items():
        counts = Counter(found[str(c)].verdict for c in group)
        lines.append(f"| {name} | {len(group)} | " + " | ".join(str(counts[v]) for v in VERDICTS) + " |")
    lines += [
        "",
        (
            "Plain cases that other programs pass, from the project's notes: tinygrad 1206, OpenVINO 1275, onnxruntime"
            " 1335,"
        ),
        "the reference evaluator of the onnx package 1435.",
    ]
    for verdict in ("wrong", "crash"):
        if bad := [c for c in cases if found[str(c)].verdict == verdict]:
            lines += ["", f"## {verdict.capitalize()}", ""]
            lines += [f"- {c}: {_short(found[str(c)].reason)}" for c in bad]
    lines += ["", "## Unsupported", "", "| op | plain | all | reasons |", "|---|--:|--:|---|"]
    refused: dict[str, list[Case]] = defaultdict(list)
    for case in cases:
        if found[str(case)].verdict == "unsupported":
            refused[case.op].append(case)
    for op, group in sorted(refused.items(), key=lambda item: (-sum(c.plain for c in item[1]), -len(item[1]), item[0])):
        reasons = Counter(_short(found[str(c)].reason) for c in group)
        text = "; ".join(f"{reason} ({count})" for reason, count in reasons.most_common(4))
        lines.append(f"| {op} | {sum(c.plain for c in group)} | {len(group)} | {text} |")
    return "\n".join(lines) + "\n"


def _short(reason: str) -> str:
    """The first node's problem, without the node's name."""
    text = next((line.strip() for line in reason.splitlines() if not line.endswith(":")), reason)
    text = re.sub(r"^\[[^]]*\] ", "", text)
    text = re.sub(r"^\S*#\S*: ", "", text)
    return text.replace("|", "\\|")[:140]


def main() -> None:
    cases = load_cases()
    found = judge_all(cases)
    PASSING.write_text("".join(f"{c}\n" for c in cases if found[str(c)].verdict == "pass"))
    REPORT.write_text(report(cases, found))
    counts = Counter(found[str(c)].verdict for c in cases)
    plain = sum(c.plain and found[str(c)].verdict == "pass" for c in cases)
    print(f"{', '.join(f'{counts[v]} {v}' for v in VERDICTS)}; {plain} plain cases pass; {REPORT.name} has the rest")
    sys.exit(1 if counts["wrong"] or counts["crash"] else 0)


if __name__ == "__main__":
    main()
