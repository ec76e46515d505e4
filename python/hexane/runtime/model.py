"""A compiled model, to be called, bound to buffers, or saved."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from hexane import _core
from hexane.dtypes import dtype
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.options import Options
from hexane.program import Program
from hexane.runtime.arguments import PortType, arguments, as_kept
from hexane.runtime.context import Context
from hexane.runtime.debug import Debug, debug
from hexane.stages.stream.traffic import Traffic
from hexane.system.cpu import cpu_instructions

if TYPE_CHECKING:
    from hexane.runtime.open_model import OpenModel

__all__ = ["Model", "PortType", "arguments", "no_params"]


def no_params(names: Iterable[str]) -> str:
    """Returns the error of `update` for a model without params."""
    return (
        f"[update] got the name {', '.join(map(repr, names))}, need one of none: the model has no params; weights of an"
        " ONNX model are constants. hx.train.with_params turns them into params; hx.param declares a new param"
    )


class Model(Context):
    """A compiled program with fixed shapes.

    Calls from several threads run at the same time, up to the option `contexts`. Bound calls, and calls of a model with
    states or on an engine, run one after the other. The model itself is a context, with states and memory; `context`
    makes further ones.
    """

    def __init__(
        self,
        core: _core.Program,
        program: Program | None = None,
        why: str = "",
        engine: _core.Device | None = None,
        moved: Traffic | None = None,
    ) -> None:
        """engine: the device that runs the model's programs; why: the reason why a chip's program runs on no engine.
        moved: bytes that a call reads from and writes to slow memory."""
        super().__init__(core)
        self._params = {name: dtype(kept) for name, (kept, _) in core.types("weights").items()}
        self.program = program
        self._why, self._engine, self._moved = why, engine, moved

    def context(self) -> Context:
        """Returns a further caller: it has its own states, arena, scratch and ports, and shares the weights.

        Contexts may run at the same time, and give the same bits as the model. States begin with their initial
        contents. `update` acts on the model and all its contexts: it waits for running calls. Programs of a device are
        shared, and their input and output memory is not. Raises Error after `drop_initial_states`.
        """
        return Context(self._core.context(), variants=self._open)

    def _variants(self) -> OpenModel:
        assert self._open is not None
        return self._open

    def with_optional(self, variants: OpenModel) -> Model:
        """Returns this model. Calls with an optional input go to `variants`, which compiles for them."""
        self._open = variants
        return self

    @property
    def target(self) -> str:
        """The target: "host", or the name of a chip."""
        return self._core.arithmetics[0] if self._core.arithmetics else "host"

    @property
    def target_label(self) -> str:
        """The target as the user wrote it: "A14 (h13)". For a loaded plan: the target's name."""
        return self.target if self.program is None else self.program.target.label

    @property
    def device(self) -> str:
        """Where the model runs: "ane", or "cpu" with the instruction set. For a chip's program on the CPU also the
        reason."""
        cpu = f"cpu ({cpu_instructions()})"
        if self._engine:
            count = sum(step["kernel"] == "program" for step in self.steps)
            programs = f"{count} program{'s' if count != 1 else ''}"
            return f"ane ({self._engine.name}): {programs} of {self.target_label}, the rest on {cpu}"
        if self.target == "host":
            return cpu
        cpu = f"cpu ({cpu_instructions()}{', ' if self._why else ''}{self._why})"
        how = (
            "its program in the engine's arithmetic, as far as it is known"
            if self.in_engine_arithmetic
            else "its program in ieee arithmetic"
        )
        return f"{cpu}, in the place of {self.target_label}: {how}"

    @property
    def in_engine_arithmetic(self) -> bool:
        """True if a chip's program, or a part of it, runs on the CPU with the results of the engine's arithmetic."""
        return self._engine is None and any(name.endswith(" engine") for name in self._core.arithmetics)

    @property
    def is_on_engine(self) -> bool:
        """True if some of the model's programs run on a Neural Engine."""
        return self._engine is not None

    @property
    def compiles_left(self) -> int | None:
        """How many programs this process may still compile for the model's engine. Another process compiles all further
        programs. None without an engine or a limit."""
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
        """Bytes of each memory space by name, and of scratch. With slow memory also `slow_read` and `slow_written`:
        bytes read and written per call. With stripes of columns also `repeated`: multiply-accumulates computed more
        than once. A loaded model has none of these three."""
        moved = {} if self._moved is None else {"slow_read": self._moved.read, "slow_written": self._moved.written}
        repeats = 0 if self.program is None else self.program.repeated
        repeated = {"repeated": repeats} if repeats else {}
        return {**self._core.memory, "scratch": self._core.scratch_bytes, **moved, **repeated}

    @property
    def unshared_bytes(self) -> int:
        """Approximate bytes that deleting this model would free: weights shared with other variants of an open model do
        not count."""
        return self._core.unshared_bytes

    def update(self, /, **arrays: Any) -> None:
        """Replaces params by name, including params that the program writes. An fp16 param takes fp32 values too.

        Raises Error for an unknown name, another shape or dtype, and for values beyond the range of fp16.
        """
        if arrays and not self._params and not self._states:
            raise Error(no_params(arrays))
        for name, value in arrays.items():
            if name in self._states:
                self.write_state(name, value)
            else:
                self._core.update(name, as_kept(f"weights '{name}'", value, self._params.get(name)))

    def drop_initial_states(self) -> None:
        """Frees the initial contents of states. For params that a training step writes, the initial contents are as
        large as the params.

        Afterwards `reset_state` and `save` with states="initial" raise Error, and the graph (`debug`, `program`) is not
        available. The memory is freed only if nothing else holds the arrays, such as the graph or its params.
        """
        self.program = None
        self._core.drop_first_contents()

    def debug(self, /, *args: Any, **kwargs: Any) -> Debug:
        """Runs the model step by step on the inputs of a call, and returns the range of every layer.

        The run stops at the first number that is infinite or NaN although all its operands are finite. `stop` has the
        element and the reason, and for convolutions and matrix products the largest products and the accumulator's
        path. States are restored afterwards. print() shows everything; `to_json()` is for programs. Raises Error as a
        call does, and for a model without its graph (loaded) or whose steps compute some rows at a time.
        """
        given = arguments(self.inputs, args, kwargs)
        names = [port.name for port in self.inputs]
        feeds = given if isinstance(given, Mapping) else dict(zip(names, given, strict=False))
        return debug(self._core, self.program, feeds, self.device)

    @property
    def param_names(self) -> tuple[str, ...]:
        """The names for `update`, without params that the program writes."""
        return tuple(self._params)

    def save(self, path: str | os.PathLike[str], *, states: str = "initial") -> None:
        """Writes the plan to a file, with the current params and the initial states.

        A model loaded from the file starts like a new one. With states="now" the file has the current states: a loaded
        model continues from them, and its `reset_state` restores them.

        A failure, or the end of the process, keeps the old file: PATH.part is written first. A symbolic link is
        followed. Raises Error for a path of anything but a regular file, for a model with programs on an engine, and
        for initial states after `drop_initial_states`.
        """
        self._core.save(os.fsencode(path), self._saves("save", states))

    def plan_bytes(self, states: str = "initial") -> bytes:
        """Returns the contents of the file that `save` writes. Raises Error as `save` does."""
        return self._core.plan_bytes(self._saves("save", states))

    def _saves(self, where: str, states: str) -> bool:
        """True if the file has the current states. Raises Error for a model that cannot be saved."""
        if states not in ("initial", "now"):
            raise Error(f"[{where}] states: got {states!r}, need 'initial' or 'now'")
        if self._engine:
            need = "need one compiled with device='cpu'"
            raise Error(f"[{where}] got a model with programs on {self._engine.name}, {need}")
        if any(step["kernel"] == "program" for step in self.steps):
            raise Error(f"[{where}] got a model with programs that are functions of this process, need one without")
        return states == "now"

    def __reduce__(self) -> Any:
        """Stores the plan with the current states. The copy has no graph."""
        if self._open is not None:
            raise Error("[pickle] got a model with optional inputs, need one whose inputs are all given")
        self._saves("pickle", "now")
        states = "now" if self.state_names else "initial"
        return unpickled, (self.plan_bytes(states), self.threads, self._why)

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


def unpickled(plan: bytes, threads: int, why: str) -> Model:
    """Returns a model from the bytes that pickle stored."""
    core = _core.Program(plan, threads)
    core.limit_callers(Options().num_contexts)
    return Model(core, why=why)
