"""Reads MIL text into a graph, and checks the arguments and types of every op, and the weights that the text refers
to."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hexane import _core
from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array, Graph, Port, TensorType, Value, constant, tensor_type, unique
from hexane.importers.files import open_inside, open_regular, read_all
from hexane.mil.arguments import IN_BRACKETS, Parameter, parameters_of
from hexane.mil.forms import READ
from hexane.mil.text import Place, parse_program
from hexane.mil.tree import Argument, Bits, BlobFile, Literal, Name, Statement, Type
from hexane.ops.fold import fold_node
from hexane.ops.rewriter import Rewriter

MODEL_PATH = "@model_path/"
Weights = bytes | Mapping[str, bytes]


def load_mil(text: str, weights: Weights = b"", name: str = "MIL") -> Graph:
    """Returns the graph of a program. weights: the bytes of its weight file, or of several files by the paths in the
    text.

    Raises Error with `name`, line and column for invalid MIL, for unknown ops and wrong arguments, and for weights that
    do not fit the text.
    """
    if isinstance(weights, Mapping):
        files = weights

        def file(path: str) -> bytes:
            if path not in files:
                raise Error(f"got the path {path!r}, need one of {', '.join(map(repr, files)) or 'none'}")
            return files[path]
    else:
        single = weights

        def file(path: str) -> bytes:
            return single

    return _Reader(text, name, file).graph()


def load_mil_file(path: str | os.PathLike[str]) -> Graph:
    """Returns the graph of a MIL file, with weights in its folder, which the text calls @model_path/."""
    where = Path(path)
    text = read_all(open_regular(where, f"[mil] {where}", "MIL file"), f"[mil] {where}")
    try:
        decoded = text.decode()
    except UnicodeDecodeError as error:
        raise Error(f"[mil] {where}: got bytes at {error.start} that are no UTF-8, need text") from None
    known: dict[str, bytes] = {}

    def file(name: str) -> bytes:
        if name not in known:
            if not name.startswith(MODEL_PATH):
                raise Error(f"got the path {name!r}, need one that begins with {MODEL_PATH}")
            inside = open_inside(where.parent, name.removeprefix(MODEL_PATH), "[mil] weights")
            known[name] = read_all(inside, f"[mil] {name}")
        return known[name]

    return _Reader(decoded, str(where), file).graph()


class _Reader:
    def __init__(self, text: str, name: str, file: Callable[[str], bytes]) -> None:
        self.place = Place(text, name)
        self.function = parse_program(text, name)
        self.file = file
        self.values: dict[str, Value | str] = {}
        self.constants: set[Value] = set()  # values that depend on no input

    def graph(self) -> Graph:
        function, inputs = self.function, []
        try:
            for kind, name in function.inputs:
                value = unique("input", name, _tensor(kind))
                self.define(name, value)
                inputs.append(value)
        except Error as error:
            raise Error(f"[{self.place.name}] func {function.name}: {error}") from None
        for statement in function.statements:
            try:
                self.statement(statement)
            except Error as error:
                self.place.fail(statement.at, f"{statement.op}: {_without_place(str(error))}")
        outputs: dict[str, Port] = {}
        for name, at in function.outputs:
            item = self.values.get(name)
            if not isinstance(item, Value) or name in outputs:
                self.place.fail(at, f"got the output {name}, need a tensor that is defined above, once")
            outputs[name] = Port(name, item)
        return Graph(tuple(inputs), tuple(outputs.values()), name=function.name)

    def define(self, name: str, value: Value | str) -> None:
        if name in self.values:
            raise Error(f"got the name {name} a second time, need names of their own")
        self.values[name] = value

    def statement(self, statement: Statement) -> None:
        given = {**statement.attributes, **statement.arguments}
        if len(given) < len(statement.attributes) + len(statement.arguments):
            raise Error("got an argument in both brackets, need it in one")
        label = given.pop("name", None)
        if label is not None and not (isinstance(label, Literal) and isinstance(label.value, str)):
            raise Error('name: need name = string("..")')
        source = (label.value if label is not None else statement.results[0][1],)
        if statement.op == "const":
            self.const(statement, given, source)
            return
        parameters = parameters_of(statement.op)
        if statement.op in IN_BRACKETS and (
            statement.arguments or not all(isinstance(v, Literal) for v in given.values())
        ):
            raise Error(
                f"got arguments in round brackets or names, need constants in square ones: {statement.op}()[..]"
            )
        if unknown := given.keys() - {p.name for p in parameters}:
            need = ", ".join(p.name for p in parameters)
            raise Error(f"got the argument {min(unknown)}, need some of {need}")
        arguments = {p.name: self.bound(p, given.get(p.name)) for p in parameters}
        self.check_floats(parameters, arguments)
        result = READ[statement.op](Rewriter(*source), **arguments)
        values = (result,) if isinstance(result, Value) else tuple(result)
        if len(values) != len(statement.results):
            raise Error(f"got {len(statement.results)} results, need {len(values)}")
        for (kind, name), value in zip(statement.results, values, strict=True):
            if _tensor(kind) != value.type:
                raise Error(f"got the type {kind} for {name}, need {_text(value.type)}")
            self.define(name, value)
            if statement.op.startswith("constexpr_"):
                self.constants.add(value)

    def const(self, statement: Statement, given: Mapping[str, Argument], source: tuple[str, ...]) -> None:
        if given.keys() != {"val"} or len(statement.results) != 1:
            raise Error("need one result and val = ..")
        (kind, name), literal = statement.results[0], given["val"]
        if not isinstance(literal, Literal) or literal.type != kind:
            raise Error(f"val: need {kind}(..), the type of {name}")
        self.define(name, self.literal(literal, source))

    # ---- arguments ----

    def bound(self, p: Parameter, given: Argument | None) -> Any:
        """Returns the value of an argument that the op's translation receives."""
        if given is None:
            if p.optional:
                return p.default
            why = ": text has no defaults" if p.insisted else ""
            raise Error(f"need the argument {p.name}{why}")
        try:
            several = not isinstance(given, (Name, Literal))
            if several != (p.kind == "values"):
                raise Error("need one value" if several else "need several values, as in (a, b)")
            if not isinstance(given, (Name, Literal)):
                return tuple(self.tensor(item) for item in given)
            if p.is_tensor:
                return self.tensor(given, constant=p.kind == "weight", stored=p.name == "lut")
            return _CONVERT[p.kind](self.item(given))
        except Error as error:
            raise Error(f"{p.name}: {error}") from None

    def item(self, given: Name | Literal) -> Value | str:
        if isinstance(given, Literal):
            return self.literal(given, ())
        if given.name not in self.values:
            raise Error(f"got {given.name}, need a value that is defined above")
        return self.values[given.name]

    def tensor(self, given: Name | Literal, constant: bool = False, stored: bool = False) -> Value:
        """Returns the tensor of an argument. constant: the tensor must be a constant. stored: an encoded constant is
        not decoded."""
        item = self.item(given)
        if isinstance(item, str):
            raise Error(f"got the string {item!r}, need a tensor")
        if not constant:
            return item
        if item not in self.constants:
            raise Error(f"got {_text(item.type)} that is computed, need a constant")
        if stored:
            return item
        dense = None if item.node.op == "const" else fold_node(item.node)  # the translation reads elements
        return dense[0] if dense else item

    def check_floats(self, parameters: Sequence[Parameter], arguments: dict[str, Any]) -> None:
        """Checks that numbers have x's dtype, and converts them to Python floats."""
        x = arguments.get("x")
        for p in parameters:
            value = arguments[p.name]
            if p.kind == "float" and isinstance(value, Value):
                if isinstance(x, Value) and value.dtype is not x.dtype:
                    raise Error(f"{p.name}: got {value.dtype}, need {x.dtype}, the dtype of x")
                arguments[p.name] = float(_data(value, ("float", "int", "uint")))

    def literal(self, literal: Literal, source: tuple[str, ...]) -> Value | str:
        if literal.type == ("string", None) or literal.type == ("string", ()):
            if not isinstance(literal.value, str):
                raise Error("got a number as a string, need a text in quotes")
            return literal.value
        kind = _tensor(literal.type)
        array = self.blob(literal.value, kind) if isinstance(literal.value, BlobFile) else _array(literal.value, kind)
        value = constant(array, source, kind.dtype)
        self.constants.add(value)
        return value

    def blob(self, at: BlobFile, kind: TensorType) -> Array:
        name, data = _core.blob_read(self.file(at.path), at.offset)
        if name != kind.dtype.name:
            raise Error(f"got {name} at offset {at.offset} of {at.path}, need {kind.dtype}")
        elements = data.view(kind.dtype.numpy)
        if elements.size != kind.size:
            raise Error(
                f"got {elements.size} elements at offset {at.offset} of {at.path}, need {kind.size} for {_text(kind)}"
            )
        return np.require(elements.reshape(kind.shape), requirements="A")


