"""Models that run through Core ML's public API: `hx.compile(model, device="coreml")`."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np

from hexane import _core, sources
from hexane.errors import DeviceError, Error, InputError, UnsupportedError
from hexane.graph import Array, Graph, TensorType, tensor_type
from hexane.importers.signature import SpecialisationNeeded
from hexane.options import Options
from hexane.runtime import coreml_library
from hexane.runtime.coreml import save_coreml
from hexane.runtime.coreml_library import (
    NUMPY_OF,
    Buffer,
    CompiledModel,
    CoreML,
    CoreMLPort,
    LoadedModel,
    PlannedOp,
    State,
    Views,
    viewable,
)
from hexane.runtime.model import Model, arguments

_AS_IT_IS = (".mlpackage", ".mlmodelc", ".mlmodel")


@dataclass(frozen=True, slots=True)
class _Port:
    """A port of the model and its feature in Core ML. name, type: the model's; dtype, shape: Core ML's."""

    name: str
    type: TensorType
    feature: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def takes_buffer(self) -> bool:
        """True if a pixel buffer can hold the port."""
        return self.is_same and self.dtype == "fp16" and self.shape == self.type.shape and 0 not in self.shape

    @property
    def is_same(self) -> bool:
        return NUMPY_OF[self.dtype] == self.type.dtype.numpy

    def checked(self, what: str, value: Any) -> Array:
        """Returns the value as an array. Raises InputError for another dtype or shape than the port's."""
        array = np.asarray(value)
        if array.dtype != self.type.dtype.numpy or array.shape != self.type.shape:
            got = tensor_type(array.dtype, array.shape) if array.dtype.kind in "fiub" else f"{array.dtype} array"
            raise InputError(f"[call] {what} '{self.name}': got {got}, need {self.type}")
        return array

    def to_feature(self, array: Array) -> Array:
        """Returns the array in Core ML's dtype and shape. It is copied if the dtype differs, or if Core ML does not
        support its strides. Raises InputError for integers beyond Core ML's dtype."""
        kind = NUMPY_OF[self.dtype]
        if array.dtype != kind:
            if array.dtype.kind in "iu" and array.size:
                ends = np.iinfo(kind)
                if array.min() < ends.min or array.max() > ends.max:
                    raise InputError(
                        f"[call] input '{self.name}': got values from {array.min()} to {array.max()}, need those of"
                        f" {self.dtype}, in which Core ML takes integers"
                    )
            array = array.astype(kind)
        return viewable(array if array.shape == self.shape else array.reshape(self.shape))

    def from_feature(self, array: Array) -> Array:
        return array.astype(self.type.dtype.numpy, copy=False).reshape(self.type.shape)


