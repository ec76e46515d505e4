"""Problems of placement for tests, solved and checked."""

import numpy as np

from hexane import _core

Buffers = list[tuple[int, int, int]]  # (lower, upper, size)

MIB = 1 << 20

# The smallest kind of problem whose live bytes (8) no packing reaches (9): found by random search.
GAP = [(0, 1, 3), (0, 5, 3), (0, 8, 2), (2, 6, 2), (4, 7, 1), (5, 7, 1), (6, 8, 3), (7, 8, 3)]


def columns(buffers: Buffers) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    lower, upper, size = np.array(buffers, np.int64).reshape(-1, 3).T
    return lower, upper, size


def solve(buffers: Buffers, **options: int) -> tuple[list[int], int, int]:
    """Solves, has the solution checked, returns it."""
    alignment = options.get("alignment", 64)
    offsets, height, bound = _core.alloc_solve(*columns(buffers), **options)
    _core.alloc_check(*columns(buffers), offsets, height, alignment, options.get("capacity"))
    assert _core.alloc_bound(*columns(buffers), alignment) <= bound <= height
    return offsets.tolist(), height, bound
