"""fp16 <-> fp32 bulk conversion beside memcpy, by bytes read and written per second: `python benchmarks/convert.py`."""

from collections.abc import Callable
from statistics import median
from time import perf_counter

import numpy as np

from hexane import _core

ROUNDS = 5


def rate(run: Callable[[], None], moved: int, seconds: float = 0.15) -> float:
    """Median bytes per second of `run`, which moves `moved` bytes."""
    run()
    times = []
    end = perf_counter() + seconds
    while len(times) < 5 or perf_counter() < end:
        start = perf_counter()
        run()
        times.append(perf_counter() - start)
    return moved / median(times)


def row(label: str, num_values: int) -> str:
    wide = np.random.default_rng(1).standard_normal(num_values, np.float32)
    narrow = wide.astype(np.float16)
    other_wide, other_narrow = np.zeros_like(wide), np.zeros_like(narrow)
    moved = wide.nbytes + narrow.nbytes
    source = np.ones(moved // 2, np.uint8)  # memcpy reads and writes as many bytes as a conversion does
    target = np.zeros_like(source)
    runs: dict[str, Callable[[], None]] = {
        "memcpy": lambda: np.copyto(target, source),
        "to fp16": lambda: _core.convert(wide, other_narrow),
        "to fp32": lambda: _core.convert(narrow, other_wide),
    }
    rounds = [{name: rate(run, moved) for name, run in runs.items()} for _ in range(ROUNDS)]
    cells = [f"{label:>8}", f"{median(r['memcpy'] for r in rounds) / 1e9:8.1f} GB/s"]
    for name in ("to fp16", "to fp32"):
        speed, ratio = median(r[name] for r in rounds), median(r[name] / r["memcpy"] for r in rounds)
        cells.append(f"{speed / 1e9:8.1f} GB/s {ratio:5.2f}x")
    return "  ".join(cells)


def main() -> None:
    print(f"{'fp32':>8}  {'memcpy':>13}  {'to fp16':>20}  {'to fp32':>20}    (one thread, medians)")
    print(row("256 KB", 256 * 1024 // 4))
    print(row("256 MB", 256 * 1024 * 1024 // 4))


if __name__ == "__main__":
    main()
