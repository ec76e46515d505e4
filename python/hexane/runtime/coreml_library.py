"""Calls Core ML's public API through the functions of csrc/device/hexane_coreml.h."""

from __future__ import annotations

import ctypes as c
import platform
import shutil
import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import DeviceError, Error
from hexane.graph import Array

# The names are in the order of their numbers in hexane_coreml.h.
UNITS = ("cpu", "cpu_and_gpu", "all", "cpu_and_ne")
SIDES = ("input", "output", "state")
MOST_PATH = 4096
_DTYPES = {"float64": "fp64", "float32": "fp32", "float16": "fp16", "int32": "int32", "int8": "int8"}
NUMPY_OF = {ours: np.dtype(name) for name, ours in _DTYPES.items()}


class _Error(c.Structure):
    _fields_ = (("stage", c.c_char * 16), ("code", c.c_int64), ("text", c.c_char * 1024), ("hint", c.c_char * 256))


class _Port(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("kind", c.c_char_p),
        ("dtype", c.c_char_p),
        ("rank", c.c_size_t),
        ("shape", c.POINTER(c.c_int64)),
        ("optional", c.c_bool),
    )


class _Array(c.Structure):
    _fields_ = (
        ("name", c.c_char_p),
        ("dtype", c.c_char_p),
        ("data", c.c_void_p),
        ("rank", c.c_size_t),
        ("shape", c.POINTER(c.c_int64)),
        ("strides", c.POINTER(c.c_int64)),
        ("copied", c.c_bool),
        ("buffer", c.c_void_p),
    )


class _Operation(c.Structure):
    _fields_ = (
        ("operator_name", c.c_char_p),
        ("output", c.c_char_p),
        ("preferred", c.c_char_p),
        ("supported", c.c_char_p),
        ("cost", c.c_double),
    )


_VISIT = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(_Operation))
_DONE = c.CFUNCTYPE(None, c.c_void_p, c.POINTER(_Error))
_LINE = c.CFUNCTYPE(None, c.c_void_p, *[c.c_char_p] * 4)
_ARRAYS = (c.POINTER(_Array), c.c_size_t)
_TAKES: Mapping[str, tuple[Any, tuple[Any, ...]]] = {
    "compile": (c.c_bool, (c.c_char_p, c.c_char_p, c.c_char_p, c.c_size_t)),
    "load": (c.c_void_p, (c.c_char_p, c.c_char_p, c.c_int, c.c_char_p)),
    "predict": (c.c_bool, (c.c_void_p, c.c_void_p, *_ARRAYS, *_ARRAYS)),
    "predict_async": (c.c_bool, (c.c_void_p, *_ARRAYS, *_ARRAYS, _DONE, c.c_void_p)),
    "new_state": (c.c_void_p, (c.c_void_p,)),
    "read_state": (c.c_bool, (c.c_void_p, c.POINTER(_Array))),
    "write_state": (c.c_bool, (c.c_void_p, c.POINTER(_Array))),
    "new_buffer": (c.c_void_p, (c.c_char_p, c.c_size_t, c.POINTER(c.c_int64))),
    "plan": (c.c_bool, (c.c_char_p, c.c_char_p, c.c_int, c.c_char_p, _VISIT, c.c_void_p)),
    "probe": (c.c_bool, (c.c_char_p, _LINE, c.c_void_p)),
}


@dataclass(frozen=True, slots=True)
class CoreMLPort:
    """A feature as Core ML describes it. kind: "array", "image", "string", "number" or "other"; dtype, shape: of an
    array."""

    name: str
    kind: str
    dtype: str
    shape: tuple[int, ...]
    optional: bool


@dataclass(frozen=True, slots=True)
class PlannedOp:
    """Core ML's plan for an operation: its operator ("ios16.relu"), the name of its first result, the preferred device
    ("cpu", "gpu", "ne"; "" without one, as for constants), all supported devices, and its estimated share of the
    model's cost, None without one."""

    op: str
    output: str
    preferred: str
    supported: tuple[str, ...]
    cost: float | None


def _device_error(error: _Error) -> DeviceError:
    stage, text, hint = (field.decode(errors="replace") for field in (error.stage, error.text, error.hint))
    said = f"[coreml] {stage}: got {text}" + (f"; {hint}" if hint else "")
    return DeviceError(said, stage, error.code, hint)