def _without_place(message: str) -> str:
    """Returns an op's error message without its [op at source], because the reader adds line and op."""
    return message.partition("] ")[2] if message.startswith("[") and "] " in message else message


def _tensor(kind: Type) -> TensorType:
    if kind.dtype not in DTYPES or kind.dtype in ("int64", "uint64", "fp64"):
        known = [name for name in DTYPES if name not in ("int64", "uint64", "fp64")]
        raise Error(f"got the dtype {kind.dtype}, need one of {', '.join(known)}")
    return tensor_type(kind.dtype, kind.shape or ())


def _text(kind: TensorType) -> Type:
    return Type(kind.dtype.name, kind.shape or None)


def _array(value: Any, kind: TensorType) -> Array:
    flat: list[Any] = []
    _flatten(value, kind.shape, flat)
    allowed = {"bool": (bool,), "float": (float, int, Bits)}.get(kind.dtype.kind, (int, Bits))
    for number in flat:
        if type(number) not in allowed:
            raise Error(f"got {number!r}, need {_NEED[kind.dtype.kind]}")
    if kind.dtype.kind == "bool":
        return np.array(flat, np.bool_).reshape(kind.shape)
    if kind.dtype.kind != "float":
        signed = kind.dtype.kind == "int"
        low, high = (
            (-(1 << kind.dtype.bits - 1), (1 << kind.dtype.bits - 1) - 1) if signed else (0, (1 << kind.dtype.bits) - 1)
        )
        if any(not low <= number <= high for number in flat):
            raise Error(f"got a number outside {low}..{high}, need {kind.dtype}")
        return np.array(flat, np.int64).astype(kind.dtype.numpy).reshape(kind.shape)
    if any(type(number) is Bits for number in flat):
        return _patterns(flat, kind)
    try:
        wide = np.array(flat, np.float64).reshape(kind.shape)
    except OverflowError:
        raise Error(f"got a number that {kind.dtype} does not hold") from None
    with np.errstate(over="ignore"):
        array = wide.astype(kind.dtype.numpy)
    if np.any(np.isfinite(wide) & ~np.isfinite(array.astype(np.float64))):
        raise Error(f"got a number that {kind.dtype} does not hold")
    return array


