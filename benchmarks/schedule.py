"""Orders of layers: the list scheduler next to the optimum, on networks, wired graphs of 60 layers and large graphs."""

import sys
import time
import warnings
from pathlib import Path

import numpy as np
from options import parser_of

from hexane import _core
from hexane.importers.onnx import import_onnx
from hexane.ops import LEAVES
from hexane.passes.engine.lower_segment import lower_segment
from hexane.pipeline import divide, engine_form, lower
from hexane.stages.bufferize.optimal_order import scheduling
from hexane.stages.bufferize.order import overwrites, schedule
from hexane.stages.engine.layer_problem import LayerProblem
from hexane.stages.segments.join import SegmentParts
from hexane.targets import Chip, load_target

CHIP = load_target("h13")
assert isinstance(CHIP, Chip)
CEILING = CHIP.memory.working_set
LIMIT = CEILING * CHIP.memory.partition_percent // 100
WIRED, SEEDS = 60, 10


def main() -> int:
    parser = parser_of(__doc__)
    files = sorted(parser.parse_args().networks.glob("*.onnx"))
    print(f"peaks in bytes; partitions at {LIMIT} bytes; usual: depth first, as programs run without an option\n")
    print(
        f"{'graph':24} {'layers':>6} {'usual':>9} {'greedy':>9} {'optimal':>9} {'proven':>6} {'ms CPU':>7} {'cuts':>4}"
        f" {'cuts':>4}"
    )
    proven = [row for file in files for row in (network(file), *engine_layers(file))]
    if not files:
        print("no networks: --networks names a folder of them")
    proven += [wired(seed, equal) for equal in (False, True) for seed in range(SEEDS)]
    large()
    print(f"proven {sum(proven)}/{len(proven)}")
    return 0 if all(proven) else 1


def network(file: Path) -> bool:
    graph = lower(import_onnx(str(file)), load_target("host"))
    nodes = [node for node in schedule(graph) if node.op not in LEAVES]
    return measure(file.stem, scheduling(graph, nodes, overwrites(graph).readers), len(nodes))


def engine_layers(file: Path) -> list[bool]:
    """Measures the orders of the layers of each segment of h13's engine. The usual order of layers is the order of
    their graph."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about layers that go to the host
        graph, segments = divide(import_onnx(str(file)), CHIP)
    pieces = zip(segments, SegmentParts(graph, segments).graphs(), strict=True)
    proven = []
    for found, piece in pieces:
        if found.device == "ane":
            made = LayerProblem(lower_segment(engine_form(piece, CHIP), CHIP), CHIP.memory)
            proven.append(measure(f"  h13, segment {found.index}", made.scheduling(traffic=False), len(made.layers)))
    return proven


def wired(seed: int, equal: bool) -> bool:
    """A ring of layers with two neighbours on each side, three quarters of the edges rewired (Watts and Strogatz)."""
    random = np.random.default_rng(seed)
    edges = set()
    for i in range(WIRED):
        for other in ((i + 1) % WIRED, (i + 2) % WIRED):
            while random.random() < 0.75 or other == i:
                other = int(random.integers(0, WIRED))
            edges.add((min(i, other), max(i, other)))
    sizes = np.full(WIRED, 1 << 16) if equal else 1024 * random.integers(1, 129, WIRED)
    return measure(f"wired {'equal' if equal else 'mixed'} {seed}", problem(sizes, sorted(edges)), WIRED)


def problem(sizes: np.ndarray, reads: list[tuple[int, int]]) -> _core.Scheduling:
    n = len(sizes)
    kept = np.ones(n, np.int64)
    kept[[i for i, _ in reads]] = 0
    return _core.Scheduling(sizes.astype(np.int64), np.arange(n), kept, np.array(reads, np.int64), n)


def measure(name: str, made: _core.Scheduling, num_layers: int) -> bool:
    """Prints the row of one graph; returns whether its optimum is proven."""
    usual = np.arange(num_layers)
    greedy, _ = made.greedy(CEILING)
    best = min((usual, greedy), key=made.peak)
    start = time.process_time()
    order, peak, bound, _ = made.optimal(best)
    ms = 1e3 * (time.process_time() - start)
    made.check(order, peak)
    cuts = [len(made.partition(o, LIMIT)) for o in (greedy, order)]
    print(
        f"{name:24} {num_layers:6} {made.peak(usual):9} {made.peak(greedy):9} {peak:9}"
        f" {'yes' if peak == bound else 'no':>6} {ms:7.1f} {cuts[0]:4} {cuts[1]:4}"
    )
    return peak == bound


def large() -> None:
    """The list scheduler and the partitions on graphs whose layers read two of the twenty before them."""
    times = []
    for n in (10_000, 20_000):
        random = np.random.default_rng(n)
        reads = {(i - 1 - int(random.integers(0, min(i, 20))), i) for i in range(1, n) for _ in range(2)}
        made = problem(1024 * random.integers(1, 129, n), sorted(reads))
        start = time.process_time()
        order, _ = made.greedy(CEILING)
        rows = made.partition(order, LIMIT)
        times.append(1e3 * (time.process_time() - start))
        made.check_partitions(order, rows, LIMIT)
        print(f"{n} layers: {times[-1]:.1f} ms, {len(rows)} partitions")
    print(f"t(20,000) / t(10,000) = {times[1] / times[0]:.2f}")


if __name__ == "__main__":
    sys.exit(main())
