"""The allocator on the eleven "challenging" instances of google/minimalloc: does each fit 1 MiB, and how fast?"""

import argparse
import sys
import time
from pathlib import Path

import numpy as np

from hexane import _core
from hexane.errors import Error

CAPACITY = 1_048_576
ROOT = Path(__file__).parents[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--instances",
        type=Path,
        default=ROOT.parent / "shared" / "data" / "minimalloc",
        metavar="DIR",
        help="folder of id,lower,upper,size files (default: ../shared/data/minimalloc)",
    )
    folder = parser.parse_args().instances
    files = sorted(folder.glob("*.csv"))
    if not files:
        print(f"skipped: no .csv file in {folder}; --instances DIR names the folder")
        return 0

    print(f"{'name':4} {'buffers':>7} {'bound':>9} {'height':>9} {'fits':>4} {'ms CPU':>8}")
    rows = [measure(file) for file in files]
    fits = sum(fits for fits, _ in rows)
    print(f"total {sum(ms for _, ms in rows):.1f} ms CPU, worst {max(ms for _, ms in rows):.1f} ms")
    print(f"fits {fits}/{len(rows)}")
    return 0 if fits == len(rows) else 1


def measure(file: Path) -> tuple[bool, float]:
    """Prints the row of one instance; returns whether it fits and the milliseconds of CPU time."""
    columns = np.loadtxt(file, delimiter=",", skiprows=1, dtype=np.int64, ndmin=2).T
    lower, upper, size = columns[1], columns[2], columns[3]
    bound = _core.alloc_bound(lower, upper, size, alignment=1)
    start = time.process_time()
    try:
        offsets, height, _ = _core.alloc_solve(lower, upper, size, alignment=1, capacity=CAPACITY)
    except Error as error:
        offsets, height, problem = None, "-", str(error)
    ms = (time.process_time() - start) * 1e3
    fits = offsets is not None
    if fits:
        _core.alloc_check(lower, upper, size, offsets, height, alignment=1, capacity=CAPACITY)
    name = file.name.split(".")[0]
    print(f"{name:4} {len(size):7} {bound:9} {height:>9} {'yes' if fits else 'no':>4} {ms:8.1f}")
    if not fits:
        print(f"     {problem}")
    return fits, ms


if __name__ == "__main__":
    sys.exit(main())
