"""A caller of a compiled model, with its own states, memory and buffers. Weights are shared with all callers."""

from __future__ import annotations

import copyreg
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hexane import _core
from hexane.dtypes import FP16, dtype
from hexane.errors import Error, UnsupportedError
from hexane.graph import Array, tensor_type
from hexane.runtime.arguments import PortType, arguments, as_kept
from hexane.runtime.call_trace import chrome_trace
from hexane.runtime.futures import Submits
from hexane.runtime.states import read_states, write_states

if TYPE_CHECKING:
    from hexane.runtime.open_model import OpenModel


class Context(Submits):
    """The state of one conversation or caller of a model. `Model.context` makes contexts, cheaply.

    Calls of one context run one after the other; several contexts may run at the same time. A context keeps the model's
    weights alive. Memory is freed with the last reference, or by `close`.
    """

    def __init__(self, core: _core.Program, variants: OpenModel | None = None) -> None:
        """variants: compiles the model for calls with optional inputs; None if it has none."""
        self._core = core
        self.inputs = tuple(PortType(p["name"], p["shape"], dtype(p["dtype"])) for p in core.inputs)
        ports = core.outputs
        counts = {p["length"] - 1 for p in ports}  # indices of outputs that hold another output's length
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
        """Inputs with a default in the model. A call may give them by name."""
        return self._open.optional_inputs if self._open is not None else ()

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of each memory space of this context by name, and of scratch. Weights are not included."""
        return self._core.own_memory

    @property
    def surfaces(self) -> dict[str, _core.Surface]:
        """The ports in memory shared with a device, by name. A name of both an input and an output means the input."""
        inputs, outputs = self._core.surfaces
        return {**outputs, **inputs}

    @property
    def steps(self) -> list[_core.StepInfo]:
        """The kernel calls in order, with their profile if profiling was on."""
        return self._core.steps

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model on arrays given in the order of `inputs`, by name, or as one mapping.

        Arrays need a port's exact dtype and shape, except that an fp16 port takes float32 arrays too. Any object with
        the buffer protocol or DLPack works. Returns an ndarray, or a dict by name if there are several outputs. An
        output whose extent depends on the data has its actual extent. Raises Error that names the input, its value and
        the need.
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
        """Rounds float32 arrays for fp16 ports to fp16."""

        def kept(name: str, value: Any) -> Any:
            is_wide = name in self._halves and isinstance(value, np.ndarray) and value.dtype == np.float32
            return as_kept(f"input '{name}'", value, FP16) if is_wide else value

        if isinstance(given, Mapping):
            return {name: kept(name, value) for name, value in given.items()}
        return [kept(port.name, value) for port, value in zip(self.inputs, given, strict=False)]

    def bind(self, /, **buffers: Any) -> _core.Bound:
        """Binds C-contiguous buffers to ports by name: every input, and any outputs (the others are allocated).

        A name of both an input and an output means the input. A port in memory shared with a device may be omitted:
        then `inputs` or `outputs` of the result has a view of that memory, common to all such calls. A buffer given for
        such a port is copied from or to the shared memory. Calling the result runs the model on the buffers, without
        allocation or other copies. The result's `outputs` are the output arrays by name. An output whose extent depends
        on the data has the largest possible extent. The port's attribute `length` ("y.length") names the output with
        the valid extent; elements after that extent are undefined. Raises Error for a buffer that does not fit its
        port, a read-only output, or an output that overlaps another buffer.
        """
        if self._open is not None and self._overrides((), buffers):
            return self._variants().bind(**buffers)
        try:
            return self._core.bind(buffers)
        except MemoryError as error:
            raise Error(f"[bind] outputs: {self._out_of_memory(error)}") from None

    def close(self) -> None:
        """Frees the memory now. Waiting calls are cancelled, a running one ends first, and bound calls keep their
        memory. Any use of a closed context raises Error."""
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
        """Returns the visible outputs, each cut to its actual extent."""
        result = list(outputs)
        for i, (axis, length) in self._trims.items():
            count, capacity = int(outputs[length]), outputs[i].shape[axis]
            if not 0 <= count <= capacity:
                raise Error(f"[call] output {i}: got the length {count}, need 0..{capacity}")
            # The result is a copy, so that it does not keep the memory of the largest extent.
            result[i] = outputs[i][(*[slice(None)] * axis, slice(count))].copy()
        return [result[i] for i in self._shown]

    def reset_state(self) -> None:
        """Restores the initial contents of all states. Raises Error after `drop_initial_states`."""
        self._core.reset_state()

    def read_state(self, name: str) -> Array:
        """Returns a copy of a state."""
        return self._core.read_state(name)

    def write_state(self, name: str, value: Any) -> None:
        """Replaces the contents of a state. An fp16 state takes fp32 values too."""
        kept = self._states[name].dtype if name in self._states else None
        self._core.write_state(name, as_kept(f"state '{name}'", value, kept))

    def save_states(self, path: str | os.PathLike[str]) -> None:
        """Writes the current states, including params that the program writes, to a safetensors file.

        Unlike `save` it works for a model with programs on an engine, and the file fits the same graph compiled for any
        chip or number of threads. A failure, or the end of the process, keeps the old file. Raises Error for a model
        without states.
        """
        if not self._states:
            raise Error("[save_states] got a model without states, need one: hx.state, or params that a step writes")
        write_states(path, {name: self.read_state(name) for name in self._states})

    def load_states(self, path: str | os.PathLike[str], *, keep: Iterable[str] = ()) -> None:
        """Replaces all states, except the states in `keep`, by a file's states: all of them, or none if it raises
        Error.

        Raises Error for a damaged file, and for one with other names, shapes or dtypes of states.
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
        """Starts counting calls and nanoseconds of every step from zero, or stops; `steps` has the counts.

        Raises Error for anything but True or False: inputs belong to the calls after `profile`.
        """
        if not isinstance(on, bool):
            got = type(on).__name__
            raise Error(
                f"[profile] on: got {got}, need True or False, then calls of the model; `steps` has what they took"
            )
        self._core.profile(on)

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the times of the steps in the last call since `profile()` as a Chrome trace (chrome://tracing,
        Perfetto), with lanes for this CPU and the engine, and one for sums over ranks if there are any.

        Raises Error if no call was profiled.
        """
        if not self._core.timeline:
            raise Error("[save_trace] got no call since profile(), need one")
        _core.save_file(os.fspath(path), chrome_trace(self._core, repr(self)).encode())

    @property
    def state_names(self) -> tuple[str, ...]:
        """The names for `read_state` and `write_state`, including params that the program writes."""
        return tuple(self._states)

    def __reduce__(self) -> Any:
        raise Error("[pickle] got a context, which has memory of this process, need a new one: net.context()")

    def __repr__(self) -> str:
        ports = ", ".join(map(str, self.inputs)), ", ".join(map(str, self.outputs))
        return f"<hexane.{type(self).__name__} ({ports[0]}) -> ({ports[1]})>"


class _Closed:
    """Replaces the program of a closed context."""

    def __getattr__(self, name: str) -> Any:
        raise Error("[context] got a context that was closed, need a new one: net.context()")


def _refused(bound: _core.Bound) -> Any:
    raise Error("[pickle] got a bound call, which holds buffers of this process, need a new one: net.bind(..)")


copyreg.pickle(_core.Bound, _refused)  # copy and pickle use this function