class Views:
    """Arrays in the library's form, which the Views keep alive.

    buffers: the memory of some arrays, by name."""

    def __init__(self, arrays: Mapping[str, Array], buffers: Mapping[str, Buffer] | None = None) -> None:
        self.arrays = dict(arrays)
        self.rows = (_Array * len(arrays))()
        self._kept: list[Any] = [buffers]
        for row, (name, array) in zip(self.rows, self.arrays.items(), strict=True):
            extents = c.c_int64 * array.ndim
            shape = extents(*array.shape)
            strides = extents(*(step // array.itemsize for step in array.strides))
            self._kept += [shape, strides]
            row.name, row.dtype = name.encode(), _DTYPES[array.dtype.name].encode()
            row.data, row.rank = array.ctypes.data, array.ndim
            row.shape, row.strides = shape, strides
            if buffers and name in buffers:
                row.buffer = buffers[name].handle

    @property
    def copied(self) -> frozenset[str]:
        """The outputs that Core ML did not write in place."""
        return frozenset(name for name, row in zip(self.arrays, self.rows, strict=True) if row.copied)


def viewable(array: Array) -> Array:
    """Returns the array if Core ML supports its strides, or else a packed copy."""
    steps = zip(array.strides, array.shape, strict=True)
    fits = all((step > 0 and step % array.itemsize == 0) or extent == 1 for step, extent in steps)
    plain = fits and all(step >= 0 and step % array.itemsize == 0 for step in array.strides)
    return array if array.ndim and plain and array.flags.aligned else np.array(array, order="C", ndmin=1)


class CoreML:
    """The library, and the Core ML framework that it opens."""

    def __init__(self, library: Path, framework: str = "") -> None:
        """framework: the path of a replacement; "": the system's. Raises Error if the library cannot be opened."""
        try:
            self._library = c.CDLL(str(library))
        except OSError as error:
            raise Error(f"[coreml] {library.name}: got {error}, need it: install hexane again") from None
        self.framework = framework.encode() or None
        for name, (result, takes) in _TAKES.items():
            function = getattr(self._library, f"hexane_coreml_{name}")
            function.restype, function.argtypes = result, (*takes, c.POINTER(_Error))
        for name, result, takes in (
            ("free", None, (c.c_void_p,)),
            ("free_state", None, (c.c_void_p,)),
            ("free_buffer", None, (c.c_void_p,)),
            ("buffer_data", c.c_void_p, (c.c_void_p,)),
            ("buffer_strides", c.POINTER(c.c_int64), (c.c_void_p,)),
            ("num_ports", c.c_size_t, (c.c_void_p, c.c_int)),
            ("port_at", _Port, (c.c_void_p, c.c_int, c.c_size_t)),
            ("has_async", c.c_bool, (c.c_void_p,)),
        ):
            function = getattr(self._library, f"hexane_coreml_{name}")
            function.restype, function.argtypes = result, takes

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a function whose last argument is an error. Raises DeviceError if the function fails."""
        error = _Error()
        result = getattr(self._library, f"hexane_coreml_{name}")(*arguments, c.byref(error))
        if not result:
            raise _device_error(error)
        return result

    def plain(self, name: str, *arguments: Any) -> Any:
        """Calls a function that cannot fail."""
        return getattr(self._library, f"hexane_coreml_{name}")(*arguments)

    def probe(self) -> list[tuple[str, str, str, str]]:
        """Returns (class or selector, its name, "yes" or "", the first macOS that has it) for all that Hexane uses."""
        rows: list[tuple[str, str, str, str]] = []

        def line(_: Any, kind: bytes, name: bytes, present: bytes, need: bytes) -> None:
            rows.append((kind.decode(), name.decode(), present.decode(), need.decode()))

        self.call("probe", self.framework, _LINE(line), None)
        return rows


class CompiledModel:
    """A compiled model on disk. compile_ms: Core ML's time; 0 if it was compiled before."""

    def __init__(self, api: CoreML, path: Path) -> None:
        """Raises DeviceError with Core ML's reason if it refuses the model."""
        self.api, self.folder, self.compile_ms = api, path, 0.0
        if path.suffix == ".mlmodelc":
            return
        buffer, begun = c.create_string_buffer(MOST_PATH), time.perf_counter()
        api.call("compile", api.framework, str(path.resolve()).encode(), buffer, c.c_size_t(MOST_PATH))
        self.compile_ms = (time.perf_counter() - begun) * 1e3
        self.folder = Path(buffer.value.decode())
        weakref.finalize(self, shutil.rmtree, self.folder, True)

    def plan(self, units: str, function: str | None) -> list[PlannedOp]:
        """Returns Core ML's plan for each operation. Raises DeviceError before macOS 14.4."""
        rows: list[PlannedOp] = []

        def visit(_: Any, given: Any) -> None:
            op = given.contents
            supported = tuple(filter(None, op.supported.decode().split(",")))
            cost = op.cost if op.cost >= 0 else None
            name, output, preferred = (text.decode() for text in (op.operator_name, op.output, op.preferred))
            rows.append(PlannedOp(name, output, preferred, supported, cost))

        arguments = (str(self.folder).encode(), UNITS.index(units), function and function.encode())
        self.api.call("plan", self.api.framework, *arguments, _VISIT(visit), None)
        return rows


class LoadedModel:
    """An MLModel. load_ms: the time to load it. A second load from the same folder reuses files of the first load."""

    def __init__(self, compiled: CompiledModel, units: str, function: str | None) -> None:
        """Raises DeviceError with Core ML's reason if it refuses the model."""
        self.compiled, self.units, self.function = compiled, units, function
        self._api, begun = compiled.api, time.perf_counter()
        arguments = (str(compiled.folder).encode(), UNITS.index(units), function and function.encode())
        self._handle = self._api.call("load", self._api.framework, *arguments)
        self.load_ms = (time.perf_counter() - begun) * 1e3
        weakref.finalize(self, self._api.plain, "free", self._handle)
        self.ports = {side: self._ports(i) for i, side in enumerate(SIDES)}
        self.has_async: bool = self._api.plain("has_async", self._handle)

    def _ports(self, side: int) -> dict[str, CoreMLPort]:
        ports = {}
        for i in range(self._api.plain("num_ports", self._handle, side)):
            port = self._api.plain("port_at", self._handle, side, i)
            name, shape = port.name.decode(), tuple(port.shape[: port.rank]) if port.rank else ()
            ports[name] = CoreMLPort(name, port.kind.decode(), port.dtype.decode(), shape, port.optional)
        return ports

    def predict(self, inputs: Views, outputs: Views, state: State | None = None) -> None:
        handle = None if state is None else state.handle
        self._api.call("predict", self._handle, handle, inputs.rows, len(inputs.rows), outputs.rows, len(outputs.rows))

    def start(self, inputs: Views, outputs: Views, done: Callable[[DeviceError | None], None]) -> None:
        """Starts a prediction. `done` is called in another thread. Raises DeviceError before macOS 14."""
        key = id(inputs)

        def finish(_: Any, error: Any) -> None:
            kept = _started.pop(key)  # keeps the callback alive until it returns
            done(_device_error(error.contents) if error else None)
            del kept

        callback = _DONE(finish)
        _started[key] = (self, inputs, outputs, callback)
        try:
            rows = (inputs.rows, len(inputs.rows), outputs.rows, len(outputs.rows))
            self._api.call("predict_async", self._handle, *rows, callback, None)
        except DeviceError:
            _started.pop(key, None)
            raise

    def new_buffer(self, shape: tuple[int, ...]) -> Buffer:
        return Buffer(self._api, shape)

    def new_state(self) -> State:
        return State(self, self._api, self._api.call("new_state", self._handle))


class Buffer:
    """Memory of fp16 that Core ML passes to the engine without a copy: a pixel buffer. `array` is a view of it."""

    def __init__(self, api: CoreML, shape: tuple[int, ...]) -> None:
        """Raises DeviceError before macOS 12, or where CoreVideo has no memory."""
        self.handle = api.call("new_buffer", api.framework, len(shape), (c.c_int64 * len(shape))(*shape))
        weakref.finalize(self, api.plain, "free_buffer", self.handle)
        steps = api.plain("buffer_strides", self.handle)
        self.__array_interface__ = {
            "version": 3, "typestr": "<f2", "shape": shape, "strides": tuple(2 * steps[i] for i in range(len(shape))),
            "data": (api.plain("buffer_data", self.handle), False),
        }  # fmt: skip

    @property
    def array(self) -> Array:
        return np.asarray(self)  # the array keeps the buffer alive


_started: dict[int, Any] = {}  # objects that running predictions need


class State:
    """An MLState: all states of one caller of a model."""

    def __init__(self, model: LoadedModel, api: CoreML, handle: int) -> None:
        self.model, self.handle, self._api = model, handle, api
        self._finalizer = weakref.finalize(self, _free_state, model, api, handle)

    def read(self, name: str, into: Array) -> None:
        self._api.call("read_state", self.handle, Views({name: into}).rows)

    def write(self, name: str, value: Array) -> None:
        self._api.call("write_state", self.handle, Views({name: value}).rows)


def _free_state(model: LoadedModel, api: CoreML, handle: int) -> None:
    """model: an argument only so that it lives as long as its states."""
    api.plain("free_state", handle)


def missing() -> str:
    """Returns why Core ML cannot be used on this machine; "" if it can."""
    if platform.system() != "Darwin":
        return f"{platform.system()} on {platform.machine()}"
    return "" if _path().exists() else f"no {_path().name} next to {Path(_core.__file__).name}"


def _path() -> Path:
    return Path(_core.__file__).with_name("libhexane_ane.dylib")


def own_coreml(where: str = "compile") -> CoreML:
    """Returns this Mac's Core ML. Raises Error with an alternative on a machine without Core ML."""
    if why := missing():
        raise Error(
            f"[{where}] Core ML: got {why}, need a Mac; device='cpu' runs the same model here, and hx.save_coreml"
            " writes the package"
        )
    return _own()


@cache
def _own() -> CoreML:
    return CoreML(_path())
