"""A model with computed shapes, in parts: each is compiled for the results of the parts before it."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from threading import Lock
from typing import Any

import numpy as np

from hexane.dtypes import FP16, DType, dtype
from hexane.errors import UnsupportedError
from hexane.graph import Array
from hexane.runtime.arguments import as_kept
from hexane.runtime.futures import Submits
from hexane.runtime.model import Model, PortType, arguments
from hexane.runtime.open_model import OpenModel
from hexane.sources import Function
from hexane.sources.module import Stages


class StagedModel(Submits):
    """Like OpenModel, for a model with computed shapes. An example is a speech synthesiser: its predicted durations
    decide the length of its output.

    A call runs the first part, then the second part compiled for the shapes of the first part's results. Compiled
    variants are kept up to the limit of `hx.Memory(variants=)`. Methods of Model that need one program raise
    UnsupportedError.
    """

    def __init__(
        self,
        inputs: tuple[PortType, ...],
        outputs: tuple[PortType, ...],
        stages: Stages,
        build: Callable[[Function, Mapping[str, Array] | None], "Model | OpenModel | StagedModel"],
        threads: int,
        optional: tuple[PortType, ...] = (),
        *,
        halves: bool = False,
    ) -> None:
        """build: compiles a part, from the inputs of a call, or None before the first call. optional: inputs with
        defaults. halves: ports of floats are in fp16; the parts compute with their own types."""
        self._widened = {p.name: p.dtype for p in (*inputs, *optional) if halves and _is_wide(p.dtype)}
        self._halves = halves
        if halves:
            inputs, outputs, optional = (tuple(map(_halved, ports)) for ports in (inputs, outputs, optional))
        self.inputs, self.outputs = inputs, outputs
        self.output_names = tuple(port.name for port in outputs)
        self.optional_inputs = optional
        self.value_inputs: frozenset[str] = frozenset()
        self.threads = threads
        self._stages, self._build = stages, build
        self._first = build(stages.first, None)
        self._rest: Model | OpenModel | StagedModel | None = None
        self._lock = Lock()  # guards the compilation of the second part

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Like Model's call. Raises Error if a part cannot be compiled for the shapes of this call."""
        given = arguments(self.inputs, args, kwargs, self.optional_inputs)
        if not isinstance(given, Mapping):
            given = {port.name: array for port, array in zip(self.inputs, given, strict=True)}
        arrays = {name: self._widen(name, array) for name, array in given.items()}
        found = _run(self._first, arrays)
        cut = {name: found[name] for name in self._stages.cut}
        results = {name: found[name] for name in self._stages.first_outputs}
        if len(results) < len(self.outputs):
            results |= _run(self._second({**arrays, **cut}), {**arrays, **cut})
        ordered = {name: self._narrow(results[name]) for name in self.output_names}
        return ordered[self.output_names[0]] if len(ordered) == 1 else ordered

    def _widen(self, name: str, value: Any) -> Array:
        kind = self._widened.get(name)
        array = as_kept(f"input '{name}'", value, None if kind is None else FP16)
        return array if kind is None or array.dtype != np.float16 else array.astype(kind.numpy)

    def _narrow(self, array: Array) -> Array:
        if not self._halves or not _is_wide(dtype(array.dtype)):
            return array
        with np.errstate(over="ignore"):
            return array.astype(np.float16)

    def _second(self, arrays: Mapping[str, Array]) -> "Model | OpenModel | StagedModel":
        with self._lock:
            if self._rest is None:
                part = self._stages.rest({name: arrays[name] for name in self._stages.cut})
                self._rest = self._build(part, arrays)
            return self._rest

    @property
    def device(self) -> str:
        """Where the last compiled part runs; see `Model.device`."""
        return (self._first if self._rest is None else self._rest).device

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of the programs compiled so far, of both parts."""
        total = dict(self._first.memory)
        for name, size in (self._rest.memory if self._rest is not None else {}).items():
            total[name] = total.get(name, 0) + size
        return total

    def reset_state(self) -> None:
        """Restores the initial contents of the states of both parts, such as streams of random ops."""
        for part in (self._first, self._rest):
            if part is not None:
                part.reset_state()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise UnsupportedError(
            f"[{name}] got a model that computes its shapes, need one of shapes that follow from its inputs: it is"
            " several programs, and only calls, submit and run_async take it as a whole"
        )

    def __reduce__(self) -> Any:
        raise UnsupportedError("[pickle] got a model that computes its shapes, need the model's file: compile it again")

    def __repr__(self) -> str:
        return (
            f"<hexane.StagedModel ({', '.join(map(str, self.inputs))}), second part for {', '.join(self._stages.cut)}>"
        )


def _is_wide(kind: DType) -> bool:
    return kind.kind == "float" and kind is not FP16


def _halved(port: PortType) -> PortType:
    return replace(port, dtype=FP16) if _is_wide(port.dtype) else port


def _run(part: "Model | OpenModel | StagedModel", arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Runs a part on the arrays that it reads, and returns its outputs by name."""
    ports = (*part.inputs, *part.optional_inputs)
    result = part({port.name: arrays[port.name] for port in ports if port.name in arrays})
    names = part.output_names if isinstance(part, (OpenModel, StagedModel)) else [port.name for port in part.outputs]
    return result if isinstance(result, dict) else {names[0]: result}
