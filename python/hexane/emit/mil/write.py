"""Writes the program of a graph as a tree of MIL statements."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from hexane import _core
from hexane.dtypes import DTYPES, DType
from hexane.emit.mil.names import Names, label_of
from hexane.errors import Error
from hexane.graph import Graph, Node, TensorType, Value, constant, unique
from hexane.lowering.mil_ops import written
from hexane.mil.arguments import IN_BRACKETS, Parameter, parameters_of
from hexane.mil.forms import MilCall
from hexane.mil.forms.form import values_of
from hexane.mil.forms.products import PRODUCTS
from hexane.mil.forms.quantised import LUT_SCALE
from hexane.mil.tree import Argument, BlobFile, Function, Literal, Name, Statement, Type
from hexane.ops.encodings import encoding_of, kept

WEIGHTS = "weights/weights.bin"  # Path of the weight file next to the text.
MOST_INLINE = 10  # Elements; larger constants are stored in the weight file.


class MilPort(NamedTuple):
    """An input or output: its name in the program, and the user's name."""

    name: str
    user_name: str
    dtype: DType
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Mil:
    """A program. `weights` are the bytes of @model_path/weights/weights.bin, generated at access; empty if the text
    refers to none. `weight_file` is the same file without a copy of the arrays. Ports are sorted by name, which is the
    device's order. The text describes `graph`."""

    text: str
    weight_file: _core.WeightFile = field(repr=False)
    inputs: tuple[MilPort, ...]
    outputs: tuple[MilPort, ...]
    graph: Graph = field(repr=False)

    @property
    def weights(self) -> bytes:
        return bytes(self.weight_file)


def write_mil(graph: Graph, *, labels: bool = True) -> Mil:
    """Returns the program of a graph in MIL's form. labels: values are named after their nodes."""
    graph, inputs, outputs = _named(graph)
    writer = _Writer(graph, labels)
    return Mil(str(writer.function()), writer.weights, inputs, outputs, graph)


def _named(graph: Graph) -> tuple[Graph, tuple[MilPort, ...], tuple[MilPort, ...]]:
    """Returns the graph with its ports sorted by their new names, and the ports."""
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


# ---- statements ----


class _Writer:
    def __init__(self, graph: Graph, labels: bool) -> None:
        self.graph = graph
        self.labels = labels
        self.names = Names()
        self.values: dict[Value, Name] = {}
        self.shared: dict[Literal, Name] = {}  # Constants that are operands.
        self.statements: list[Statement] = []
        self.offsets: dict[Value, int] = {}
        self.forms = {id(node): written(node) for node in graph.nodes if node.op not in ("input", "const")}
        self.stored = _stored(graph)
        self.sparse: dict[Value, tuple[Value, Value]] = {}  # Sparse weights, with their nonzero numbers and the mask.
        self.weights = self._pack()

    def _pack(self) -> _core.WeightFile:
        forms = [form for form in self.forms.values() if form is not None]
        given = dict.fromkeys(v for form in forms for argument in form.arguments.values() for v in values_of(argument))
        self.sparse = {v: parts for v in weights_of_products(forms, given) if (parts := sparse(v)) is not None}
        dense = [part for v in given for part in self.sparse.get(v, (v,))]
        large = [value for value in dense if value.node.op == "const" and _in_file(value.node)]
        file = _core.WeightFile([(v.dtype.name, v.node.data) for v in large])
        self.offsets = dict(zip(large, file.offsets, strict=True))
        return file

    def function(self) -> Function:
        graph = self.graph
        for value in graph.inputs:
            self.name_of(value, str(value.node.attrs["name"]))
        for port in graph.outputs:
            self.values[port.value] = Name(self.names.give(port.name))
        for node in graph.nodes:
            if node.op not in ("input", "const"):
                self.statement(node)
        inputs = tuple((_type(v.type), self.values[v].name) for v in graph.inputs)
        outputs = tuple(self.values[p.value] for p in graph.outputs)
        return Function("main", "ios18", inputs, tuple(self.statements), outputs)

    def statement(self, node: Node) -> None:
        form = self.forms[id(node)]
        assert form is not None, node.op
        dtype = node.types[0].dtype
        taken = [(p, form.arguments[p.name]) for p in parameters_of(form.op) if form.arguments.get(p.name) is not None]
        label = label_of(node, form.op) if self.labels and node not in self.stored else form.op
        if form.op == "constexpr_lut_to_sparse":
            self.masked_palette(node.values[0], label, {p.name: self.tensor(value) for p, value in taken})
            return
        names = [self.name_of(value, label) for value in node.values]
        results = tuple((_type(v.type), name.name) for v, name in zip(node.values, names, strict=True))
        if form.op in IN_BRACKETS:
            inside = {p.name: self.attribute(p, value) for p, value in taken} | {"name": _string(names[0].name)}
            self.statements.append(Statement(results, form.op, {}, dict(sorted(inside.items()))))
            return
        given = {p.name: self.argument(p, value, dtype) for p, value in taken}
        if LUT_SCALE in form.arguments:
            given["lut"] = self.scaled_table(form.arguments["lut"], form.arguments[LUT_SCALE], names[0])
        self.statements.append(Statement(results, form.op, given, {"name": _string(names[0].name)}))

    def attribute(self, p: Parameter, value: Any) -> Literal:
        return self.literal(value) if isinstance(value, Value) else _constant(p, value)

    def name_of(self, value: Value, wanted: str) -> Name:
        if value not in self.values:
            self.values[value] = Name(self.names.give(wanted))
        return self.values[value]

    def argument(self, p: Parameter, value: Any, dtype: DType) -> Argument:
        if p.kind == "values":
            return tuple([self.tensor(v) for v in value])
        if p.is_tensor:
            return self.tensor(value)
        if p.kind == "factor":
            return Literal(Type("int32", None), value)
        if p.kind == "float":
            return Literal(Type(dtype.name, None), float(value) if dtype.kind == "float" else int(value))
        return self.constant_argument(p, value)

    def constant_argument(self, p: Parameter, value: Any) -> Name:
        """Returns the name of a constant for an argument. Equal constants share one."""
        literal = _constant(p, value)
        if literal not in self.shared:
            self.shared[literal] = self.const(p.name, literal)
        return self.shared[literal]

    def const(self, wanted: str, literal: Literal) -> Name:
        name = self.names.give(wanted)
        attributes = {"name": _string(name), "val": literal}
        self.statements.append(Statement(((literal.type, name),), "const", {}, attributes))
        return Name(name)

    def tensor(self, value: Value) -> Name:
        if value in self.values:
            return self.values[value]
        if value not in self.sparse:
            self.values[value] = self.const("const", self.literal(value))
            return self.values[value]
        numbers, mask = map(self.tensor, self.sparse[value])
        return self.dense(value, "const", numbers, mask)

    def dense(self, value: Value, wanted: str, numbers: Name, mask: Name) -> Name:
        """Adds a sparse weight: the numbers where the mask is 1, and 0 where it is 0."""
        name = self.name_of(value, wanted)
        given = {"nonzero_data": numbers, "mask": mask}
        attributes = {"name": _string(name.name)}
        result = (_type(value.type), name.name)
        self.statements.append(Statement((result,), "constexpr_sparse_to_dense", given, attributes))
        return name

    def scaled_table(self, integers: Value, scale: Value, of: Name) -> Name:
        """Adds the table of a palette: integers * scale."""
        given: dict[str, Argument] = {"data": self.tensor(integers), "scale": self.tensor(scale)}
        name = Name(self.names.give(f"{of.name}_lut"))
        result = (Type(scale.dtype.name, integers.shape), name.name)
        attributes = {"name": _string(name.name)}
        self.statements.append(Statement((result,), "constexpr_blockwise_shift_scale", given, attributes))
        return name

    def masked_palette(self, value: Value, label: str, given: dict[str, Name]) -> None:
        """Adds a palette with a mask: indices with a mask  ->  numbers with this mask  ->  the weight."""
        mask, numbers = (Name(self.names.give(f"{label}_{part}")) for part in ("mask", "numbers"))
        written = self.forms[id(value.node)]
        assert written is not None
        count = written.arguments["indices_nonzero_data"].type.size
        results = ((Type("uint1", value.shape), mask.name), (Type(value.dtype.name, (count,)), numbers.name))
        self.statements.append(Statement(results, written.op, dict(given), {"name": _string(mask.name)}))
        self.dense(value, label, numbers, mask)

    def literal(self, value: Value) -> Literal:
        """Returns a constant with its type: inline numbers, or an offset in the weight file."""
        data = value.node.data
        assert data is not None, value.node.op
        if value not in self.offsets:
            return Literal(_type(value.type), data)
        if not value.shape:
            raise Error(f"[emit] {value.node.where}: got the scalar {data.item()}, need a finite one (constraint 34)")
        return Literal(_type(value.type), BlobFile(f"@model_path/{WEIGHTS}", self.offsets[value]))


