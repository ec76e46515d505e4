"""Several threads call one model: calls a second and the 99th percentile of a call's time, next to onnxruntime.

    python benchmarks/serving.py MODEL.onnx [--threads 1,2,4] [--seconds 2] [--rounds 5]

Hexane and onnxruntime run in turns, each in a process of its own; a row is the median over the rounds. Inputs are
random, free dims are 1. The column `memory` is the bytes of each further context of Hexane.
"""

import argparse
import json
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

CONTESTANTS = ("hexane", "hexane, one context", "onnxruntime")


def call_of(contestant: str, model: str) -> tuple[Callable[[], object], dict[str, int]]:
    """A call on random inputs, and bytes of a further context."""
    if contestant == "onnxruntime":
        import onnxruntime

        session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        feeds = {i.name: random(i.shape, i.type) for i in session.get_inputs()}
        return lambda: session.run(None, feeds), {}
    import hexane as hx

    net: Any = hx.compile(model, contexts=1 if contestant.endswith("one context") else None)
    feeds = {p.name: random(p.shape, str(p.dtype)) for p in net.inputs}
    memory = net.context().memory if isinstance(net, hx.Model) else {}
    return lambda: net(feeds), memory


def random(shape: Any, kind: str) -> np.ndarray:
    extents = [d if isinstance(d, int) else 1 for d in shape]
    rng = np.random.default_rng(0)
    if "int64" in kind:
        return rng.integers(0, 100, extents)
    if "int" in kind:
        return rng.integers(0, 100, extents).astype(np.int32)
    return rng.standard_normal(extents).astype(np.float32)


def measured(call: Callable[[], object], threads: int, seconds: float) -> tuple[float, float]:
    """Calls a second, and the 99th percentile of their milliseconds."""
    end, times = time.perf_counter() + seconds, [[] for _ in range(threads)]

    def run(own: list[float]) -> None:
        while (begin := time.perf_counter()) < end:
            call()
            own.append(time.perf_counter() - begin)

    running = [threading.Thread(target=run, args=(own,)) for own in times]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    every = [t for own in times for t in own]
    return len(every) / seconds, float(np.quantile(every, 0.99)) * 1e3


def contest(contestant: str, model: str, threads: list[int], seconds: float) -> None:
    """The process of one contestant: a line of JSON."""
    call, memory = call_of(contestant, model)
    for _ in range(5):
        call()
    print(json.dumps({"memory": memory, "rows": [measured(call, n, seconds) for n in threads]}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--threads", default="1,2,4")
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=CONTESTANTS, help=argparse.SUPPRESS)
    given = parser.parse_args()
    threads = [int(n) for n in given.threads.split(",")]
    if given.only:
        contest(given.only, given.model, threads, given.seconds)
        return
    found: dict[str, list[Any]] = {name: [] for name in CONTESTANTS}
    for _ in range(given.rounds):
        for name in CONTESTANTS:
            command = [sys.executable, __file__, given.model, "--threads", given.threads, "--only", name]
            ended = subprocess.run(
                [*command, "--seconds", str(given.seconds)], check=True, capture_output=True, text=True
            )
            found[name].append(json.loads(ended.stdout.splitlines()[-1]))
    print(f"{'':22}" + "".join(f"{n} threads: calls/s, p99 ms  " for n in threads))
    for name, rounds in found.items():
        cells = []
        for i in range(len(threads)):
            rate, slowest = (statistics.median(r["rows"][i][column] for r in rounds) for column in (0, 1))
            cells.append(f"{rate:14.1f} {slowest:11.2f}")
        print(f"{name:22}" + "   ".join(cells))
    print(f"memory of a further context: {found['hexane'][0]['memory']}")


if __name__ == "__main__":
    main()
