"""Runs a plan on the C99 runtime, built on this machine with its C compiler, for comparisons."""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from hexane.dtypes import dtype
from hexane.emit.plan_view import PlanView, Port, runtime_files
from hexane.emit.prepare import prepared
from hexane.errors import Error
from hexane.graph import Array
from hexane.system.c99_library import STATUSES, Loaded, open_library

# The compiler fuses no multiply and add by itself, so int8 results have the host's bits.
FLAGS = ("-std=c99", "-O3", "-flto=auto", "-fno-math-errno", "-ffp-contract=off", "-w")

_ROWS = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int32, ctypes.c_int32, ctypes.c_void_p
)


def build(folder: Path, flags: Sequence[str] = (), main: Path | None = None) -> Path:
    """Builds the runtime with all kernels in `folder`: a shared library, or a program with the C file `main`.

    Raises Error without a C compiler ($CC, or cc), or if building fails.
    """
    compiler = os.environ.get("CC", "cc").split()
    if not compiler or shutil.which(compiler[0]) is None:
        raise Error(f"[c99] got no C compiler {' '.join(compiler)!r}, need one to build the C99 runtime: set CC")
    sources = [] if main is None else [str(main)]
    for place, path in runtime_files().items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
        if place.endswith(".c") and place.startswith("src/" if main else ("src/", "host/")):
            sources.append(str(target))
    output = folder / ("libhexane_c99.so" if main is None else main.stem)
    shared = ("-shared", "-fPIC") if main is None else ()
    command = [*compiler, *FLAGS, *shared, *flags, f"-I{folder / 'include'}", *sources, "-o", str(output)]
    ran = subprocess.run(command, capture_output=True, text=True)
    if ran.returncode:
        raise Error(f"[c99] building the C99 runtime failed: {ran.stderr.strip()[-2000:]}")
    return output


def library(flags: Sequence[str] = ("-march=native",)) -> ctypes.CDLL:
    """Builds the runtime for this machine, and loads it."""
    with tempfile.TemporaryDirectory(prefix="hexane-c99-") as folder:
        return open_library(build(Path(folder), flags))


class C99Model:
    """A plan on the C99 runtime. Raises Error if the runtime refuses the plan."""

    def __init__(self, plan: bytes, runtime: ctypes.CDLL | None = None) -> None:
        self._runtime = runtime or library()
        view = PlanView(plan := prepared(plan))
        self.inputs, self.outputs = view.inputs, view.outputs
        streamed = {port.space for port in (*self.inputs, *self.outputs) if port.rows}
        spaces = [(0 if i in streamed else s.bytes, s.alignment) for i, s in enumerate(view.spaces)]
        self._loaded = Loaded(self._runtime, plan, spaces)
        self._net, self._held = self._loaded.net, self._loaded.held
        if self._loaded.refusal is not None:
            raise Error(f"[c99] {self._loaded.refusal}")

    def __call__(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        arrays = [np.asarray(feeds[port.name], order="C") for port in self.inputs]
        results = [np.zeros(port.shape, dtype(port.dtype).numpy) for port in self.outputs]
        for port, array in zip(self.inputs, arrays, strict=True):
            if port.rows is None:
                self._held[port.space][:] = array.reshape(-1).view(np.uint8)
        hooks = _Moves(self.inputs, arrays, True), _Moves(self.outputs, results, False)
        calls = [_ROWS(hook) for hook in hooks]
        self._runtime.hx_shared_hooks(self._net, *calls)
        if status := self._runtime.hx_run(self._net):
            raise Error(f"[c99] run: {STATUSES[status]}")
        for hook in hooks:
            hook.finish()
        for port, result in zip(self.outputs, results, strict=True):
            if port.rows is None:
                result[...] = self._held[port.space].view(result.dtype).reshape(port.shape)
        return {port.name: result for port, result in zip(self.outputs, results, strict=True)}


class _Moves:
    """A hook that copies rows of streamed ports from or to their arrays, and stops the run if rows are requested out of
    order."""

    def __init__(self, ports: Sequence[Port], arrays: Sequence[Array], is_input: bool) -> None:
        self._ports, self._is_input = ports, is_input
        self._rows = [
            None if port.rows is None else port.rows.view(array) for port, array in zip(ports, arrays, strict=True)
        ]
        self._done = [0] * len(ports)

    def __call__(self, context: int | None, port: int, begin: int, end: int, at: int) -> int:
        rows, how = self._rows[port], self._ports[port].rows
        if rows is None or how is None or begin != self._done[port] or not begin < end <= how.count:
            return 1
        self._done[port] = end
        part = rows[:, begin:end] if how.count > 1 else rows
        there = (ctypes.c_uint8 * ((end - begin) * how.bytes)).from_address(at)
        held: Array = np.ctypeslib.as_array(there).view(rows.dtype).reshape(part.shape)
        if self._is_input:
            held[...] = part
        else:
            part[...] = held
        return 0

    def finish(self) -> None:
        """Raises Error for a port of which some rows were moved, but not all."""
        for port, done in zip(self._ports, self._done, strict=True):
            if port.rows is not None and done not in (0, port.rows.count):
                raise Error(f"[c99] run: {port.name}: got {done} rows, need all {port.rows.count}")
