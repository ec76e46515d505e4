"""How training in several processes scales: coefficients measured on this machine, and the times of steps that follow.

    mpirun -n 2 python benchmarks/scaling.py --sums                   # a sum over ranks by bytes
    python benchmarks/scaling.py --latency 4 --bandwidth 2.5          # a step by tokens, on one thread, and a table

The first command prints the best fit of the microseconds of a message and the GB/s of a rank. The second takes these
two numbers, or the numbers of another network of machines, and prints the number of ranks at which the sums take longer than
the backward pass. Each time is the least of several runs.

Each of n ranks sends (n - 1) / n of the gradients twice to the n - 1 other ranks, in k buckets, so the sums of one
update take

    2 k (n - 1) latency + 2 (n - 1) / n bytes / bandwidth

The backward pass is two thirds of a step without its updates: it has two of the three products for each weight.
"""

import argparse
import time
from collections.abc import Sequence

import numpy as np

import hexane as hx
from hexane.train.all_reduce import buckets_of

REPEATS = 7
MOST = 1 << 20  # ranks
SIZES = [1 << power for power in range(10, 25, 2)]  # bytes


def fitted(x: Sequence[float], y: Sequence[float]) -> tuple[float, float]:
    """(a, b) of y = a + b x, with equal relative weight for each y."""
    weights = 1 / np.asarray(y)
    columns = np.stack([weights, weights * np.asarray(x)], axis=1)
    (a, b), *_ = np.linalg.lstsq(columns, np.ones(len(y)), rcond=None)
    return float(a), float(b)


def milliseconds(model: str, tokens: int) -> tuple[float, float]:
    """The milliseconds of a step, and of its updates."""
    config = hx.train.LlamaConfig.named(model, seq=tokens)
    made = hx.train.llama(config, batch=1)
    net = hx.compile(
        hx.train.step(made.loss, list(made.params.values()), hx.train.adamw(3e-4), clip=1.0), target="host", threads=1
    )
    ids = np.random.default_rng(0).integers(0, config.vocab, (1, tokens)).astype(np.int32)
    net(tokens=ids, labels=ids)
    net.profile()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        net(tokens=ids, labels=ids)
        times.append(time.perf_counter() - begin)
    steps = net.steps
    updates = sum(step["median"] for step in steps if step["kernel"] == "adam_step") / 1e6
    return min(times) * 1e3, updates


def sum_ms(ranks: int, size: int, buckets: int, latency: float, bandwidth: float) -> float:
    """The milliseconds of all sums of an update. latency: us; bandwidth: GB/s; size: bytes."""
    return 2 * buckets * (ranks - 1) * latency / 1e3 + 2 * (ranks - 1) / ranks * size / bandwidth / 1e6


def overtaken(backward: float, size: int, buckets: int, latency: float, bandwidth: float) -> int:
    """The least number of ranks whose sums take longer than the backward pass."""
    low, high = 1, MOST
    while high - low > 1:
        middle = (low + high) // 2
        if sum_ms(middle, size, buckets, latency, bandwidth) > backward:
            high = middle
        else:
            low = middle
    return high


def steps(model: str, tokens: Sequence[int], latency: float, bandwidth: float) -> None:
    rows = [(count, *milliseconds(model, count)) for count in tokens]
    sizes = [int(np.prod(shape)) for shape in hx.train.LlamaConfig.named(model).shapes().values()]
    buckets = len(list(buckets_of(sizes)))
    size = 4 * sum(sizes)
    print(f"{model}: {sum(sizes):,} weights, {size / 1e6:.1f} MB of gradients in {buckets} buckets")
    print(f"sums of 2, 8, 64 ranks at {latency} us and {bandwidth} GB/s:", end=" ")
    print(*(f"{sum_ms(n, size, buckets, latency, bandwidth):.0f} ms" for n in (2, 8, 64)), sep=", ")
    for count, ms, updates in rows:
        backward = (ms - updates) * 2 / 3
        found = overtaken(backward, size, buckets, latency, bandwidth)
        told = (
            f"sums take longer from {found} ranks on" if found < MOST else f"sums never take longer below {MOST} ranks"
        )
        print(f"{count:6} tokens of a rank  {ms:7.1f} ms, updates {updates:.1f}, backward {backward:.1f}: {told}")
    a, b = fitted([row[0] for row in rows], [row[1] for row in rows])
    print(f"step = {a:.1f} ms + {b:.3f} ms * tokens")


def sums() -> None:
    from mpi4py import MPI

    from hexane.train.all_reduce import AllReduce
    from hexane.train.ranks import Ranks

    ranks = Ranks(MPI.COMM_WORLD)
    rows = []
    for size in SIZES:
        part = -(-size // 4 // ranks.count)
        mine, total = (np.ones(part * ranks.count, np.float32) for _ in range(2))
        parts = np.empty((ranks.count, part), np.float32)
        times = []
        for _ in range(4 * REPEATS):
            MPI.COMM_WORLD.Barrier()
            begin = time.perf_counter()
            AllReduce(ranks).sum(mine, total, parts, None)
            times.append(time.perf_counter() - begin)
        rows.append((size, min(times) * 1e6))
    if ranks.is_first:
        for size, us in rows:
            print(f"{size:9} bytes  {us:10.1f} us")
        c, d = fitted(*zip(*rows, strict=True))
        others = ranks.count - 1
        print(
            f"sum over {ranks.count} ranks = {c:.1f} us + {d * 1e6:.1f} us * MB: --latency {c / 2 / others:.1f}",
            end=" ",
        )
        print(f"--bandwidth {2 * others / ranks.count / d / 1e3:.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="stories15M")
    parser.add_argument("--tokens", default="64,128,256", type=lambda text: [int(one) for one in text.split(",")])
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("--latency", default=4.0, type=float, help="us of a message")
    parser.add_argument("--bandwidth", default=2.5, type=float, help="GB/s of a rank")
    given = parser.parse_args()
    if given.sums:
        sums()
    else:
        steps(given.model, given.tokens, given.latency, given.bandwidth)
