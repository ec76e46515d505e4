"""Measures how fast this machine multiplies and moves bytes, with Hexane's own kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache

import numpy as np

from hexane import build as hx
from hexane.build import graph
from hexane.graph import Array
from hexane.options import Options
from hexane.runtime.compile import compile as compile_model

SIZE = 768  # Extent of a square matrix: 2.4 MB in fp32, so that multiplications limit the speed.
ELEMENTS = 1 << 24  # Elements of a vector: 64 MiB in fp32, larger than caches.
RUNS = 15


@dataclass(frozen=True, slots=True)
class Roofline:
    """The highest measured rates: gflops in products of each dtype, gbytes (10^9 bytes) a second from and to main
    memory, with this many threads."""

    gflops: dict[str, float]
    gbytes: float
    threads: int

    def seconds(self, operations: int, moved: int, dtype: str) -> float | None:
        """Returns the least time for this work; None if it has products of a dtype that was not measured."""
        if operations and dtype not in self.gflops:
            return None
        return max(operations / (self.gflops.get(dtype, np.inf) * 1e9), moved / (self.gbytes * 1e9))


@cache
def measured(threads: int, dtypes: tuple[str, ...]) -> Roofline:
    """Returns the best of a few runs: other work on the machine only slows runs down. Measured once per process
    and arguments, in about 0.3 s. dtypes: "fp32", "fp16", "bf16" or "int8"."""
    return Roofline({dtype: _product(threads, dtype) for dtype in dtypes}, _copy(threads), threads)


def _product(threads: int, dtype: str) -> float:
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in range(2))
    x = hx.input("x", (SIZE, SIZE), "int8" if dtype == "int8" else "fp32")
    if dtype == "int8":
        scale, wide, zero = np.array(0.05, np.float32), np.array(2, np.float32), np.array(0, np.int8)
        weight = hx.dequantize(hx.const(_bytes(b)), scale, zero)
        y = hx.quantize(hx.matmul(hx.dequantize(x, scale, zero), weight), wide, zero, dtype="int8")
    else:
        y = hx.matmul(x, b)
    asked = Options(threads=threads, dtype=dtype if dtype in ("fp16", "bf16") else "fp32")
    call = compile_model(graph(y), options=asked).bind(x=_bytes(a) if dtype == "int8" else a)
    return 2 * SIZE**3 / _seconds(call) / 1e9


def _bytes(x: Array) -> Array:
    return np.round(x * 20).astype(np.int8)


def _copy(threads: int) -> float:
    x = hx.input("x", (ELEMENTS,))
    call = compile_model(graph(hx.relu(x)), options=Options(threads=threads)).bind(x=np.ones(ELEMENTS, np.float32))
    return 2 * 4 * ELEMENTS / _seconds(call) / 1e9


def _seconds(call: object) -> float:
    assert callable(call)
    call()
    least = np.inf
    for _ in range(RUNS):
        start = time.perf_counter()
        call()
        least = min(least, time.perf_counter() - start)
    return float(least)