def _patterns(flat: Sequence[Any], kind: TensorType) -> Array:
    """Returns elements that are written as their bits, as in [0x3C00]."""
    if kind.dtype.bits != 16 or any(type(v) is not Bits or not 0 <= v < 1 << 16 for v in flat):
        raise Error("got hexadecimal integers, need all of them to be the 16 bits of an element, or as in 0x1p-3")
    return np.array(flat, np.uint16).view(kind.dtype.numpy).reshape(kind.shape)


_NEED = {"bool": "true or false", "float": "a number", "int": "an integer", "uint": "an integer"}


def _flatten(value: Any, shape: Sequence[int], flat: list[Any]) -> None:
    """Flattens nested lists of this shape. A single number stands for a tensor of one element."""
    if not isinstance(value, list):
        if any(d != 1 for d in shape):
            raise Error(f"got one number, need lists of the shape {tuple(shape)}")
        flat.append(value)
        return
    if not shape or len(value) != shape[0]:
        raise Error(f"got {len(value)} elements, need {shape[0] if shape else 'one number'}")
    if len(shape) == 1:
        flat.extend(value)
        return
    for item in value:
        if not isinstance(item, list):
            raise Error(f"got {item!r}, need a list for each axis")
        _flatten(item, shape[1:], flat)


# ---- attributes from constants ----


def _data(value: Value | str, kinds: Sequence[str] = ("float",), rank: int = 0) -> Array:
    if isinstance(value, str):
        raise Error(f"got the string {value!r}, need a number")
    if value.node.data is None:
        raise Error(f"got {_text(value.type)} that is computed, need a constant")
    if value.dtype.kind not in kinds or len(value.shape) != rank:
        need = "one" if rank == 0 else "a list"
        raise Error(f"got {_text(value.type)}, need {need} of {' or '.join(kinds)}")
    return value.node.data


def _string(value: Value | str) -> str:
    if not isinstance(value, str):
        raise Error(f"got {_text(value.type)}, need a string")
    return value


def _dtype(value: Value | str) -> DType:
    name = _string(value)
    return _tensor(Type(name, None)).dtype


def _float(value: Value | str) -> Value:
    _data(value, ("float", "int", "uint"))
    assert isinstance(value, Value)
    return value


_CONVERT: Mapping[str, Callable[[Value | str], Any]] = {
    "int": lambda v: int(_data(v, ("int", "uint"))),
    "ints": lambda v: tuple(_data(v, ("int", "uint"), 1).tolist()),
    "bool": lambda v: bool(_data(v, ("bool",))),
    "bools": lambda v: tuple(_data(v, ("bool",), 1).tolist()),
    "float": _float,
    "factor": lambda v: float(_data(v, ("int", "uint", "float"))),
    "str": _string,
    "dtype": _dtype,
}
