"""Several functions of one model. Equal weights are stored once, and functions with the same set of states share it."""

import os
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from hexane import _core, build, sources
from hexane.errors import Error
from hexane.graph import Graph
from hexane.options import DEFAULTS, Options
from hexane.runtime import several_plans
from hexane.runtime.compile_graphs import build_with_shared_weights
from hexane.runtime.context import Context
from hexane.runtime.engine import why_on_cpu
from hexane.runtime.model import Model
from hexane.runtime.shared_weights import SharedWeights


class Functions(Mapping[str, Model]):
    """The functions of a model by name, as `compile_functions` returns them. functions: the names.

    Functions with the same set of states (names and types) share it: what `prefill` writes, `decode` reads. Calls of
    functions that share states run one after the other, even from several threads. weights: the constants that the
    functions share; None: equal constants are found by their bytes.
    """

    def __init__(self, options: Options = DEFAULTS, weights: SharedWeights | None = None) -> None:
        self._build = (
            build_with_shared_weights(options)
            if weights is None
            else build_with_shared_weights(options, weights.pool, packed_only=weights.packed_only)
        )
        self._weights = weights
        self._loaded = False
        self._models: dict[str, Model] = {}
        self._owners: dict[frozenset[str], Model] = {}
        self._adding = Lock()

    def add(self, name: str, graph: Graph) -> Model:
        """Compiles one more function. Raises Error for a name that is taken, for a graph that cannot be compiled, if
        the graph has some but not all states of another function, or states of other types, and for functions that were
        loaded from a file."""
        with self._adding:
            if name in self._models:
                raise Error(f"[functions] got the name {name!r} a second time, need names of their own")
            if self._loaded:
                raise Error(f"[functions] got {name!r} for functions of a file, need them from compile_functions")
            if self._weights is None:
                return self._keep(name, self._build(graph))
            model = self._keep(name, self._build(graph))
            self._weights.release()
            _core.give_back_free_memory()  # temporary arrays of the passes
            return model

    @classmethod
    def loaded(cls, models: Iterable[tuple[str, Model]]) -> "Functions":
        """Returns compiled functions as one object. Raises Error for states that do not match, as `add` does."""
        result = cls()
        for name, model in models:
            result._keep(name, model)
        result._loaded = True
        return result

    def _keep(self, name: str, model: Model) -> Model:
        self._share(name, model)
        self._models[name] = model
        return model

    def _share(self, name: str, model: Model) -> None:
        states = frozenset(model.state_names)
        owner = self._owners.get(states)
        if owner is None:
            if clash := next((n for other in self._owners for n in sorted(other & states)), None):
                raise Error(f"[functions] {name!r}: got the state {clash!r} but not all of its function, need all")
            if states:
                self._owners[states] = model
            return
        model._core.share_states(owner._core)

    def context(self) -> "FunctionsContext":
        """Returns a further caller of all functions, cheaply: with its own states, and the weights of all callers.

        Several contexts run at the same time. A context includes functions that are added later.
        """
        return FunctionsContext(self)

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(self._models)

    def function(self, name: str) -> Model:
        """Returns a function. Raises Error for an unknown name."""
        if name not in self._models:
            raise Error(f"[functions] got the function {name!r}, need one of {', '.join(self._models) or 'none'}")
        return self._models[name]

    def reset_state(self) -> None:
        """Restores the initial contents of all states."""
        for owner in self._owners.values():
            owner.reset_state()

    def save(self, path: str | os.PathLike[str], *, states: str = "initial") -> None:
        """Writes all functions to one file for `hx.load_functions`; equal weights are stored once. states: see
        `Model.save`. Raises Error as `Model.save` does."""
        rows = [(model.plan_bytes(states), {"name": name}) for name, model in self._models.items()]
        several_plans.save(path, {"kind": "functions"}, rows)

    def __reduce__(self) -> Any:
        rows = [(model.plan_bytes("now" if model.state_names else "initial"), {"name": name})
                for name, model in self._models.items()]  # fmt: skip
        return unpickled, (several_plans.to_bytes({"kind": "functions"}, rows),)

    def __getitem__(self, name: str) -> Model:
        if name not in self._models:
            raise KeyError(name)
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


class FunctionsContext(Mapping[str, Context]):
    """One conversation's or caller's part of `Functions`: the states that its functions share, and the memory of their
    calls.

    The context of a function is made on first use.
    """

    def __init__(self, functions: Functions) -> None:
        self._functions = functions
        self._contexts: dict[str, Context] = {}
        self._owners: dict[frozenset[str], Context] = {}
        self._making = Lock()
        self._closed = False

    def __getitem__(self, name: str) -> Context:
        with self._making:
            if self._closed:
                raise Error("[context] got a context that is closed, need an open one")
            if name not in self._contexts:
                context = self._functions[name].context()
                states = frozenset(context.state_names)
                owner = self._owners.setdefault(states, context) if states else context
                if owner is not context:
                    context._core.share_states(owner._core)
                self._contexts[name] = context
            return self._contexts[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._functions)

    def __len__(self) -> int:
        return len(self._functions)

    def reset_state(self) -> None:
        """Restores the initial contents of all states."""
        for owner in self._owners.values():
            owner.reset_state()

    def close(self) -> None:
        """Frees the memory now, as `Context.close` does."""
        with self._making:
            self._closed = True
            for one in self._contexts.values():
                one.close()


def from_file(reader: several_plans.Reader, threads: int, contexts: int) -> Functions:
    """Returns functions that `save` wrote. Raises Error for a damaged file."""
    pool = _core.MemoryPool()
    models = []
    for row in reader.plans:
        core = reader.program(row, threads, pool)
        core.limit_callers(contexts)
        models.append((reader.entry(row, "name", str), Model(core, why=why_on_cpu())))
    return Functions.loaded(models)


def unpickled(data: bytes) -> Functions:
    """Returns functions from the bytes that pickle stored."""
    options = Options()
    return from_file(several_plans.Reader(data, "[pickle]"), options.num_threads, options.num_contexts)


def compile_functions(model: Any, options: Options | None = None, **keywords: Any) -> Functions:
    """Compiles the functions of a model with fixed shapes: graphs or tensors by name, or a file of several functions (a
    Core ML package, a Core AI asset).

        net = hx.compile_functions({"prefill": graph, "decode": other}, target="M4")
        net["decode"](token=..., position=...)

    options, keywords: see `compile`. Raises Error as `compile` does.
    """
    result = Functions((options or DEFAULTS).given(keywords))
    if isinstance(model, Mapping):
        for name, part in model.items():
            result.add(name, part if isinstance(part, Graph) else build.graph(part, name=name))
        return result
    for name, function in sources.open_network(model, where="compile").functions.items():
        result.add(name, function.usual_graph({}, {}))
    return result
