"""A compiled model: call it, bind it to buffers, save it."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np

from hexane import _core
from hexane.decisions import counted
from hexane.dtypes import FP16, DType, dtype
from hexane.errors import Error, InputError
from hexane.graph import Array, tensor_type
from hexane.program import Program
from hexane.runtime.call_trace import chrome_trace
from hexane.runtime.debug import Debug, debug
from hexane.runtime.futures import Submits
from hexane.runtime.states import read_states, write_states
from hexane.stages.stream.traffic import Traffic

if TYPE_CHECKING:
    from hexane.runtime.open_model import OpenModel


@dataclass(frozen=True, slots=True)
class PortType:
    """An input or output of a model. A dim is None (or a name) while it is not known before the call, and "..." means
    any number of dims.

    Where `length` is not empty, the extent along `axis` is only known after the call, and `shape` has the largest there
    may be. `length` is the name under which `bind` gives the number.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: DType
    length: str = ""
    axis: int = 0

    def __str__(self) -> str:
        dims = ["?" if d is None else str(d) for d in self.shape]
        if self.length:
            dims[self.axis] = f"<={dims[self.axis]}"
        return f"{self.name}: {self.dtype}[{', '.join(dims)}]"


def no_params(names: Iterable[str]) -> str:
    """What the error of `update` says of a model without params."""
    return (
        f"[update] got the name {', '.join(map(repr, names))}, need one of none: the model has no params; weights of an"
        " ONNX model are constants, hx.train.with_params makes params of them, and hx.param what can be replaced"
    )