class CoreMLProgram:
    """Replaces `_core.Program` in a model on Core ML: one MLModel with the states of one caller."""

    def __init__(self, loaded: LoadedModel, ports: Mapping[str, Sequence[_Port]]) -> None:
        self.loaded, self.ports = loaded, ports
        self._state: State | None = loaded.new_state() if ports["state"] else None
        self.copied: frozenset[str] = frozenset()
        self.inputs, self.outputs = (
            [
                {"name": p.name, "shape": p.type.shape, "dtype": p.type.dtype.name, "length": 0, "axis": 0}
                for p in ports[side]
            ]
            for side in ("input", "output")
        )
        self.arithmetics: list[str] = []
        self.steps: list[_core.StepInfo] = []
        self.surfaces: tuple[dict[str, Any], dict[str, Any]] = ({}, {})
        self.memory: dict[str, int] = {}
        self.own_memory: dict[str, int] = {}
        self.scratch_bytes = self.unshared_bytes = 0
        self.threads = 1

    def __getattr__(self, name: str) -> Any:
        raise UnsupportedError(f"[coreml] got {name!r} of a model on Core ML, need device='cpu', which has it")

    def types(self, space: str) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {p.name: (p.type.dtype.name, p.type.shape) for p in self.ports.get(space, ())}

    def given(self, given: Mapping[str, Any] | Sequence[Any], buffers: Mapping[str, Buffer] | None = None) -> Views:
        ports = self.ports["input"]
        values = [given[p.name] for p in ports] if isinstance(given, Mapping) else given
        pairs = zip(ports, values, strict=True)
        return Views({p.feature: p.to_feature(p.checked("input", value)) for p, value in pairs}, buffers)

    def results(self) -> Views:
        return Views({p.feature: np.empty(p.shape, NUMPY_OF[p.dtype]) for p in self.ports["output"]})

    def taken(self, outputs: Views) -> list[Array]:
        self.copied = outputs.copied
        return [p.from_feature(outputs.arrays[p.feature]) for p in self.ports["output"]]

    def predict(self, inputs: Views, outputs: Views) -> None:
        self.loaded.predict(inputs, outputs, self._state)

    def run(self, given: Mapping[str, Any] | Sequence[Any]) -> list[Array]:
        outputs = self.results()
        self.predict(self.given(given), outputs)
        return self.taken(outputs)

    def bind(self, buffers: Mapping[str, Any]) -> CoreMLBound:
        """A bound call. Ports without a buffer get one that Core ML does not copy, from macOS 12 on, if the model and
        Core ML have them in fp16 with the same shape."""
        return CoreMLBound(self, buffers)

    def start(self, given: Mapping[str, Any] | Sequence[Any]) -> Future[list[Array]]:
        """Starts a prediction that Core ML runs in the background."""
        future: Future[list[Array]] = Future()
        outputs = self.results()

        def done(error: DeviceError | None) -> None:
            try:
                if error is not None:
                    raise error
                future.set_result(self.taken(outputs))
            except Exception as failure:  # the future gets the error: the caller is a thread of Core ML
                future.set_exception(failure)

        future.set_running_or_notify_cancel()
        self.loaded.start(self.given(given), outputs, done)
        return future

    @property
    def starts(self) -> bool:
        return self.loaded.has_async and self._state is None

    def context(self) -> CoreMLProgram:
        """Returns a program with another MLModel of the same folder: Apple recommends one MLModel per thread."""
        again = LoadedModel(self.loaded.compiled, self.loaded.units, self.loaded.function)
        return CoreMLProgram(again, self.ports)

    def _state_port(self, name: str) -> tuple[State, _Port]:
        for port in self.ports["state"]:
            if port.name == name and self._state is not None:
                return self._state, port
        names = ", ".join(p.name for p in self.ports["state"]) or "none"
        raise Error(f"[state] got the name {name!r}, need one of {names}")

    def read_state(self, name: str) -> Array:
        state, port = self._state_port(name)
        array = np.empty(port.shape, NUMPY_OF[port.dtype])
        state.read(port.feature, array)
        return port.from_feature(array)

    def write_state(self, name: str, value: Array) -> None:
        state, port = self._state_port(name)
        state.write(port.feature, port.to_feature(port.checked("state", value)))

    def reset_state(self) -> None:
        """Makes new states, which Core ML initialises with zeros."""
        if self._state is not None:
            self._state = self.loaded.new_state()


