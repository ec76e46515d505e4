"""Compares the costs declared by kernels with their measured times, on one thread: `python benchmarks/costs.py`.

The executor decides by a step's declared nanoseconds how to split it among threads. Runs each case of
benchmarks/sweep.py. For each kernel, prints the smallest, middle and largest measured / declared. Factors below a half
or above two deserve a better cost function.
"""

import argparse
from collections import defaultdict

import numpy as np
from sweep import model
from sweep_cases import Random, SweepCase, cases

import hexane as hx

RUNS = 15
LEAST = 2000  # nanoseconds: shorter times are mostly the clock's own cost


def steps(case: SweepCase) -> list[tuple[str, int, int]]:
    """For each step: its kernel, declared cost and shortest time."""
    rng = np.random.default_rng(0)
    feeds = {f"x{i}": x.array(rng) for i, x in enumerate(case.inputs) if isinstance(x, Random)}
    net = hx.compile(model(case, feeds), threads=1)
    call = net.bind(**feeds)
    call()
    shortest = [1 << 60] * len(net.steps)
    for _ in range(RUNS):
        net.profile(True)
        call()
        shortest = [min(a, step["nanoseconds"]) for a, step in zip(shortest, net.steps, strict=True)]
    return [(step["kernel"], step["cost"], time) for step, time in zip(net.steps, shortest, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="KERNEL", help="this kernel, case by case")
    options = parser.parse_args()
    factors: defaultdict[str, list[tuple[float, int, str]]] = defaultdict(list)
    for case in cases():
        try:
            measured = steps(case)
        except hx.Error:
            continue
        for kernel, cost, time in measured:
            if max(cost, time) >= LEAST:
                factors[kernel].append((time / max(cost, 1), time, str(case)))
    if options.only:
        for factor, time, case in sorted(factors[options.only]):
            print(f"{factor:7.2f} {time / 1000:9.1f}us  {case}")
        return
    print(f"{'kernel':24} {'steps':>5} {'least':>7} {'median':>7} {'most':>7}   measured / declared")
    for kernel, rows in sorted(factors.items(), key=lambda item: float(np.median([r[0] for r in item[1]]))):
        found = [row[0] for row in rows]
        print(f"{kernel:24} {len(found):5} {min(found):7.2f} {np.median(found):7.2f} {max(found):7.2f}")


if __name__ == "__main__":
    main()