class Model(Submits):
    """A program that is ready to run, with fixed shapes.

    Runs of one model happen one after the other, whichever threads call it; different models run side by side.
    """

    def __init__(
        self,
        core: _core.Program,
        program: Program | None = None,
        why: str = "",
        engine: _core.Device | None = None,
        moved: Traffic | None = None,
    ) -> None:
        """engine: the device that runs its programs; why: a chip's program runs on none. moved: by a call from and to
        slow memory."""
        self._core = core
        self.program = program
        self._why, self._engine, self._moved = why, engine, moved
        self.inputs = tuple(PortType(p["name"], p["shape"], dtype(p["dtype"])) for p in core.inputs)
        ports = core.outputs
        counts = {p["length"] - 1 for p in ports}  # of outputs that are the lengths of others
        self._shown = [i for i in range(len(ports)) if i not in counts]
        self._halves = {p.name: p.dtype for p in self.inputs if p.dtype is FP16}
        self._trims = {i: (p["axis"], p["length"] - 1) for i, p in enumerate(ports) if p["length"]}
        self.outputs = tuple(
            PortType(
                p["name"],
                p["shape"],
                dtype(p["dtype"]),
                ports[p["length"] - 1]["name"] if p["length"] else "",
                p["axis"],
            )
            for p in (ports[i] for i in self._shown)
        )
        self._output_names = [p.name for p in self.outputs]
        self._params = {name: dtype(kept) for name, (kept, _) in core.types("weights").items()}
        self._states = {name: tensor_type(kept, shape) for name, (kept, shape) in core.types("state").items()}
        self._open: OpenModel | None = None

    @property
    def optional_inputs(self) -> tuple[PortType, ...]:
        """Inputs that have a default in the model, where a call may give others by name."""
        return self._open.optional_inputs if self._open is not None else ()

    def with_optional(self, variants: OpenModel) -> Model:
        """This model; calls that give an optional input go to `variants`, which compiles them."""
        self._open = variants
        return self

    @property
    def target(self) -> str:
        """What it is compiled for: "host", or the name of a chip."""
        return self._core.arithmetics[0] if self._core.arithmetics else "host"

    @property
    def target_label(self) -> str:
        """The target as it was asked for: "A14 (h13)"; that of a loaded plan by its own name."""
        return self.target if self.program is None else self.program.target.label

    @property
    def device(self) -> str:
        """Where it runs: "ane", or "cpu" with the instruction set of the kernels, which runs the program of a chip too,
        and why."""
        cpu = f"cpu ({_core.isa()})"
        if self._engine:
            count = sum(step["kernel"] == "program" for step in self.steps)
            programs = f"{count} program{'s' if count != 1 else ''}"
            return f"ane ({self._engine.name}): {programs} of {self.target_label}, the rest on {cpu}"
        if self.target == "host":
            return cpu
        cpu = f"cpu ({_core.isa()}{', ' if self._why else ''}{self._why})"
        engine = any(name.endswith(" engine") for name in self._core.arithmetics)
        how = (
            "its program in the engine's arithmetic, as far as it is known"
            if engine
            else "its program in ieee arithmetic"
        )
        return f"{cpu}, in the place of {self.target_label}: {how}"

    @property
    def is_on_engine(self) -> bool:
        """Whether programs of it run on a Neural Engine."""
        return self._engine is not None

    @property
    def compiles_left(self) -> int | None:
        """How many more programs this process may compile for the engine that the model runs on; None where it runs on
        none, or there is no limit. Beyond it another process compiles."""
        if self._engine is None:
            return None
        counters = self._engine.counters
        used = counters["compiled"] + counters["compiles_in_loads"]
        return max(0, counters["compile_limit"] - used) if counters["compile_limit"] else None

    @property
    def threads(self) -> int:
        return self._core.threads

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of every memory space by name, and of scratch. With slow memory also `slow_read` and `slow_written`:
        what a call reads from there and writes to it; in stripes of columns `repeated`: the multiply-accumulates that
        it does more than once (a loaded model knows neither)."""
        moved = {} if self._moved is None else {"slow_read": self._moved.read, "slow_written": self._moved.written}
        repeats = 0 if self.program is None else self.program.repeated
        repeated = {"repeated": repeats} if repeats else {}
        return {**self._core.memory, "scratch": self._core.scratch_bytes, **moved, **repeated}

    @property
    def surfaces(self) -> dict[str, _core.Surface]:
        """The ports whose memory a device shares, by name; a name that an input and an output share means the input."""
        inputs, outputs = self._core.surfaces
        return {**outputs, **inputs}

    @property
    def unshared_bytes(self) -> int:
        """About the bytes that would be free without this model. Weights that others of one open model share do not
        count."""
        return self._core.unshared_bytes

    @property
    def steps(self) -> list[_core.StepInfo]:
        """The kernel calls in order, with their profile if there is one."""
        return self._core.steps

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on arrays given in the order of `inputs`, by name, or as one mapping.

        Arrays have a port's exact dtype and shape, but that a port in fp16 takes arrays of float32 too; anything with
        the buffer protocol or DLPack will do. Returns an
        ndarray, or a dict by name where there are several outputs. Raises Error naming the input, what it got and
        needs. An output whose extent depends on the data has just that extent.
        """
        if self._open is not None and self._overrides(args, kwargs):
            return self._open(*args, **kwargs)
        given = arguments(self.inputs, args, kwargs)
        if self._halves:
            given = self._halved(given)
        try:
            outputs = self._core.run(given)
        except MemoryError as error:
            raise Error(f"[call] outputs: {self._out_of_memory(error)}") from None
        if self._trims:
            outputs = self._trimmed(outputs)
        return outputs[0] if len(outputs) == 1 else dict(zip(self._output_names, outputs, strict=True))

    def _halved(self, given: Mapping[str, Any] | Sequence[Any]) -> Mapping[str, Any] | Sequence[Any]:
        """Arrays of float32 for ports in fp16, rounded."""

        def kept(name: str, value: Any) -> Any:
            is_wide = name in self._halves and isinstance(value, np.ndarray) and value.dtype == np.float32
            return _as_kept(f"input '{name}'", value, FP16) if is_wide else value

        if isinstance(given, Mapping):
            return {name: kept(name, value) for name, value in given.items()}
        return [kept(port.name, value) for port, value in zip(self.inputs, given, strict=False)]

    def bind(self, /, **buffers: Any) -> _core.Bound:
        """Binds C-contiguous buffers to ports by name: every input, and any outputs (the others are allocated).

        A name that an input and an output share means the input. A port that a device shares may be left out: then
        `inputs` or `outputs` of the result has a view of the surface itself, which all such calls of this model share.
        Given buffers are copied from or to it. Calling the result runs the model on them: no allocation, no copy. Its
        `outputs` are the output arrays by name. One whose extent depends on the data has the largest there may be; how
        much of it is valid is the output that its port calls `length` ("y.length"), and what lies behind that means
        nothing. Raises Error for a buffer that does not fit its port, a read-only output, or an output that overlaps
        another buffer.
        """
        if self._open is not None and self._overrides((), buffers):
            return self._open.bind(**buffers)
        try:
            return self._core.bind(buffers)
        except MemoryError as error:
            raise Error(f"[bind] outputs: {self._out_of_memory(error)}") from None

    def _out_of_memory(self, error: MemoryError) -> str:
        sizes = ", ".join(f"{p['name']} {p['dtype']}{list(p['shape'])}" for p in self._core.outputs)
        return f"cannot get memory for {sizes} from the system: {error}"

    def _overrides(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """Whether a call gives an optional input."""
        given = args[0] if len(args) == 1 and isinstance(args[0], Mapping) else kwargs
        return any(port.name in given for port in self.optional_inputs) if given else False

    def _trimmed(self, outputs: Sequence[Array]) -> list[Array]:
        """The outputs that are shown, each with the extent that its length says."""
        result = list(outputs)
        for i, (axis, length) in self._trims.items():
            count, capacity = int(outputs[length]), outputs[i].shape[axis]
            if not 0 <= count <= capacity:
                raise Error(f"[call] output {i}: got the length {count}, need 0..{capacity}")
            # A copy: the result does not keep the memory of the largest one.
            result[i] = outputs[i][(*[slice(None)] * axis, slice(count))].copy()
        return [result[i] for i in self._shown]

    def update(self, /, **arrays: Any) -> None:
        """Replaces params by name, those too that the program writes itself; a model that keeps a param in fp16 takes
        it in fp32 too.

        Raises Error for an unknown name, another shape or dtype, and for values that fp16 does not hold.
        """
        if arrays and not self._params and not self._states:
            raise Error(no_params(arrays))
        for name, value in arrays.items():
            if name in self._states:
                self.write_state(name, value)
            else:
                self._core.update(name, _as_kept(f"weights '{name}'", value, self._params.get(name)))

    def reset_state(self) -> None:
        """Puts the initial contents of all states back. Raises Error after `drop_initial_states`."""
        self._core.reset_state()

    def drop_initial_states(self) -> None:
        """Lets go the initial contents of states, of which a model keeps a copy: of params that a training step writes,
        as much memory as they take themselves.

        From then on `reset_state`, `save` with states="initial" and whatever asks for the graph (`debug`, `program`)
        have nothing to go by: the first two raise Error. The memory is free when nobody else has the arrays: those who
        hold the graph, or its params, do.
        """
        self.program = None
        self._core.drop_first_contents()

    def read_state(self, name: str) -> Array:
        """A copy of the state of that name."""
        return self._core.read_state(name)

    def write_state(self, name: str, value: Any) -> None:
        """Replaces the contents of the state of that name; a state that is kept in fp16 may be given in fp32 too."""
        kept = self._states[name].dtype if name in self._states else None
        self._core.write_state(name, _as_kept(f"state '{name}'", value, kept))

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Writes the states as they are now, params that the program writes among them, to a file in safetensors.

        Unlike `save` it takes a model with programs on an engine, and the file fits the same graph compiled for any
        chip or number of threads. A failure, or the end of the process, leaves the old file as it was. Raises Error for
        a model without states.
        """
        if not self._states:
            raise Error("[save_states] got a model without states, need one: hx.state, or params that a step writes")
        write_states(path, {name: self.read_state(name) for name in self._states})

    def load_states(self, path: str | os.PathLike[str], *, keep: Iterable[str] = ()) -> None:
        """Replaces all states, but those that `keep` names, by what `save_states` wrote: all or, after an Error, none.

        Raises Error for a file that is damaged, and for one of other states: other names, shapes or dtypes.
        """
        where, kept = f"[load_states] {os.fspath(path)}", {*keep}
        found = {name: array for name, array in read_states(path).items() if name not in kept}
        if other := sorted((self._states.keys() - kept) ^ found.keys()):
            raise Error(f"{where}: got other states ({', '.join(other[:4])}), need those of this model")
        for name, array in found.items():
            need = self._states[name]
            found[name] = array = _as_kept(f"state '{name}'", array, need.dtype)
            if array.dtype != need.dtype.numpy or array.shape != need.shape:
                got = tensor_type(array.dtype, array.shape)
                raise Error(f"{where}: state '{name}': got {got}, need {need}")
        for name, array in found.items():
            self._core.write_state(name, array)

    def profile(self, on: bool = True) -> None:
        """Starts counting calls and nanoseconds of every step (from zero), or stops; read them from `steps`.

        Raises Error for anything but True or False: it takes no inputs, the calls that follow do.
        """
        if not isinstance(on, bool):
            got = type(on).__name__
            raise Error(
                f"[profile] on: got {got}, need True or False, then calls of the model; `steps` has what they took"
            )
        self._core.profile(on)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes when each step ran in the last call since `profile()`, as a Chrome trace (chrome://tracing, Perfetto):
        a lane for this CPU, one for the engine.

        Raises Error where no call was profiled.
        """
        if not self._core.timeline:
            raise Error("[save_trace] got no call since profile(), need one")
        _core.save_file(os.fspath(path), chrome_trace(self._core, repr(self)).encode())

    def debug(self, /, *args: Any, **kwargs: Any) -> Debug:
        """Runs the model on inputs given as a call takes them, step by step, and says the range of every layer.

        The run stops at the first number that is infinite or NaN though all that it is computed from is finite: `stop`
        says which element it is, why, and for convolutions and matrix products which products are largest and where the
        accumulator goes. States are as they were before. print() shows it all; `to_json()` is for programs. Raises
        Error for a model without its graph (loaded) and one whose steps compute some rows at a time, and as a call
        does.
        """
        given = arguments(self.inputs, args, kwargs)
        names = [port.name for port in self.inputs]
        feeds = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
        return debug(self._core, self.program, feeds, self.device)

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names that `update` takes, but for those of params that the program writes itself."""
        return tuple(self._params)

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names that `read_state` and `write_state` take; params that the program writes are among them."""
        return tuple(self._states)

    def save(self, path: str | os.PathLike[str], *, states: str = "initial") -> None:
        """Writes the plan to a file: the params as they are now, and the states as they are at first.

        So a loaded model computes what this one does, and starts as a fresh one. With states="now" the file has the
        states as they are, and a loaded model goes on where this one is; `reset_state` then leads back to there.

        A failure, or the end of the process, leaves the old file as it was: PATH.part is written first. A link is
        followed. Raises Error for a path that names anything but a regular file, and for initial states after
        `drop_initial_states`.
        """
        if states not in ("initial", "now"):
            raise Error(f"[save] states: got {states!r}, need 'initial' or 'now'")
        if self._engine:
            raise Error(f"[save] got a model with programs on {self._engine.name}, need one compiled with device='cpu'")
        if any(step["kernel"] == "program" for step in self.steps):
            raise Error("[save] got a model with programs that are functions of this process, need one without")
        self._core.save(os.fsencode(path), states == "now")

    def __reduce__(self) -> Any:
        raise Error("[pickle] got a model, need a file: net.save(path), then hx.load(path)")

    def __repr__(self) -> str:
        ports = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<hexane.Model ({ports[0]}) -> ({ports[1]}), {counted(len(self.steps), 'step')} on {self.device}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(s['kernel'])}</td><td>{escape(s['source'])}</td><td>{s['cost'] / 1000:.1f}</td></tr>"
            for s in self.steps[:200]
        )
        head = "<tr><th>kernel</th><th>from</th><th>estimated us</th></tr>"
        return f"<p>{escape(repr(self))}</p><table>{head}{rows}</table>"


