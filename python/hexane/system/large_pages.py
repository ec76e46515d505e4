"""Memory for the constants of a graph, with many in one block. The system allocates a few large pages faster than many
small pages."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

_SMALL = 1 << 16  # bytes; smaller arrays come from the heap
_BLOCK = 8 << 20
_LINE = 64


class LargePages:
    """Makes uninitialised arrays. Arrays larger than half a block have memory of their own."""

    def __init__(self) -> None:
        self._block = np.empty(0, np.uint8)
        self._used = 0

    def array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        size = np.dtype(dtype).itemsize * prod(shape)
        if not _SMALL <= size <= _BLOCK // 2:
            return np.empty(shape, dtype)
        if self._used + size > self._block.size:
            self._block, self._used = np.empty(_BLOCK, np.uint8), 0
        begin, self._used = self._used, self._used + -(-size // _LINE) * _LINE
        result: NDArray[Any] = self._block[begin : begin + size].view(dtype).reshape(shape)
        return result
