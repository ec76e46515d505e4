"""The C99 runtime as a library for this machine: its kernels, and its loader, which tells whether it takes a plan."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from hexane import _core
from hexane.errors import Error

STATUSES = ("ok", "bad plan", "not supported", "memory", "stopped", "bad index")
_ROWS = 1  # index of the axis of rows


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the runtime does not take a plan: a section, such as "steps", a row of it, the fault, and the name of the
    row's kernel, tensor or memory, or ""."""

    status: str
    section: str
    row: int
    name: str
    what: str

    def __str__(self) -> str:
        return f"{self.status}: {self.section}[{self.row}]{self.name and f': {self.name}'}: {self.what}"


class _Memory(ctypes.Structure):
    _fields_ = (("data", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


def open_library(path: Path) -> ctypes.CDLL:
    """Loads a shared library that was built from the runtime's sources and host/shared.c."""
    loaded = ctypes.CDLL(str(path))
    for name in (loaded.hx_shared_kernel, loaded.hx_shared_activation):
        name.restype, name.argtypes = ctypes.c_char_p, (ctypes.c_uint32,)
    loaded.hx_shared_cuts.restype, loaded.hx_shared_cuts.argtypes = ctypes.c_uint32, (ctypes.c_uint32,)
    loaded.hx_shared_net_bytes.restype = ctypes.c_size_t
    loaded.hx_shared_error.restype = ctypes.c_char_p
    loaded.hx_shared_error_row.restype = ctypes.c_uint32
    return loaded


@cache
def own_library() -> ctypes.CDLL:
    """The package's own library. Raises Error if it is missing."""
    path = Path(_core.__file__).with_name("libhexane_c99.so")
    if not path.is_file():
        raise Error(f"[c99] got no {path.name} next to {Path(_core.__file__).name}, need it: install hexane again")
    return open_library(path)


@cache
def row_kernels() -> frozenset[str]:
    """The kernels that can compute their output row by row, by their names in plans."""
    library = own_library()
    names = _names(library.hx_shared_kernel)
    result = {name for i, name in enumerate(names) if library.hx_shared_cuts(i) >> _ROWS & 1}
    if "unary" in result:  # includes each activation
        result |= {*_names(library.hx_shared_activation)}
    return frozenset(result)


@cache
def kernel_names() -> frozenset[str]:
    """The names of the runtime's kernels and activations."""
    library = own_library()
    return frozenset((*_names(library.hx_shared_kernel), *_names(library.hx_shared_activation)))


def _names(of: Callable[[int], bytes | None]) -> list[str]:
    """The names in all rows of a table that ends with None."""
    result: list[str] = []
    while (name := of(len(result))) is not None:
        result.append(name.decode())
    return result


class Loaded:
    """A plan loaded into the runtime, with memory for each of its spaces. refusal: why the runtime does not take it, or
    None."""

    def __init__(self, runtime: ctypes.CDLL, plan: bytes, spaces: Sequence[tuple[int, int]]) -> None:
        """spaces: the bytes and the alignment of each space; 0 bytes for a space without memory."""
        self._plan = np.frombuffer(plan, np.uint8).copy()
        self.held = [_aligned(size, alignment) for size, alignment in spaces]
        rows = [_Memory(held.ctypes.data if held.size else None, held.size) for held in self.held]
        self._memory = (_Memory * max(len(rows), 1))(*rows)
        self.net = ctypes.create_string_buffer(runtime.hx_shared_net_bytes())
        data, size = ctypes.c_void_p(self._plan.ctypes.data), ctypes.c_size_t(len(plan))
        status = runtime.hx_shared_load(self.net, data, size, self._memory, ctypes.c_uint32(len(rows)))
        self.refusal: Refusal | None = None
        if status:
            section, name, what = (runtime.hx_shared_error(self.net, part).decode() for part in range(3))
            row = runtime.hx_shared_error_row(self.net)
            self.refusal = Refusal(STATUSES[status], section, row, name, what)


def _aligned(size: int, alignment: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    room = np.zeros(size + alignment, np.uint8)
    begin = -room.ctypes.data % alignment
    return room[begin : begin + size]
