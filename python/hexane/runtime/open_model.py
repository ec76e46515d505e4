"""A model with free dims or inputs whose values decide shapes."""

import os
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from threading import Lock
from time import perf_counter
from typing import Any, cast
from warnings import warn
from weakref import WeakSet

import numpy as np

from hexane import _core
from hexane.dtypes import dtype
from hexane.errors import Error, InputError, UnsupportedError
from hexane.graph import Array
from hexane.graph.printer import size_text
from hexane.importers.likely_shapes import likely_shapes, shape_option
from hexane.importers.signature import ComputedShapes, Input
from hexane.memory import Memory
from hexane.options import Options
from hexane.runtime import several_plans
from hexane.runtime.context import Context
from hexane.runtime.debug import Debug
from hexane.runtime.engine import why_on_cpu
from hexane.runtime.futures import Submits
from hexane.runtime.model import Model, PortType, arguments, no_params
from hexane.runtime.switch_interval import short_switch_interval
from hexane.system.forks import at_fork
from hexane.system.log import LOG

Shapes = Mapping[str, tuple[int, ...]]
Values = Mapping[str, Array]
Key = tuple[tuple[tuple[str, tuple[int, ...]], ...], tuple[tuple[str, str, bytes], ...]]  # Shapes and values of a call.
_LARGE = 1 << 23  # From this many bytes of weights on, compiling takes so long that freeing memory (1 ms) costs little.


