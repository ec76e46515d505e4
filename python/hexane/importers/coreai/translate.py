"""Translates a function of an asset to a graph, one operation after the other. Shapes become constants, bodies are
inlined."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error, UnsupportedError
from hexane.graph import Graph, Port, TensorType, Value, constant, tensor_type, unique
from hexane.graph.names import check_name
from hexane.importers.coreai import handlers as _handlers
from hexane.importers.coreai.asset import Asset, AssetFunction
from hexane.importers.coreai.attributes import Handle, Location, Other, Scalar, Tensor
from hexane.importers.coreai.caches import updates_in_place
from hexane.importers.coreai.encoded import EncodedFolder, decode_all_but_weights
from hexane.importers.coreai.numbers import DTYPE_OF, STORED, numbers
from hexane.importers.coreai.operations import Body, Operation, Result
from hexane.importers.coreai.registry import Complex, Context, Item, handled
from hexane.importers.likely_shapes import likely_shapes, shape_option
from hexane.ops.compose import Builder
from hexane.ops.fold import Folder
from hexane.ops.valid_lengths import with_lengths
from hexane.system.large_pages import LargePages

assert _handlers is not None  # The import fills the registry.
DEEPEST = 64  # levels of nested functions
_VERSION = re.compile(r"_v[0-9]+$")


class Translator:
    """Translates one function. values: by result of an operation. states: the newest contents of each handle."""

    def __init__(self, asset: Asset, function: AssetFunction) -> None:
        self.asset, self.function = asset, function
        self.values: dict[Result, Item] = {}
        self.states: dict[Result, Value] = {}
        self.leaves: dict[Result, Value] = {}
        self.depth = 0
        self.room = LargePages()
        self.in_place = updates_in_place(function.body)
        self.problems: dict[str, list[str]] = {}

    def graph(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Returns the graph. Raises Error if a shape is missing or does not fit its input, and UnsupportedError that
        lists all kinds of unsupported operations."""
        inputs = []
        known = {port.name for port in self.function.inputs}
        if unknown := set(shapes) - known:
            raise Error(f"[coreai] got a shape for {min(unknown)!r}, need inputs of {', '.join(sorted(known))}")
        for port, argument in zip(self.function.arguments, self.function.body.arguments, strict=True):
            check_name("input", port.name)
            if isinstance(port.type, Handle):
                self._state(port.name, port.type.of, argument)
                continue
            kind = self._input_type(port.name, port.type, shapes)
            inputs.append(unique("input", port.name, kind, sources=(port.name,)))
            is_complex = isinstance(port.type, Tensor) and port.type.element.startswith("complex")
            self.values[argument] = _from_pairs(inputs[-1]) if is_complex else inputs[-1]
        items = self.body(self.function.body)
        if self.problems:
            listed = "\n  ".join(f"{what}: {', '.join(where[:3])}" for what, where in self.problems.items())
            count = len(self.problems)
            raise UnsupportedError(
                f"[coreai] {count} kind{'s' if count > 1 else ''} of operations cannot be imported:\n  {listed}"
            )
        outputs: dict[str, Port] = {}
        for port, item in zip(self.function.results, items, strict=True):
            if not isinstance(port.type, Tensor):
                continue
            if isinstance(item, Complex):
                item = _as_pairs(item)
            if not isinstance(item, Value):
                raise Error(f"[coreai] got the output {port.name!r} of {port.type}, need a tensor of real numbers")
            check_name("output", port.name)
            if port.name in outputs:
                raise Error(f"[coreai] got the output {port.name!r} twice, need distinct names")
            outputs[port.name] = Port(port.name, item)
        updates = [value for argument, value in self.states.items() if value is not self.leaves[argument]]
        if not outputs and not updates:
            raise Error(f"[coreai] got the function {self.function.name!r} without outputs, need at least one")
        graph = Graph(tuple(inputs), tuple(outputs.values()), name=self.function.name, updates=tuple(updates))
        return with_lengths(decode_all_but_weights(graph))

    def _input_type(self, name: str, kind: Any, shapes: Mapping[str, Sequence[int]]) -> TensorType:
        element = kind.element.removeprefix("complex<").rstrip(">") if isinstance(kind, Tensor) else ""
        if not isinstance(kind, Tensor) or element not in DTYPE_OF:
            raise Error(f"[coreai] got the input {name!r} of {kind}, need a tensor")
        given = tuple(shapes[name]) if name in shapes else kind.shape
        if len(given) != len(kind.shape) or any(d is None for d in given):
            likely = likely_shapes([(name, "float" if "f" in element else "int", kind.shape)])[name]
            raise Error(
                f"[coreai] got the input {name!r} of {kind}, need its shape, as in {shape_option(name, likely)}"
            )
        if any(d not in (None, e) for d, e in zip(kind.shape, given, strict=True)):
            raise Error(f"[coreai] got the shape {given} for {name!r}, need one that fits {kind}")
        extents = [int(d) for d in given if d is not None]
        return tensor_type(DTYPE_OF[element], [*extents, 2] if element != kind.element else extents)

    def _state(self, name: str, kind: Tensor, argument: Result) -> None:
        if kind.element not in DTYPE_OF or None in kind.shape:
            raise Error(f"[coreai] got the state {name!r} of {kind}, need a tensor of real numbers and a known shape")
        # A state needs at least one axis, along which it is written.
        shape = [d for d in kind.shape if d is not None] or [1]
        dtype = DTYPES[DTYPE_OF[kind.element]]
        leaf = unique("state", name, tensor_type(dtype, shape), np.zeros(shape, dtype.numpy), (name,))
        self.states[argument] = self.leaves[argument] = leaf

    # ---- bodies ----

    def body(self, body: Body) -> tuple[Item, ...]:
        """Translates a body whose arguments have values. Returns the operands of the body's last operation."""
        if self.depth > DEEPEST:
            raise Error(f"[coreai] got functions in functions, more than {DEEPEST} deep")
        self.depth += 1
        for operation in body.operations[:-1]:
            self.operation(operation)
        self.depth -= 1
        last = body.operations[-1] if body.operations else None
        return () if last is None else tuple(self.item(v) for v in last.operands)

    def inline(self, body: Body, arguments: Iterable[Item]) -> tuple[Item, ...]:
        """Returns the results of a body for these arguments."""
        for argument, item in zip(body.arguments, arguments, strict=True):
            self.values[argument] = item
        return self.body(body)

    def item(self, result: Result) -> Item:
        """Returns the value of a result. A placeholder of the same type stands for a result of an unsupported
        operation, which is already reported."""
        if result in self.states:
            return Other(31, "a state")
        if result not in self.values:
            self.values[result] = self._stand_in(result)
        return self.values[result]

    def _stand_in(self, result: Result) -> Item:
        kind = result.type
        if not isinstance(kind, Tensor) or kind.element not in DTYPE_OF:
            return Other(0, str(kind))
        shape = [1 if d is None else d for d in kind.shape]
        return unique("input", f"missing{len(self.values)}", tensor_type(DTYPE_OF[kind.element], shape))

    def operation(self, operation: Operation) -> None:
        name = base_name(operation.name)
        where = sources_of(operation.location)
        operands = tuple(self.item(v) for v in operation.operands)
        context = Context(self, operation, operands, EncodedFolder(*(where or (name,))))
        try:
            outcome = handled(name, context)
            items = () if outcome is None else tuple(outcome) if isinstance(outcome, (tuple, list)) else (outcome,)
            if isinstance(outcome, Value):
                items = (outcome,)
            if len(items) != len(operation.results):
                raise Error(f"got {len(operation.results)} results, need {len(items)}")
            for result, item in zip(operation.results, items, strict=True):
                self.values[result] = self._declared(item, result, context.b)
        except Error as error:
            self._problem(operation, name, where, str(error))

    def _problem(self, operation: Operation, name: str, where: tuple[str, ...], text: str) -> None:
        text = re.sub(r"^\[[^]]*\] ", "", text)
        place = ", ".join(where) or f"at {operation.offset} of the file"
        self.problems.setdefault(f"{name}: {text}", []).append(place)

    def _declared(self, item: Item, result: Result, b: Builder) -> Item:
        """Returns a value with the dtype that its operation declares. Raises Error if the operation declares another
        shape."""
        kind = result.type
        if isinstance(item, Value) and isinstance(kind, Tensor):
            if kind.element in DTYPE_OF and item.dtype is not DTYPES[DTYPE_OF[kind.element]]:
                item = b.cast(item, dtype=DTYPES[DTYPE_OF[kind.element]])
            shape = item.shape
            if len(shape) != len(kind.shape) or any(d not in (None, n) for d, n in zip(kind.shape, shape, strict=True)):
                raise Error(f"got a result declared as {kind}, need {item.type}")
        return item

    # ---- constants ----

    def constant(self, operation: Operation, sources: tuple[str, ...]) -> Item:
        """Returns the value of a constant. Numbers of less than a byte are decoded."""
        (result,) = operation.results
        kind = result.type
        if not isinstance(kind, Tensor):
            if isinstance(kind, (Other, Scalar)):
                return Other(0, str(kind))
            raise Error(f"got a constant of {kind}, need a tensor")
        if any(d is None for d in kind.shape):
            raise Error(f"got a constant of {kind}, need known extents")
        shape = tuple(d for d in kind.shape if d is not None)
        try:
            array = numbers(self.asset.numbers_of(operation), kind.element, shape, self.room)
        except ValueError as error:
            raise Error(str(error)) from None
        if kind.element.startswith("complex"):
            return Complex(
                constant(np.ascontiguousarray(array.real), sources), constant(np.ascontiguousarray(array.imag), sources)
            )
        stored: DType | None = DTYPES[STORED[kind.element]] if kind.element in STORED else None
        return constant(array, sources, stored)


