"""A token's product, a row times 4096 x 4096, on one thread: whole weights next to weights in few bits or without
zeros.

python benchmarks/stored_products.py [fp32|fp16] [AVX2]   default: fp32 and the best instruction set of this machine
"""

import sys
from statistics import median
from time import perf_counter

import numpy as np

import hexane as hx
from hexane import _core

SIZE, ROUNDS = 4096, 60
MODES = (None, "int8", "palette4", "palette4:g8", "palette4:g16", "palette6", "palette6:g8", "palette8", "palette8:g8",
         "blockwise4:b32", "palette4:v2", "palette4:v4", "palette8:v2", "palette8:v4", "sparse:0.5", "sparse:0.9")  # fmt: skip


def main(dtype: str = "fp32", *instruction_set: str) -> None:
    for name in instruction_set:
        _core.use_instruction_set(name)
    rng = np.random.default_rng(0)
    numpy_dtype = {"fp32": np.float32, "fp16": np.float16}[dtype]
    x = rng.standard_normal((1, SIZE)).astype(numpy_dtype)
    graph = hx.graph(hx.linear(hx.input("x", x.shape, dtype), rng.standard_normal((SIZE, SIZE)).astype(numpy_dtype)))
    nets = {mode: hx.compile(graph, compress=mode, threads=1) for mode in MODES}
    # Modes that fall back to whole weights are left out, such as pruned weights in fp16.
    kept = [mode for mode, net in nets.items() if mode is None or "matmul" not in [s["kernel"] for s in net.steps]]
    calls = [nets[mode].bind(x=x) for mode in kept]
    times: list[list[float]] = [[] for _ in kept]
    for _ in range(ROUNDS):  # calls take turns, so other load on the machine slows all of them
        for call, found in zip(calls, times, strict=True):
            call()
            start = perf_counter()
            call()
            found.append(perf_counter() - start)
    print(f"{'weights':<16} {'median, ms':>10} {'of whole':>9}")
    for mode, found in zip(kept, times, strict=True):
        print(f"{mode or f'whole, {dtype}':<16} {median(found) * 1e3:>10.2f} {median(found) / median(times[0]):>9.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
