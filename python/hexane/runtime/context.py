"""A caller of a compiled model: states, memory and buffers of its own, weights shared with all callers."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hexane import _core
from hexane.dtypes import FP16, DType, dtype
from hexane.errors import Error, InputError, UnsupportedError
from hexane.graph import Array, tensor_type
from hexane.runtime.call_trace import chrome_trace
from hexane.runtime.futures import Submits
from hexane.runtime.states import read_states, write_states

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


class Context(Submits):
    """The state of one conversation or caller of a model: `Model.context` makes it, cheaply.

    Calls of one context run one after the other; several contexts may run at the same time. It keeps the model's
    weights alive. Memory is freed with the last reference, or by `close`.
    """

    def __init__(self, core: _core.Program, variants: OpenModel | None = None) -> None:
        """variants: what compiles the model for optional inputs, if it has some."""
        self._core = core
        self.inputs = tuple(PortType(p["name"], p["shape"], dtype(p["dtype"])) for p in core.inputs)
        ports = core.outputs
        counts = {p["length"] - 1 for p in ports}  # of outputs that are the lengths of others
        self._shown = [i for i in range(len(ports)) if i not in counts]
        self._halves = {p.name for p in self.inputs if p.dtype is FP16}
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
        self._states = {name: tensor_type(kept, shape) for name, (kept, shape) in core.types("state").items()}
        self._open = variants

    @property
    def optional_inputs(self) -> tuple[PortType, ...]:
        """Inputs that have a default in the model, where a call may give others by name."""
        return self._open.optional_inputs if self._open is not None else ()

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of every memory space of this context by name, and of scratch; weights are not among them."""
        return self._core.own_memory

    @property
    def surfaces(self) -> dict[str, _core.Surface]:
        """The ports whose memory a device shares, by name; a name that an input and an output share means the input."""
        inputs, outputs = self._core.surfaces
        return {**outputs, **inputs}

    @property
    def steps(self) -> list[_core.StepInfo]:
        """The kernel calls in order, with their profile if there is one."""
        return self._core.steps

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on arrays given in the order of `inputs`, by name, or as one mapping.

        Arrays have a port's exact dtype and shape, but that a port in fp16 takes arrays of float32 too; anything with
        the buffer protocol or DLPack will do. Returns an ndarray, or a dict by name where there are several outputs.
        Raises Error that names the input, its value and the need. An output whose extent depends on the data is
        returned with its actual extent.
        """
        if self._open is not None and self._overrides(args, kwargs):
            return self._variants()(*args, **kwargs)
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
            return as_kept(f"input '{name}'", value, FP16) if is_wide else value

        if isinstance(given, Mapping):
            return {name: kept(name, value) for name, value in given.items()}
        return [kept(port.name, value) for port, value in zip(self.inputs, given, strict=False)]

    def bind(self, /, **buffers: Any) -> _core.Bound:
        """Binds C-contiguous buffers to ports by name: every input, and any outputs (the others are allocated).

        A name that an input and an output share means the input. A port that a device shares may be left out: then
        `inputs` or `outputs` of the result has a view of the surface itself, which all such calls share.
        Given buffers are copied from or to it. Calling the result runs the model on them: no allocation, no copy. Its
        `outputs` are the output arrays by name. An output whose extent depends on the data has the largest possible
        one. Its port's `length` ("y.length") names the output with the valid extent; elements after that are undefined.
        Raises Error for a buffer that does not fit its port, a read-only output, or an output that overlaps another
        buffer.
        """
        if self._open is not None and self._overrides((), buffers):
            return self._variants().bind(**buffers)
        try:
            return self._core.bind(buffers)
        except MemoryError as error:
            raise Error(f"[bind] outputs: {self._out_of_memory(error)}") from None

    def close(self) -> None:
        """Frees the memory now: waiting calls are cancelled, a running one ends first, bound calls keep their memory.
        Any later use of the context raises Error."""
        self._end_worker()
        self._core = cast(_core.Program, _Closed())

    def _variants(self) -> OpenModel:
        names = ", ".join(port.name for port in self.optional_inputs)
        raise UnsupportedError(f"[context] got an optional input ({names}), need a call of the model itself")

    def _out_of_memory(self, error: MemoryError) -> str:
        sizes = ", ".join(f"{p['name']} {p['dtype']}{list(p['shape'])}" for p in self._core.outputs)
        return f"cannot get memory for {sizes} from the system: {error}"

    def _overrides(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
        """True if a call gives an optional input."""
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

    def reset_state(self) -> None:
        """Puts the initial contents of all states back. Raises Error after `drop_initial_states`."""
        self._core.reset_state()

    def read_state(self, name: str) -> Array:
        """A copy of the state of that name."""
        return self._core.read_state(name)

    def write_state(self, name: str, value: Any) -> None:
        """Replaces the contents of the state of that name; a state that is kept in fp16 may be given in fp32 too."""
        kept = self._states[name].dtype if name in self._states else None
        self._core.write_state(name, as_kept(f"state '{name}'", value, kept))

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
        """Replaces all states, except those in `keep`, by a file of `save_states`: all or, after an Error, none.

        Raises Error for a file that is damaged, and for one of other states: other names, shapes or dtypes.
        """
        where, kept = f"[load_states] {os.fspath(path)}", {*keep}
        states = {name: array for name, array in read_states(path).items() if name not in kept}
        if other := sorted((self._states.keys() - kept) ^ states.keys()):
            raise Error(f"{where}: got other states ({', '.join(other[:4])}), need those of this model")
        for name, array in states.items():
            need = self._states[name]
            states[name] = array = as_kept(f"state '{name}'", array, need.dtype)
            if array.dtype != need.dtype.numpy or array.shape != need.shape:
                got = tensor_type(array.dtype, array.shape)
                raise Error(f"{where}: state '{name}': got {got}, need {need}")
        for name, array in states.items():
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

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names that `read_state` and `write_state` take; params that the program writes are among them."""
        return tuple(self._states)

    def __reduce__(self) -> Any:
        raise Error("[pickle] got a context, which has memory of this process, need a new one: net.context()")

    def __repr__(self) -> str:
        ports = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<hexane.{type(self).__name__} ({ports[0]}) -> ({ports[1]})>"


class _Closed:
    """In the place of a context's program."""

    def __getattr__(self, name: str) -> Any:
        raise Error("[context] got a context that was closed, need a new one: net.context()")


def _refused(bound: _core.Bound) -> Any:
    raise Error("[pickle] got a bound call, which holds buffers of this process, need a new one: net.bind(..)")


copyreg.pickle(_core.Bound, _refused)  # what copy and pickle ask


def as_kept(where: str, value: Any, kept: DType | None) -> Array:
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
    """The error for a call with this many arrays."""
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
    """The given arrays, in port order or by name. Raises InputError for a wrong number or unknown names."""
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
