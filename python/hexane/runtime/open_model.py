"""A model with free dims, or inputs whose values decide shapes: compiled for each set of them on first use."""

from collections.abc import Callable, Mapping
from threading import Lock
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array
from hexane.runtime.model import Model, PortType, arguments

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, Array]


class OpenModel:
    """Like Model, but what it runs is decided by the call: by the shapes of inputs with free dims, and by the values of
    specialisation inputs. Each combination is compiled once and kept; `bind` fixes one. `optional_inputs` have a default in
    the model, and are given by name."""

    def __init__(
        self,
        inputs: tuple[PortType, ...],
        outputs: tuple[str, ...],
        values: frozenset[str],
        specialise: Callable[[Shapes, Values], Model],
        optional: tuple[PortType, ...] = (),
    ) -> None:
        self.inputs = inputs
        self.optional_inputs = optional
        self.output_names = outputs
        self.value_inputs = values & {p.name for p in inputs}
        self._values = values
        self._specialise = specialise
        self._models: dict[object, Model] = {}
        self._lock = Lock()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """As Model's. Raises Error where the model cannot be compiled for these shapes and values."""
        arrays = self._arrays(arguments(self.inputs, args, kwargs, self.optional_inputs))
        model = self.specialised(arrays)
        return model({p.name: arrays[p.name] for p in model.inputs})

    def bind(self, /, **buffers: Any) -> _core.Bound:
        """As Model's; the values of specialisation inputs are read now, and not again."""
        names = {p.name for p in (*self.inputs, *self.optional_inputs)}
        model = self.specialised(self._arrays({k: v for k, v in buffers.items() if k in names}))
        fixed = {p.name for p in model.inputs}
        return model.bind(**{k: v for k, v in buffers.items() if k in fixed or k not in names})

    def specialised(self, arrays: Mapping[str, Array]) -> Model:
        """The model for these inputs."""
        shapes = {name: array.shape for name, array in arrays.items()}
        values = {name: arrays[name] for name in self._values if name in arrays}
        key = (tuple(shapes.items()), tuple((k, v.dtype.str, v.tobytes()) for k, v in sorted(values.items())))
        with self._lock:  # calls of several threads wait for one compilation
            if key not in self._models:
                self._models[key] = self._specialise(shapes, values)
            return self._models[key]

    def save(self, path: object) -> None:
        raise Error(
            f"[save] got a model whose shapes are open, need `input_shapes` when it is compiled; nothing went to {path}"
        )

    def _arrays(self, given: Any) -> dict[str, Array]:
        names = [p.name for p in self.inputs]
        if not isinstance(given, Mapping):
            given = dict(zip(names, given, strict=False))
        if given.keys() - {p.name for p in self.optional_inputs} != set(names):
            raise Error(f"[call] got the inputs {', '.join(map(str, given)) or 'none'}, need {', '.join(names)}")
        return {k: v if isinstance(v, np.ndarray) else np.asarray(v) for k, v in given.items()}

    def __repr__(self) -> str:
        return (
            f"<hexane.OpenModel ({', '.join(map(str, self.inputs))}), compiled for {len(self._models)} sets of shapes>"
        )