class CoreMLBound:
    """A bound call, with the interface of `_core.Bound`."""

    def __init__(self, program: CoreMLProgram, buffers: Mapping[str, Any]) -> None:
        sides = {side: program.ports[side] for side in ("input", "output")}
        names = {p.name for side in sides.values() for p in side}
        if unknown := buffers.keys() - names:
            raise InputError(f"[bind] got {min(unknown)!r}, need one of {', '.join(sorted(names))}")
        self._buffers: dict[str, dict[str, Buffer]] = {side: {} for side in sides}  # by feature
        self.inputs = {p.name: self._array(program, p, "input", buffers) for p in sides["input"]}
        if absent := [name for name, array in self.inputs.items() if array is None]:
            raise InputError(f"[bind] inputs: got none for {', '.join(absent)}, need all")
        given = {name: array for name, array in buffers.items() if name not in self.inputs}
        self.outputs = {p.name: self._array(program, p, "output", given) for p in sides["output"]}
        self._check_overlaps()
        self._program, self._sides = program, sides
        fixed = all(p.is_same for p in sides["input"])
        self._views = program.given(self.inputs, self._buffers["input"]) if fixed else None
        own = {
            p.feature: self.outputs[p.name].reshape(p.shape) if p.is_same else np.empty(p.shape, NUMPY_OF[p.dtype])
            for p in sides["output"]
        }
        self._results = Views(own, self._buffers["output"])

    def _array(self, program: CoreMLProgram, port: _Port, side: str, given: Mapping[str, Any]) -> Any:
        """The caller's array; else a view of a pixel buffer, where there can be one; else a new array for an output,
        and None for an input."""
        if port.name in given:
            return self._fit(port, side, given[port.name])
        if port.takes_buffer:
            try:
                buffer = program.loaded.new_buffer(port.shape)
            except DeviceError:  # an older system
                pass
            else:
                self._buffers[side][port.feature] = buffer
                return buffer.array
        return np.empty(port.type.shape, port.type.dtype.numpy) if side == "output" else None

    @staticmethod
    def _fit(port: _Port, side: str, value: Any) -> Array:
        array = port.checked(side, value)
        if not array.flags.c_contiguous:
            raise InputError(f"[bind] {side} '{port.name}': got strides {array.strides}, need a C-contiguous buffer")
        if side == "output" and not array.flags.writeable:
            raise InputError(f"[bind] output '{port.name}': got a read-only buffer, need one that can be written")
        return array

    def _check_overlaps(self) -> None:
        outputs = list(self.outputs.items())
        for i, (name, array) in enumerate(outputs):
            for other, buffer in (*self.inputs.items(), *outputs[:i]):
                if np.may_share_memory(array, buffer):
                    raise InputError(f"[bind] output '{name}': got a buffer that overlaps '{other}', need its own")

    def __call__(self) -> dict[str, Array]:
        program = self._program
        program.predict(self._views or program.given(self.inputs, self._buffers["input"]), self._results)
        program.copied = self._results.copied
        for port in self._sides["output"]:
            if not port.is_same:
                self.outputs[port.name][...] = port.from_feature(self._results.arrays[port.feature])
        return self.outputs