@lru_cache(maxsize=1 << 12)
def _type(kind: TensorType) -> Type:
    return Type(kind.dtype.name, kind.shape or None)


def _string(text: str) -> Literal:
    return Literal(Type("string", None), text)


def _constant(p: Parameter, value: Any) -> Literal:
    """Returns the literal of an argument that is not a tensor."""
    if p.kind in ("str", "dtype"):
        return _string(str(value))
    if p.kind == "int":
        return Literal(Type("int32", None), int(value))
    if p.kind == "bool":
        return Literal(Type("bool", None), bool(value))
    if p.kind == "ints":
        return Literal(Type("int32", (len(value),)), tuple([int(v) for v in value]))
    return Literal(Type("bool", (len(value),)), tuple([bool(v) for v in value]))


def weights_of_products(forms: Sequence[MilCall], given: Iterable[Value]) -> list[Value]:
    """Returns the constants that are only weights of products."""
    read: dict[Value, set[bool]] = {}
    for form in forms:
        for name, argument in form.arguments.items():
            for value in values_of(argument):
                read.setdefault(value, set()).add(form.op in PRODUCTS and name in ("weight", "y"))
    return [v for v in given if v.node.op == "const" and read[v] == {True}]


def _stored(graph: Graph) -> set[Node]:
    """Returns the nodes of constants, and of values computed only from constants. These nodes are not named after their
    sources: all networks of a process share equal nodes, which collect sources, so the names would depend on the
    process."""
    nodes: set[Node] = set()
    for node in graph.nodes:
        if node.op == "const" or (node.inputs and all(v is None or v.node in nodes for v in node.inputs)):
            nodes.add(node)
    return nodes


def sparse(weight: Value) -> tuple[Value, Value] | None:
    """Returns the nonzero numbers in order and a bit for each element, or None if the weight is not stored pruned."""
    node = weight.node
    if encoding_of(weight).kind != "pruned":
        return None
    assert node.data is not None
    mask = kept(node.data)
    bits = DTYPES["uint1"]
    return constant(node.data[mask], node.sources), constant(mask.astype(bits.numpy), dtype=bits)


def _in_file(node: Node) -> bool:
    """True for large constants, and for numbers that text cannot express."""
    assert node.data is not None
    if node.types[0].dtype.kind == "bool":
        return False
    return node.data.size > MOST_INLINE or (node.types[0].dtype.kind == "float" and not np.isfinite(node.data).all())
