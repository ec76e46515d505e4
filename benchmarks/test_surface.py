"""Writing and reading surfaces next to a memcpy of as many bytes, on one thread. For a surface with gaps between rows,
memcpy moves as many bytes as the rows have without the gaps.

The copies of surfaces and memcpy use memory of the same kind: memory that was used before (write, and read with out=),
or a new array for each copy (read), whose pages the system may have to give first.
"""

from collections.abc import Callable

import numpy as np
import pytest

from hexane import _core

ROWS = 64
SHAPES = {
    "packed": (1, 768, 1, 256),
    "rows of 62 in 64 bytes": (1, 768, 8, 31),
    "rows of 14 in 64 bytes": (1, 768, 8, 7),
}
BARS = {"packed": ">= 0.85", "rows of 62 in 64 bytes": ">= 0.6", "rows of 14 in 64 bytes": ">= 0.6"}


@pytest.mark.parametrize("contestant", ["hexane", "memcpy"])
@pytest.mark.parametrize("way", ["write", "read out=", "read", "write fp32", "read fp32 out="])
@pytest.mark.parametrize("rows", SHAPES)
def test_surface(rows: str, way: str, contestant: str, contest: Callable[..., None]) -> None:
    shape, wide = SHAPES[rows], "fp32" in way
    surface = _core.Surface(shape, "fp16", ROWS)
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32 if wide else np.float16)
    surface.write(array)
    out = np.zeros_like(array)
    moved = np.ones((surface.bytes + array.nbytes) // 2, np.uint8)
    copy = np.zeros_like(moved)
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("hexane", "write"): lambda: surface.write(array),
        ("hexane", "read out="): lambda: surface.read(out=out),
        ("hexane", "read"): surface.read,
        ("memcpy", "write"): lambda: np.copyto(copy, moved),
        ("memcpy", "read out="): lambda: np.copyto(copy, moved),
        ("memcpy", "read"): moved.copy,
    }
    call = calls[contestant, way.replace(" fp32", "")]
    contest(f"surface, {way}, {rows} | 1 | {'' if wide else BARS[rows]}", contestant, call, rounds=50, iterations=100)
