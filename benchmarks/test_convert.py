"""fp16 <-> fp32 bulk conversion next to a memcpy that reads and writes as many bytes, on one thread."""

from collections.abc import Callable

import numpy as np
import pytest

from hexane import _core

SIZES = {"256 KB": 256 << 10, "256 MB": 256 << 20}  # bytes of the fp32 side


@pytest.mark.parametrize("contestant", ["hexane", "memcpy"])
@pytest.mark.parametrize("direction", ["fp32 -> fp16", "fp16 -> fp32"])
@pytest.mark.parametrize("size", SIZES)
def test_conversion(size: str, direction: str, contestant: str, contest: Callable[..., None]) -> None:
    wide = np.random.default_rng(1).standard_normal(SIZES[size] // 4, np.float32)
    narrow = wide.astype(np.float16)
    source, target = (wide, np.zeros_like(narrow)) if direction == "fp32 -> fp16" else (narrow, np.zeros_like(wide))
    if contestant == "hexane":

        def call() -> object:
            return _core.convert(source, target)
    else:
        moved = np.ones((wide.nbytes + narrow.nbytes) // 2, np.uint8)
        copy = np.zeros_like(moved)

        def call() -> object:
            return np.copyto(copy, moved)

    small = size == "256 KB"
    contest(
        f"{direction}, {size} | 1 | >= 0.9", contestant, call, rounds=50 if small else 9, iterations=200 if small else 1
    )
