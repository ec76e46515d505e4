"""Several functions of one model: weights that are equal are in memory once, states of one name are one state."""

from collections.abc import Iterator, Mapping
from threading import Lock
from typing import Any

from hexane import build, sources
from hexane.errors import Error
from hexane.graph import Graph
from hexane.options import DEFAULTS, Options
from hexane.runtime.compile import build_with_shared_weights
from hexane.runtime.model import Model


class Functions(Mapping[str, Model]):
    """The functions of a model by name, as `compile_functions` makes them; `functions` are the names.

    Functions whose states have the same names and types have one set of them: what `prefill` writes, `decode` reads.
    Calls of such functions run one after the other, whichever threads make them.
    """

    def __init__(self, options: Options = DEFAULTS) -> None:
        self._build = build_with_shared_weights(options)
        self._models: dict[str, Model] = {}
        self._owners: dict[frozenset[str], Model] = {}
        self._adding = Lock()

    def add(self, name: str, graph: Graph) -> Model:
        """Compiles one more function. Raises Error for a name that is taken, for a graph that cannot be compiled, and
        for states that another function has with other types."""
        with self._adding:
            if name in self._models:
                raise Error(f"[functions] got the name {name!r} a second time, need names of their own")
            made = self._build(graph)
            self._share(name, made)
            self._models[name] = made
            return made

    def _share(self, name: str, made: Model) -> None:
        states = frozenset(made.state_names)
        owner = self._owners.get(states)
        if owner is None:
            if clash := next((n for other in self._owners for n in sorted(other & states)), None):
                raise Error(f"[functions] {name!r}: got the state {clash!r} without others of its function, need all")
            if states:
                self._owners[states] = made
            return
        made._core.share_states(owner._core)

    @property
    def functions(self) -> tuple[str, ...]:
        return tuple(self._models)

    def function(self, name: str) -> Model:
        """Raises Error for a name that is none."""
        if name not in self._models:
            raise Error(f"[functions] got the function {name!r}, need one of {', '.join(self._models) or 'none'}")
        return self._models[name]

    def reset_state(self) -> None:
        """Puts the initial contents of all states back."""
        for owner in self._owners.values():
            owner.reset_state()

    def __getitem__(self, name: str) -> Model:
        if name not in self._models:
            raise KeyError(name)
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)


def compile_functions(model: Any, options: Options | None = None, **keywords: Any) -> Functions:
    """Compiles the functions of a model: graphs or tensors by name, or a file of several functions (a Core ML package,
    a Core AI asset), whose shapes are all known.

        net = hx.compile_functions({"prefill": graph, "decode": other}, target="M4")
        net["decode"](token=..., position=...)

    options, keywords: as `compile` has them. Raises Error as `compile` does.
    """
    made = Functions((options or DEFAULTS).given(keywords))
    if isinstance(model, Mapping):
        for name, part in model.items():
            made.add(name, part if isinstance(part, Graph) else build.graph(part, name=name))
        return made
    for name, function in sources.open_network(model, where="compile").functions.items():
        made.add(name, function.graph({}, {}))
    return made