class OpenModel(Submits):
    """Like Model, but specialised by each call: to the shapes of inputs with free dims, and to the values of inputs
    that decide shapes. Each combination of shapes and values is compiled once and cached; `bind` fixes one.
    `optional_inputs` have a default in the model, and are given by name.

    A call waits for a compilation that it needs, and other calls continue. The variants share their weights. If the
    variants need more than `memory.variants` bytes in addition to the weights, the least recently used ones are
    dropped, and compiled again when needed. The variants share their states too, such as a TFLite variable or the
    stream of a random op, unless the shape of a state depends on the inputs.
    """

    def __init__(
        self,
        inputs: tuple[PortType, ...],
        outputs: tuple[str, ...],
        values: frozenset[str],
        specialise: Callable[..., Model],  # (shapes, values) -> model; with whole=True the model keeps its graph
        memory: Memory,
        optional: tuple[PortType, ...] = (),
        results: tuple[Input, ...] = (),
        in_parts: Callable[[ComputedShapes, Mapping[str, Array]], Any] | None = None,
    ) -> None:
        """results: the outputs as declared in the model's file. in_parts: compiles the model in parts for a call."""
        self.inputs = inputs
        self.optional_inputs = optional
        self.output_names = outputs
        self.value_inputs = values & {p.name for p in inputs}
        self._values = values
        self._specialise = specialise
        self._results = results
        self._cache_bytes, self._call_bytes = memory.variants_bytes, memory.call_bytes
        self._profiling = False
        self._in_parts = in_parts
        self._parts: Any = None  # Set by the first call that finds computed shapes.
        self._models: OrderedDict[Key, Model | Future[Model]] = OrderedDict()  # Least recently used models first.
        self._states_of: Model | None = None  # Other variants share the states of this one.
        self._lock = Lock()  # The lock guards `_models`, and is not held during a compilation.
        _all.add(self)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Runs the model, as `Model` does. Raises Error if it cannot be compiled for these shapes and values."""
        arrays = self._arrays(arguments(self.inputs, args, kwargs, self.optional_inputs))
        if self._parts is not None:
            return self._parts(arrays)
        try:
            model = self.specialised(arrays)
        except ComputedShapes as error:
            if self._in_parts is None:
                raise
            parts = self._in_parts(error, arrays)
            with self._lock:
                self._parts = self._parts or parts
            return self._parts(arrays)
        return model({p.name: arrays[p.name] for p in model.inputs})

    @property
    def device(self) -> str:
        """Where the most recently used variant runs; see `Model.device`."""
        if self._parts is not None:
            return str(self._parts.device)
        with self._lock:
            latest = next((m for m in reversed(self._models.values()) if isinstance(m, Model)), None)
        return "none yet: the first call compiles the model for its shapes" if latest is None else latest.device

    def debug(self, /, *args: Any, **kwargs: Any) -> Debug:
        """Like `Model.debug`, for these inputs. The model is compiled again: cached variants have no graph."""
        arrays = self._arrays(arguments(self.inputs, args, kwargs, self.optional_inputs))
        shapes = {name: array.shape for name, array in arrays.items()}
        model = self._specialise(shapes, {name: arrays[name] for name in self._values if name in arrays}, whole=True)
        return model.debug({p.name: arrays[p.name] for p in model.inputs})

    def bind(self, /, **buffers: Any) -> _core.Bound:
        """Like `Model.bind`. The values of inputs that decide shapes are read now, and not at each call."""
        names = {p.name for p in (*self.inputs, *self.optional_inputs)}
        model = self.specialised(self._arrays({k: v for k, v in buffers.items() if k in names}))
        fixed = {p.name for p in model.inputs}
        return model.bind(**{k: v for k, v in buffers.items() if k in fixed or k not in names})

    def context(self) -> Context:
        """Raises UnsupportedError: an open model has a model per set of shapes, and only these models have contexts."""
        raise UnsupportedError(
            "[context] got an open model, need one of fixed shapes: input_shapes when it is compiled, or"
            " specialised(arrays).context()"
        )

    @property
    def outputs(self) -> tuple[PortType, ...]:
        """The outputs as the model's file declares them. Dims that depend on the inputs are names or None, as in
        `inputs`. `specialised(arrays).outputs` are a call's outputs.

        Raises AttributeError if the file does not declare the outputs' dims.
        """
        if any(result.dims is not None for result in self._results):
            return tuple(PortType(r.name, ("...",) if r.dims is None else r.dims, r.dtype) for r in self._results)
        raise AttributeError(
            "outputs: an open model has none before its shapes are known; output_names has their names, and"
            " specialised(arrays).outputs their types, where arrays has the inputs by name"
        )

    def prepare(self, shapes: Mapping[str, Sequence[int]], values: Mapping[str, Any] | None = None) -> Model:
        """Returns the model for these input shapes, compiled now if needed, so that the first call need not wait.
        values: of `value_inputs`. Raises Error if the model cannot be compiled for these inputs."""
        arrays = {name: np.asarray(value) for name, value in (values or {}).items()}
        kinds = {port.name: port.dtype for port in (*self.inputs, *self.optional_inputs)}
        for name, shape in shapes.items():
            if name not in kinds:
                raise InputError(f"[prepare] got the input {name!r}, need some of {', '.join(kinds)}")
            if name not in arrays:
                arrays[name] = np.broadcast_to(np.zeros((), kinds[name].numpy), tuple(shape))
        missing = [port.name for port in self.inputs if port.name not in arrays]
        for port in self.inputs:
            if port.name in missing and all(isinstance(d, int) for d in port.shape):
                arrays[port.name] = np.broadcast_to(np.zeros((), port.dtype.numpy), cast(Any, port.shape))
        return self.specialised(self._arrays(arrays))

    @property
    def memory(self) -> dict[str, int]:
        """Bytes of all cached variants: the shared weights, and the sums of their arenas, states and scratch."""
        total: dict[str, int] = {} if self._parts is None else dict(self._parts.memory)
        for model in self._compiled_models():
            for name, size in model.memory.items():
                total[name] = max(total.get(name, 0), size) if name == "weights" else total.get(name, 0) + size
        return total

    def profile(self, on: bool = True) -> None:
        """Like `Model.profile`, for all variants, also later ones; `specialised(arrays).steps` has the times."""
        for model in self._compiled_models():
            model.profile(on)
        self._profiling = on

    def _compiled_models(self) -> list[Model]:
        with self._lock:
            return [model for model in self._models.values() if isinstance(model, Model)]

    def update(self, /, **arrays: Any) -> None:
        """Raises Error for any array: the weights of an open model are constants."""
        if arrays:
            raise Error(no_params(arrays))

    def specialised(self, arrays: Mapping[str, Array]) -> Model:
        """Returns the model for these inputs, compiled if needed."""
        shapes = {name: array.shape for name, array in arrays.items()}
        if self._call_bytes and (given := sum(array.nbytes for array in arrays.values())) > self._call_bytes:
            raise InputError(
                f"[call] got {size_text(given)} of inputs, need at most the {size_text(self._call_bytes)} of"
                " hx.Memory(call=)"
            )
        # Copies: other threads may change the arrays meanwhile.
        values = {name: arrays[name].copy() for name in self._values if name in arrays}
        key: Key = (
            tuple(sorted(shapes.items())),
            tuple((k, v.dtype.str, v.tobytes()) for k, v in sorted(values.items())),
        )
        with self._lock:
            model = self._models.get(key)
            if model is None:
                compiling: Future[Model] = Future()
                self._models[key] = compiling
            else:
                self._models.move_to_end(key)
        if model is not None:
            return model if isinstance(model, Model) else model.result()
        return self._compiled(key, compiling, shapes, values)

    def _compiled(self, key: Key, compiling: Future[Model], shapes: Shapes, values: Values) -> Model:
        try:
            with short_switch_interval():
                begin = perf_counter()
                model = self._specialise(shapes, values)
                self._share_states(model)
                LOG.info("compiled for %s in %.0f ms", shapes, (perf_counter() - begin) * 1e3)
                if self._profiling:
                    model.profile()
                if model.memory.get("weights", 0) >= _LARGE:
                    _core.give_back_free_memory()  # the graph and the plan, each with a copy of the weights
        except BaseException as error:
            with self._lock:
                del self._models[key]
            compiling.set_exception(
                error if isinstance(error, Exception) else Error(f"[call] the compilation was ended by {error!r}")
            )
            raise
        with self._lock:
            self._models[key] = model
            self._evict()
        compiling.set_result(model)
        return model

    def _share_states(self, model: Model) -> None:
        """Gives a new variant the states of the first variant. Warns if the states' memory differs."""
        if not model.state_names:
            return
        with self._lock:
            first = self._states_of = self._states_of or model
        if first is model:
            return
        try:
            model._core.share_states(first._core)
        except Error as error:
            warn(f"[call] each set of shapes has states of its own: {error}", stacklevel=2)

    def reset_state(self) -> None:
        """Restores the initial contents of the states, of all variants."""
        if self._parts is not None:
            self._parts.reset_state()
        models = self._compiled_models()
        for model in models if self._states_of is None else [*models, self._states_of]:
            model.reset_state()

    def _evict(self) -> None:
        """Drops the least recently used models until the others fit the limit. Always keeps the most recent model."""
        sizes = [(k, m.unshared_bytes) for k, m in self._models.items() if isinstance(m, Model)]
        total = sum(size for _, size in sizes)
        for key, size in sizes[:-1]:
            if total <= self._cache_bytes:
                break
            total -= size
            del self._models[key]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the cached variants to one file, with equal weights stored once. `hx.load` returns a model for these
        sets of shapes; `prepare` adds further ones before saving. Raises Error if nothing is compiled."""
        about, rows = self._saved("save")
        several_plans.save(path, about, rows)

    def __reduce__(self) -> Any:
        """Stores the file of `save`, with the current states. Raises Error if nothing is compiled."""
        about, rows = self._saved("pickle", "now")
        return unpickled, (several_plans.to_bytes(about, rows),)

    def _saved(self, where: str, states: str = "initial") -> tuple[dict[str, Any], list[tuple[bytes, dict[str, Any]]]]:
        """Returns the entries of a file, and its plans. states: as `Model.plan_bytes` has them."""
        with self._lock:
            compiled = [(key, model) for key, model in self._models.items() if isinstance(model, Model)]
        if not compiled:
            raise Error(
                f"[{where}] got a model of open shapes with nothing compiled, need some: net.prepare(shapes) first,"
                " or `input_shapes` when it is compiled"
            )
        rows = []
        for (shapes, values), model in compiled:
            about = {
                "shapes": [[name, list(shape)] for name, shape in shapes],
                "values": [[name, kind, data.hex()] for name, kind, data in values],
            }
            rows.append((model.plan_bytes(states if model.state_names else "initial"), about))
        ports: dict[str, tuple[PortType | Input, ...]] = {
            "inputs": self.inputs,
            "optional": self.optional_inputs,
            "results": self._results,
        }
        about = {name: [_row(port) for port in several] for name, several in ports.items()}
        return {
            "kind": "shapes",
            **about,
            "outputs": list(self.output_names),
            "value_inputs": sorted(self._values),
        }, rows

    def _arrays(self, given: Any) -> dict[str, Array]:
        names = [p.name for p in self.inputs]
        if not isinstance(given, Mapping):
            given = dict(zip(names, given, strict=False))
        if given.keys() - {p.name for p in self.optional_inputs} != set(names):
            raise InputError(f"[call] got the inputs {', '.join(map(str, given)) or 'none'}, need {', '.join(names)}")
        return {k: v if isinstance(v, np.ndarray) else np.asarray(v) for k, v in given.items()}

    def __repr__(self) -> str:
        return (
            f"<hexane.OpenModel ({', '.join(map(str, self.inputs))}), compiled for {len(self._models)} sets of shapes>"
        )


def shape_options(ports: Sequence[PortType]) -> list[str]:
    """Returns command line options that fix the free dims of these inputs, with likely extents."""
    free = [port for port in ports if any(not isinstance(d, int) for d in port.shape)]
    likely = likely_shapes([(p.name, p.dtype.kind, None if "..." in p.shape else p.shape) for p in free])
    return [shape_option(name, shape) for name, shape in likely.items()]


def _row(port: PortType | Input) -> list[Any]:
    dims = port.shape if isinstance(port, PortType) else port.dims
    return [port.name, None if dims is None else list(dims), str(port.dtype)]


def from_file(reader: several_plans.Reader, threads: int, contexts: int) -> OpenModel:
    """Returns a model that `save` wrote, for the sets of shapes in the file. Raises Error for a damaged file."""
    pool, models = _core.MemoryPool(), OrderedDict[Key, Model | Future[Model]]()
    for row in reader.plans:
        shapes = reader.entry(row, "shapes", lambda rows: tuple((str(n), tuple(map(int, dims))) for n, dims in rows))
        values = reader.entry(
            row, "values", lambda rows: tuple((str(n), str(kind), bytes.fromhex(data)) for n, kind, data in rows)
        )
        core = reader.program(row, threads, pool)
        core.limit_callers(contexts)
        models[shapes, values] = Model(core, why=why_on_cpu())

    def ports(rows: Any) -> tuple[PortType, ...]:
        return tuple(PortType(str(name), tuple(dims), dtype(kind)) for name, dims, kind in rows)

    def results(rows: Any) -> tuple[Input, ...]:
        return tuple(Input(str(name), dtype(kind), None if dims is None else tuple(dims)) for name, dims, kind in rows)

    def specialise(shapes: Shapes, values: Values, whole: bool = False) -> Model:
        known = "; ".join(_shapes_text(dict(own)) for own, _ in models)
        raise UnsupportedError(
            f"[call] got {_shapes_text(shapes)}, need the shapes that the file was saved with: {known}. For"
            " others open the model itself, call net.prepare(shapes), and save it"
        )

    about = reader.about
    open_model = OpenModel(
        reader.entry(about, "inputs", ports),
        reader.entry(about, "outputs", lambda names: tuple(map(str, names))),
        reader.entry(about, "value_inputs", frozenset),
        specialise,
        Memory(variants="9999G"),  # no model is dropped, because it could not be compiled again
        reader.entry(about, "optional", ports),
        reader.entry(about, "results", results),
    )
    for key, model in models.items():
        assert isinstance(model, Model)
        open_model._share_states(model)
        open_model._models[tuple(sorted(key[0])), key[1]] = model  # files of older versions have any order
    return open_model


def unpickled(data: bytes) -> OpenModel:
    """Returns a model from the bytes that pickle stored."""
    options = Options()
    return from_file(several_plans.Reader(data, "[pickle]"), options.num_threads, options.num_contexts)


def _shapes_text(shapes: Shapes) -> str:
    return ", ".join(f"{name} {'x'.join(map(str, shape)) or 'of rank 0'}" for name, shape in shapes.items())


_all: "WeakSet[OpenModel]" = WeakSet()


def _after_fork() -> None:
    """Resets locks and running compilations in a forked child, which has none of their threads."""
    for model in list(_all):
        model._lock = Lock()
        for key in [k for k, m in model._models.items() if isinstance(m, Future)]:
            del model._models[key]


at_fork(after_in_child=_after_fork)
