"""An opened model: functions by name, each with its signature and its graph."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.importers.signature import Input, Signature, SpecialisationNeeded

Shapes = Mapping[str, Sequence[int]]
Values = Mapping[str, Array]


class Weights(Protocol):
    """The weights of a file, which graphs of several shapes share."""

    def share(self, pool: _core.MemoryPool) -> None:
        """Makes later graphs store their weights in this pool, which compiled models use, too."""

    def release_unshared(self) -> None:
        """Releases the file's weights if compiled models hold converted weights instead, such as transposed ones."""


class Stages(Protocol):
    """A function in two parts. `first` computes the values in `cut` and the outputs in `first_outputs`. `rest` returns
    the second part for the arrays of the cut; the second part reads the values in `cut` and the inputs in
    `rest_inputs`."""

    @property
    def first(self) -> "Function": ...
    @property
    def cut(self) -> tuple[str, ...]: ...
    @property
    def first_outputs(self) -> tuple[str, ...]: ...
    @property
    def rest_inputs(self) -> tuple[str, ...]: ...
    def rest(self, cut: Mapping[str, Array]) -> "Function": ...


@dataclass(frozen=True, slots=True)
class Function:
    """One function of a model.

    graph: makes the graph for shapes of inputs and values of inputs that decide shapes; raises SpecialisationNeeded if
    a needed shape or value is missing, ComputedShapes for a function with computed shapes, and Error if shapes are
    given for a model without free dims. describe: reads the signature. is_open: shapes may stay open until a call;
    inputs may have defaults. weights: of a file that is read once for all shapes. stages: splits the function into two
    parts, the first of which computes the named values; returns None if it cannot. computes_shapes: True if the
    function may have computed shapes. inlined: returns the same function with the file's own functions inlined.
    """

    graph: Callable[[Shapes, Values], Graph]
    describe: Callable[[], Signature]
    is_open: bool = False
    weights: Weights | None = None
    stages: Callable[[Collection[str]], Stages | None] | None = None
    computes_shapes: Callable[[], bool] | None = None
    inlined: "Callable[[], Function] | None" = None

    @property
    def signature(self) -> Signature:
        return self.describe()

    def usual_shapes(self, given: Iterable[str] = ()) -> dict[str, tuple[int, ...]]:
        """The shapes that the model gives for inputs with free dims, except for given inputs."""
        if not self.is_open:
            return {}
        named = set(given)
        return {i.name: i.usual for i in self.signature.inputs if i.usual is not None and i.name not in named}

    def usual_graph(self, shapes: Shapes, values: Values) -> Graph:
        """The graph of one shape: an input whose shape is not determined otherwise gets the model's usual shape."""
        try:
            return self.graph(shapes, values)
        except SpecialisationNeeded as error:
            usual = self.usual_shapes((*shapes, *values))
            if not usual.keys() & set(error.names):
                raise
            return self.graph({**usual, **shapes}, values)


@dataclass(frozen=True, slots=True)
class Module:
    """An opened model.

    form: the name of its format in the table; title: the format in the words of a sentence, such as "an ONNX model";
    name: the given path, "" for an object; source: the object, or the path without the name of a function; asked: the
    name of the function.
    """

    form: str
    title: str
    name: str
    source: Any
    functions: Mapping[str, Function] = field(default_factory=dict)
    asked: str | None = None

    def function(self, name: str | None = None) -> Function:
        """The function of this name; without a name `main`, or the only function. Raises Error if there is none."""
        only = next(iter(self.functions)) if len(self.functions) == 1 else "main"
        wanted = name or ("main" if "main" in self.functions else only)
        if wanted not in self.functions:
            got = f"the function {name!r}" if name else "no function"
            need = ", ".join(sorted(self.functions)) or "none"
            raise Error(f"[open] {self.name or 'model'}: got {got}, need one of {need}")
        return self.functions[wanted]

    def graph(self, shapes: Shapes | None = None, values: Values | None = None) -> Graph:
        """The graph of the function `main`, or of the only function."""
        return self.function().usual_graph(shapes or {}, values or {})


def fixed_function(make: Callable[[], Graph]) -> Function:
    """The function of a model whose shapes are all known, and whose graph is made once."""
    graphs: list[Graph] = []

    def graph(shapes: Shapes, values: Values) -> Graph:
        if shapes or values:
            which = "input_shapes" if shapes else "input_values"
            raise Error(
                f"[open] {which}: got some for a model of fixed shapes, need an ONNX model"
                + (" or a Core AI asset" if shapes else "")
            )
        if not graphs:
            graphs.append(make())
        return graphs[0]

    return Function(graph, lambda: signature_of(graph({}, {})))


class Opened(Protocol):
    """A model of several functions that an importer has opened."""

    def graph(self, name: str, shapes: Shapes, values: Values) -> Graph: ...
    def signature(self, name: str) -> Signature: ...


def functions_of(model: Opened, names: Iterable[str]) -> dict[str, Function]:
    """The functions of these names, whose shapes may stay open. A signature is read once."""

    def function(name: str) -> Function:
        known: list[Signature] = []

        def describe() -> Signature:
            if not known:
                known.append(model.signature(name))
            return known[0]

        return Function(lambda shapes, values: model.graph(name, shapes, values), describe, is_open=True)

    return {name: function(name) for name in names}


def signature_of(graph: Graph) -> Signature:
    inputs = tuple(Input(str(v.node.attrs["name"]), v.dtype, v.shape) for v in graph.inputs)
    return Signature(inputs, tuple(port.name for port in graph.outputs))
