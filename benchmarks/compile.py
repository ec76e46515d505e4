"""The time to compile a network in memory to a callable program, all phases, for the host and for chips.

The peer is onnxruntime, which makes a session of the same network from bytes in memory: it optimises the graph and
packs weights too, in a process of its own whose turns alternate with Hexane's. coremltools has no front end for ONNX,
and leaves the choice of device to macOS.
"""

import argparse
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from options import parser_of
from peers import onnxruntime_session

NETWORKS = ("resnet18_224", "mobilenet_v2_100_224")
TARGETS = ("host", "h13", "h16", "h17s")
WARM_UP = 2
Times = tuple[float, float]  # CPU and wall, ms


def timed(call: Callable[[], object]) -> Times:
    cpu, wall = time.process_time(), time.perf_counter()
    made = call()
    times = 1e3 * (time.process_time() - cpu), 1e3 * (time.perf_counter() - wall)
    del made  # so that the next compilation finds no cached constants
    return times


def serve(path: Path, threads: int) -> None:
    """The peer's process: a session for each line of input."""
    model = path.read_bytes()
    for _ in sys.stdin:
        print(*timed(lambda: onnxruntime_session(model, threads)), flush=True)


def measure(path: Path, targets: list[str], rounds: int, threads: int) -> dict[str, list[Times]]:
    import hexane as hx
    from hexane.importers.onnx import import_onnx

    graph = import_onnx(str(path))
    command = [sys.executable, __file__, "--serve", str(path), "--threads", str(threads)]
    found: dict[str, list[Times]] = {name: [] for name in ("onnxruntime", *targets)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        for turn in range(-WARM_UP, rounds):
            print(file=peer.stdin, flush=True)
            cpu, wall = map(float, peer.stdout.readline().split())
            times = {"onnxruntime": (cpu, wall)}
            for target in targets:
                times[target] = timed(lambda target=target: hx.compile(graph, target=target, threads=threads))  # type: ignore[misc]
            for name, each in times.items():
                found[name] += [each] if turn >= 0 else []
        peer.stdin.close()
    return found


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--targets", nargs="+", default=list(TARGETS), metavar="TARGET")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads)
        return 0
    warnings.simplefilter("ignore")  # warnings about layers that go to the host
    print(f"medians of {options.rounds} turns in ms, {options.threads} threads; bar: ResNet-18 for h13 in 60 ms CPU\n")
    print(f"{'network':24} {'what':12} {'CPU':>8} {'least':>8} {'wall':>8}")
    missing = [name for name in NETWORKS if not (options.networks / f"{name}.onnx").exists()]
    for name in NETWORKS:
        if name in missing:
            continue
        found = measure(options.networks / f"{name}.onnx", options.targets, options.rounds, options.threads)
        for what, times in found.items():
            cpu, wall = zip(*times, strict=True)
            print(f"{name:24} {what:12} {statistics.median(cpu):8.1f} {min(cpu):8.1f} {statistics.median(wall):8.1f}")
    for name in missing:
        print(f"{name}: not in {options.networks}; --networks DIR names the folder that has it")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
