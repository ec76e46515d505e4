"""The text of a program, statement by statement."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hexane import _core
from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, Value, constant, unique
from hexane.mil.arguments import IN_BRACKETS, Parameter, parameters, parameters_of
from hexane.mil.forms import Written
from hexane.mil.forms.products import PRODUCTS
from hexane.mil.text import HEADER, Type
from hexane.ops.encodings import encoding_of, kept
from hexane.passes.legalize.mil_form import written

WEIGHTS = "weights/weights.bin"  # beside the text
MOST_INLINE = 10  # elements of a constant that stand in the text


class MilPort(NamedTuple):
    """An input or output: its name in the program, and the user's."""

    name: str
    user_name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mil:
    """A program. `weights` are the bytes of @model_path/weights/weights.bin, empty where the text needs none, made when
    they are asked for; `weight_file` is the same without a copy of the arrays. Ports are in the order of the device: by
    name. `graph` is what the text says."""

    text: str
    weight_file: _core.WeightFile = field(repr=False)
    inputs: tuple[MilPort, ...]
    outputs: tuple[MilPort, ...]
    graph: Graph = field(repr=False)

    @property
    def weights(self) -> bytes:
        return bytes(self.weight_file)


def write_mil(graph: Graph, *, labels: bool = True) -> Mil:
    """The program of a graph in MIL's form. labels: values are named after their nodes."""
    graph, inputs, outputs = _named(graph)
    writer = _Writer(graph, labels)
    return Mil(writer.text(), writer.weights, inputs, outputs, graph)


# ---- names ----

_WORDS = (
    "program",
    "func",
    "main",
    "buildInfo",
    "dict",
    "tensor",
    "state",
    "string",
    "true",
    "false",
    "BLOBFILE",
    "val",
    "name",
)
_RESERVED = frozenset((*_WORDS, *DTYPES, "const", *parameters()))


class Names:
    """Names that MIL takes, each given once."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def give(self, wanted: str) -> str:
        """The name wanted, in letters that MIL has, or with a number behind it where that one is taken or means
        something."""
        base = re.sub(r"\W", "_", wanted, flags=re.ASCII)
        base = f"_{base}" if not base or base[0].isdigit() else base
        number = self._next.get(base, 0)
        name = base if number == 0 and base not in _RESERVED else f"{base}_{number}"
        while name in self._next:
            number += 1
            name = f"{base}_{number}"
        self._next[base] = number + 1
        self._next.setdefault(name, 0)
        return name


def _named(graph: Graph) -> tuple[Graph, tuple[MilPort, ...], tuple[MilPort, ...]]:
    """The graph with its ports in order of the names that they get, and the ports."""
    names = Names()
    inputs = sorted((names.give(str(v.node.attrs["name"])), v) for v in graph.inputs)
    table = {
        v: unique("input", name, v.type, sources=v.node.sources) for name, v in inputs if v.node.attrs["name"] != name
    }
    graph = graph.rewrite(lambda node, operands: None, became=table) if table else graph
    outputs = sorted((names.give(p.name), p) for p in graph.outputs)
    given = tuple(MilPort(name, str(v.node.attrs["name"]), v.dtype, v.shape) for name, v in inputs)
    results = tuple(MilPort(name, p.name, p.value.dtype, p.value.shape) for name, p in outputs)
    ports = tuple(p._replace(name=name) for name, p in outputs)
    return replace(graph, inputs=tuple(table.get(v, v) for _, v in inputs), outputs=ports, name="main"), given, results


# ---- values ----


@lru_cache(maxsize=1 << 16)
def _trimmed(number: str) -> str:
    """0x1.8000000000000p-3 without zeros that say nothing."""
    mantissa, _, exponent = number.partition("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"


def _text(value: Any, dtype: DType) -> str:
    """A number, or nested lists of them, as C has them, with every digit."""
    if isinstance(value, list):
        return "[" + ", ".join([_text(item, dtype) for item in value]) + "]"
    if dtype.kind == "float":
        return _trimmed(float(value).hex())
    return ("true" if value else "false") if dtype.kind == "bool" else str(int(value))


@lru_cache(maxsize=16)
def _numbers(data: bytes, stored: "np.dtype[Any]", shape: tuple[int, ...], dtype: DType) -> str:
    """An array as text, kept for the next program that has it, as each layer has an attention's mask."""
    return _text(np.frombuffer(data, stored).reshape(shape).tolist(), dtype)