def _refused(bound: _core.Bound) -> Any:
    raise Error("[pickle] got a bound call, which holds buffers of this process, need a new one: net.bind(..)")


copyreg.pickle(_core.Bound, _refused)  # what copy and pickle ask


def _as_kept(where: str, value: Any, kept: DType | None) -> Array:
    """The value as an array, in fp16 where it is kept so and was given in fp32."""
    array = np.asarray(value)
    if kept is not FP16 or array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        halves = array.astype(np.float16)
    if np.any(np.isinf(halves) & np.isfinite(array)):
        raise Error(f"[{where}] got values that fp16 does not hold, need at most 65504")
    return halves


def _wrong_count(inputs: Sequence[PortType], count: int) -> str:
    """What is missing of a call with so many arrays."""
    if count > len(inputs):
        return f"[call] inputs: got {count}, need {len(inputs)}: {', '.join(map(str, inputs)) or 'none'}"
    missing = ", ".join(map(str, inputs[count:]))
    return f"[call] inputs: got {count}, need {len(inputs)}; missing: {missing}"


def arguments(
    inputs: Sequence[PortType],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optional: Sequence[PortType] = (),
) -> Mapping[str, Any] | Sequence[Any]:
    """What a call was given, in port order or by name. Raises InputError for a wrong number or unknown names."""
    names = [p.name for p in inputs]
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        given, args = dict(args[0]), ()
    elif not kwargs:
        if len(args) != len(inputs):
            raise InputError(_wrong_count(inputs, len(args)))
        return args
    else:
        given = dict(zip(names, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise InputError(f"[call] got the input {min(twice)!r} twice, need it once")
        given.update(kwargs)
    if given.keys() - {p.name for p in optional} != set(names) or len(args) > len(names):
        got = ", ".join(map(str, given)) if len(args) <= len(names) else f"{len(args)} arrays"
        raise InputError(f"[call] got the inputs {got or 'none'}, need {', '.join(names) or 'none'}")
    return given
