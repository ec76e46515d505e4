"""A token's product in fp16, a row times 4096 x 4096, on one thread: whole weights against those in few bits.

python benchmarks/encoded_halves.py [AVX2]     with the named instruction set; by default the best of this machine
"""

import sys
from statistics import median
from time import perf_counter

import numpy as np

import hexane as hx
from hexane import _core

SIZE, ROUNDS = 4096, 60
MODES = (None, "int8", "palette4", "palette4:g16", "palette8", "blockwise4:b32", "palette4:v2")


def main(*instruction_set: str) -> None:
    for name in instruction_set:
        _core.use_instruction_set(name)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, SIZE)).astype(np.float16)
    graph = hx.graph(hx.linear(hx.input("x", x.shape, "fp16"), rng.standard_normal((SIZE, SIZE)).astype(np.float16)))
    calls = [hx.compile(graph, compress=mode, threads=1).bind(x=x) for mode in MODES]
    times: list[list[float]] = [[] for _ in MODES]
    for _ in range(ROUNDS):  # by turns, so that what else runs here meets all of them
        for call, found in zip(calls, times, strict=True):
            call()
            start = perf_counter()
            call()
            found.append(perf_counter() - start)
    print(f"{'weights':<16} {'median, ms':>10} {'of whole':>9}")
    for mode, found in zip(MODES, times, strict=True):
        print(f"{mode or 'whole, fp16':<16} {median(found) * 1e3:>10.2f} {median(found) / median(times[0]):>9.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