class CoreMLModel(Model):
    """A model that Core ML runs. Methods that Core ML does not support (`save`, `debug`, `profile`, and `update` of
    anything but states) raise Error."""

    def __init__(self, program: CoreMLProgram) -> None:
        super().__init__(cast(_core.Program, program))
        self._on = program

    @property
    def device(self) -> str:
        """Core ML and the devices that it may choose from."""
        return f"coreml ({self._on.loaded.units})"

    @property
    def load_times(self) -> dict[str, float]:
        """Milliseconds that Core ML took to compile the package, and to load it. The load of a context is faster: Core
        ML caches files of the first load."""
        return {"compile_ms": self._on.loaded.compiled.compile_ms, "load_ms": self._on.loaded.load_ms}

    @property
    def copied_outputs(self) -> frozenset[str]:
        """Features of the last call's outputs that were copied, because Core ML did not write them in place."""
        return self._on.copied

    def compute_plan(self) -> list[PlannedOp]:
        """Returns Core ML's plan for each operation (MLComputePlan). Raises DeviceError before macOS 14.4."""
        loaded = self._on.loaded
        return loaded.compiled.plan(loaded.units, loaded.function)

    def context(self) -> CoreMLModel:
        """Returns a further caller, with its own MLModel and states, in the time of a second load."""
        return CoreMLModel(self._on.context())

    def submit(self, /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Like `Model.submit`. From macOS 14 on, and without states, Core ML runs calls at the same time."""
        if not self._on.starts:
            return super().submit(*args, **kwargs)
        given, future = arguments(self.inputs, args, kwargs), Future[Any]()
        future.set_running_or_notify_cancel()

        def done(started: Future[list[Array]]) -> None:
            error = started.exception()
            if error is not None:
                future.set_exception(error)
                return
            outputs = started.result()
            names = [port.name for port in self.outputs]
            future.set_result(outputs[0] if len(outputs) == 1 else dict(zip(names, outputs, strict=True)))

        self._on.start(self._halved(given) if self._halves else given).add_done_callback(done)
        return future

    def _saves(self, where: str, states: str) -> bool:
        raise Error(f"[{where}] got a model on Core ML, need one compiled with device='cpu', or hx.save_coreml")

    def debug(self, /, *args: Any, **kwargs: Any) -> Any:
        raise UnsupportedError("[debug] got a model on Core ML, whose steps are not seen, need device='cpu'")

    def __repr__(self) -> str:
        ports = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<hexane.CoreMLModel ({ports[0]}) -> ({ports[1]}) on {self.device}>"


def compile_on_coreml(
    opened: sources.Module,
    options: Options,
    shapes: Mapping[str, Sequence[int]],
    values: Mapping[str, Any],
    api: CoreML | None = None,
) -> CoreMLModel:
    """Returns the model on this Mac's Core ML. A Core ML model is passed on unchanged, unless `target` or `compress`
    are given; any other is written as a package first. Raises Error without Core ML, and for models that Core ML
    refuses. api: replaces the system's Core ML."""
    check_options(options)
    api = api or coreml_library.own_coreml()
    try:
        graph = opened.function().graph(shapes, {name: np.asarray(value) for name, value in values.items()})
    except SpecialisationNeeded as error:
        raise Error(f"[compile] device 'coreml': got open shapes, need input_shapes for all of them: {error}") from None
    units = options.placed.compute_units or "cpu_and_ne"
    path = Path(opened.source) if opened.form == "coreml" else None
    if path is not None and path.suffix in _AS_IT_IS and not options.target and options.compress is None:
        function = opened.asked or ("main" if len(opened.functions) > 1 else None)
        loaded = LoadedModel(CompiledModel(api, path), units, function)
        return CoreMLModel(CoreMLProgram(loaded, _ports(graph, loaded, {})))
    with tempfile.TemporaryDirectory(prefix="hexane") as folder:
        package = Path(folder) / "model.mlpackage"
        written = save_coreml(
            graph,
            package,
            compute="fp32" if options.dtype == "fp32" else "fp16",
            target=cast(Any, options.target or None),
            compression=options.compress,
        )
        compiled = CompiledModel(api, package)
    loaded = LoadedModel(compiled, units, None)
    return CoreMLModel(CoreMLProgram(loaded, _ports(graph, loaded, written.renamed)))


def check_options(options: Options) -> None:
    """Raises Error for options that have no effect on Core ML."""
    fresh = Options(device=options.device)
    takes = ("device", "target", "dtype", "compress")
    given = [n for n in Options.__dataclass_fields__ if n not in takes and getattr(options, n) != getattr(fresh, n)]
    if given:
        raise Error(f"[compile] {', '.join(given)}: got it for the device 'coreml', need another device for it")
    if options.dtype == "bf16" or options.auto_dtype is not None:
        dtype = "auto" if options.auto_dtype is not None else options.dtype
        raise Error(f"[compile] dtype: got {dtype!r} for the device 'coreml', need 'fp16' or 'fp32'")


def _ports(graph: Graph, loaded: LoadedModel, renamed: Mapping[str, str]) -> dict[str, list[_Port]]:
    kinds = {
        "input": [(str(v.node.attrs["name"]), v.type) for v in graph.inputs],
        "output": [(port.name, port.value.type) for port in graph.outputs],
        "state": [(str(n.attrs["name"]), n.types[0]) for n in graph.nodes if n.op == "state"],
    }
    return {
        side: [_port(side, name, kind, loaded.ports[side], renamed.get(name, name)) for name, kind in ports]
        for side, ports in kinds.items()
    }


def _port(side: str, name: str, kind: TensorType, features: Mapping[str, CoreMLPort], feature: str) -> _Port:
    described = features.get(feature)
    if described is None:
        got = ", ".join(features) or "none"
        raise Error(f"[coreml] {side} {name!r}: got the features {got} from Core ML, need {feature}")
    if described.kind != "array" or described.dtype not in NUMPY_OF:
        raise UnsupportedError(
            f"[coreml] {side} {name!r}: got a feature of Core ML that is of the kind {described.kind}, need an array;"
            " device='cpu' runs this model"
        )
    same = int(np.prod(described.shape)) == int(np.prod(kind.shape))
    shape = described.shape if described.shape and same else kind.shape or (1,)
    return _Port(name, kind, feature, described.dtype, tuple(shape))
