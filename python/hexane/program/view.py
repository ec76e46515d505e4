"""Memory of a program, and typed views of it."""

from dataclasses import dataclass
from typing import Literal

from hexane.graph import Array, TensorType

BufferKind = Literal["arena", "weights", "state", "param", "port"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of `bytes` bytes. `data` is its initial contents; `name` and `type` are those of its input, param, state
    or constant. `space` names the target's memory that holds it; "" for a port, which is a memory of its own. surface:
    also a memory of its own, read and written by a device; its leaf is laid out with `strides`, which may leave gaps. A
    param in a surface has the kind "param"."""

    kind: BufferKind
    bytes: int
    name: str = ""
    type: TensorType | None = None
    data: Array | None = None
    space: str = ""
    surface: bool = False
    strides: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class View:
    """A typed view of a buffer: offset and strides in bytes. ring: the number of rows of axis 1 that are kept; 0 for
    all."""

    buffer: int
    offset: int
    type: TensorType
    strides: tuple[int, ...]
    ring: int = 0

    @property
    def dense(self) -> bool:
        """True if the elements are contiguous and in order."""
        return self.strides == dense_strides(self.type)


def dense_strides(kind: TensorType) -> tuple[int, ...]:
    """Bytes from one element to the next along each axis, for a tensor without gaps."""
    strides, bits = [], kind.dtype.bits
    for extent in reversed(kind.shape):
        strides.append(bits // 8)
        bits *= extent
    return tuple(strides[::-1])