@lru_cache(maxsize=1 << 12)
def _type(kind: TensorType) -> str:
    return str(Type(kind.dtype.name, kind.shape or None))


class _Writer:
    def __init__(self, graph: Graph, labels: bool) -> None:
        self.graph = graph
        self.labels = labels
        self.names = Names()
        self.values: dict[Value, str] = {}
        self.shared: dict[tuple[str, str], str] = {}  # constants that are arguments, by type and text
        self.lines: list[str] = []
        self.offsets: dict[Value, int] = {}
        self.forms = {id(node): written(node) for node in graph.nodes if node.op not in ("input", "const")}
        self.stored = _stored(graph)
        self.sparse: dict[Value, tuple[Value, Value]] = {}  # weights, their numbers other than 0, and where these are
        self.weights = self._pack()

    def _pack(self) -> _core.WeightFile:
        forms = [form for form in self.forms.values() if form is not None]
        given = dict.fromkeys(v for form in forms for argument in form.arguments.values() for v in _values(argument))
        self.sparse = {v: parts for v in _weights(forms, given) if (parts := _sparse(v)) is not None}
        dense = [part for v in given for part in self.sparse.get(v, (v,))]
        large = [value for value in dense if value.node.op == "const" and _in_file(value.node)]
        file = _core.WeightFile([(v.dtype.name, v.node.data) for v in large])
        self.offsets = dict(zip(large, file.offsets, strict=True))
        return file

    def text(self) -> str:
        graph = self.graph
        for value in graph.inputs:
            self.values[value] = self.names.give(str(value.node.attrs["name"]))
        for port in graph.outputs:
            self.values[port.value] = self.names.give(port.name)
        for node in graph.nodes:
            if node.op not in ("input", "const"):
                self.statement(node)
        inputs = ", ".join(f"{_type(v.type)} {self.values[v]}" for v in graph.inputs)
        outputs = ", ".join(self.values[p.value] for p in graph.outputs)
        body = "".join(f"        {line}\n" for line in self.lines)
        return f"{HEADER}{{\n    func main<ios18>({inputs}) {{\n{body}    }} -> ({outputs});\n}}\n"

    def statement(self, node: Node) -> None:
        form = self.forms[id(node)]
        assert form is not None, node.op
        dtype = node.types[0].dtype
        taken = [p for p in parameters_of(form.op) if form.arguments.get(p.name) is not None]
        label = _label(node, form.op) if self.labels and node not in self.stored else form.op
        results = [self.name_of(value, label) for value in node.values]
        types = ", ".join(f"{_type(v.type)} {name}" for v, name in zip(node.values, results, strict=True))
        name = f'name = string("{results[0]}")'
        if form.op in IN_BRACKETS:
            inside = sorted([name, *(f"{p.name} = {self.attribute(p, form.arguments[p.name])}" for p in taken)])
            self.lines.append(f"{types} = {form.op}()[{', '.join(inside)}];")
            return
        given = [f"{p.name} = {self.argument(p, form.arguments[p.name], dtype)}" for p in taken]
        self.lines.append(f"{types} = {form.op}({', '.join(given)})[{name}];")

    def attribute(self, p: Parameter, value: Any) -> str:
        """A constant in place."""
        if isinstance(value, Value):
            return self.literal(value)
        kind, text = _constant(p, value)
        return f"{kind}({text})"

    def name_of(self, value: Value, wanted: str) -> str:
        if value not in self.values:
            self.values[value] = self.names.give(wanted)
        return self.values[value]

    def argument(self, p: Parameter, value: Any, dtype: DType) -> str:
        if p.kind == "values":
            return f"({', '.join(map(self.tensor, value))})"
        if p.is_tensor:
            return self.tensor(value)
        if p.kind == "factor":
            return f"int32({value})"
        if p.kind == "float":
            return f"{dtype.name}({_text(value, dtype)})"
        return self.constant_argument(p, value)

    def constant_argument(self, p: Parameter, value: Any) -> str:
        """The name of a constant that the statement points to; equal ones are one."""
        kind, text = _constant(p, value)
        if (kind, text) not in self.shared:
            self.shared[kind, text] = name = self.names.give(p.name)
            self.lines.append(f'{kind} {name} = const()[name = string("{name}"), val = {kind}({text})];')
        return self.shared[kind, text]

    def tensor(self, value: Value) -> str:
        if value not in self.values and value in self.sparse:
            numbers, mask = map(self.tensor, self.sparse[value])
            name = self.values[value] = self.names.give("const")
            given = f"nonzero_data = {numbers}, mask = {mask}"
            self.lines.append(
                f'{_type(value.type)} {name} = constexpr_sparse_to_dense({given})[name = string("{name}")];'
            )
        elif value not in self.values:
            name = self.values[value] = self.names.give("const")
            literal = self.literal(value)
            self.lines.append(f'{_type(value.type)} {name} = const()[name = string("{name}"), val = {literal}];')
        return self.values[value]

    def literal(self, value: Value) -> str:
        """A constant with its type: numbers, or where they are in the file."""
        data = value.node.data
        assert data is not None, value.node.op
        if value in self.offsets:
            if not value.shape:
                raise Error(
                    f"[emit] {value.node.where}: got the scalar {data.item()}, need a finite one (constraint 34)"
                )
            text = f'BLOBFILE(path = string("@model_path/{WEIGHTS}"), offset = uint64({self.offsets[value]}))'
        else:
            text = _numbers(data.tobytes(), data.dtype, data.shape, value.dtype)
        return f"{_type(value.type)}({text})"