def _from_pairs(x: Value) -> Complex:
    """Returns the complex tensor of a real one whose last axis holds real and imaginary parts."""
    b, shape = Folder(*x.node.sources), x.shape[:-1]
    parts = (b.slice_by_size(x, begin=(*(0 for _ in shape), i), size=(*shape, 1)) for i in range(2))
    return Complex(*(b.reshape(part, shape=shape) for part in parts))


def _as_pairs(x: Complex) -> Value:
    return Folder(*x.real.node.sources).stack(x.real, x.imaginary, axis=-1)


def base_name(operation: str) -> str:
    """The name of an operation without its version."""
    return _VERSION.sub("", operation)


def sources_of(location: Location | None) -> tuple[str, ...]:
    """Returns the source line and module of an operation, such as ("conv.py:565", "Model$1.Conv2d$1"); () if none is
    known."""
    if location is None:
        return ()
    sources = []
    if location.source is not None and location.source.line > 0:
        sources.append(f"{location.source.file.replace(chr(92), '/').rpartition('/')[2]}:{location.source.line}")
    for entry in location.metadata:
        if entry.name == "call_stack" and entry.values and isinstance(entry.values[0], tuple):
            modules = [m for m in entry.values[0] if isinstance(m, str)]
            if modules:
                sources.append(".".join(reversed(modules)))
    return tuple(sources)