def _constant(p: Parameter, value: Any) -> tuple[str, str]:
    """Type and text of an argument that is no tensor."""
    if p.kind in ("str", "dtype"):
        return "string", f'"{value}"'
    if p.kind in ("int", "bool"):
        return ("int32", str(value)) if p.kind == "int" else ("bool", "true" if value else "false")
    kind = str(Type("int32" if p.kind == "ints" else "bool", (len(value),)))
    return kind, "[" + ", ".join(str(v).lower() for v in value) + "]"


def _values(argument: Any) -> tuple[Value, ...]:
    """The tensors among arguments."""
    several = (argument,) if isinstance(argument, Value) or not isinstance(argument, tuple) else argument
    return tuple(v for v in several if isinstance(v, Value))


def _weights(forms: Sequence[Written], given: Iterable[Value]) -> list[Value]:
    """Constants that are weights of products and nothing else."""
    read: dict[Value, set[bool]] = {}
    for form in forms:
        for name, argument in form.arguments.items():
            for value in _values(argument):
                read.setdefault(value, set()).add(form.op in PRODUCTS and name in ("weight", "y"))
    return [v for v in given if v.node.op == "const" and read[v] == {True}]


def _stored(graph: Graph) -> set[Node]:
    """Constants, and what is computed from constants alone. Every network of the process that has an equal one shares
    the node, and its sources are those of all these networks: a name made of them would differ from process to process.
    """
    found: set[Node] = set()
    for node in graph.nodes:
        if node.op == "const" or (node.inputs and all(v is None or v.node in found for v in node.inputs)):
            found.add(node)
    return found


def _sparse(weight: Value) -> tuple[Value, Value] | None:
    """The numbers that are not 0, in order, and a bit for each element, where that takes little more than half of the
    bytes."""
    node = weight.node
    if encoding_of(weight).kind != "pruned":
        return None
    assert node.data is not None
    mask = kept(node.data)
    return constant(node.data[mask], node.sources), constant(mask.astype(DTYPES["uint1"].numpy))


def _label(node: Node, otherwise: str) -> str:
    """What the user calls a node: its name in a model file, not a line of Python."""
    source = node.sources[0] if node.sources else ""
    return otherwise if not source or re.search(r"\.py:\d+$", source) else source


def _in_file(node: Node) -> bool:
    """Large constants, and numbers that text cannot say."""
    assert node.data is not None
    if node.types[0].dtype.kind == "bool":
        return False
    return node.data.size > MOST_INLINE or (node.types[0].dtype.kind == "float" and not np.isfinite(node.data).all())
