"""Parses the printed text of a graph."""

import re
from ast import literal_eval
from collections.abc import Mapping
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, integers
from hexane.errors import Error
from hexane.graph import Array, EpilogueSlot, Graph, Port, TensorType, Value, constant, tensor_type, unique
from hexane.ops import OPS, apply

_NAME = r'(?:[A-Za-z_]\w*|"(?:[^"\\]|\\.)*")'
_VALUE = rf"%(?:{_NAME}|\d+)"
_TYPE = r"\w+\[[\d, ]*\]"
_BODY = re.compile(r"(\w+): (graph .*)$")
_HEADER = re.compile(rf"graph ({_NAME}) \((.*)\)$")
_INPUT = re.compile(rf"({_VALUE}): ({_TYPE})")
_LINE = re.compile(rf"({_VALUE}(?:, {_VALUE})*) = ([\w.]+)(.*?) : ({_TYPE}(?:, {_TYPE})*)(?:  # (.*))?$")
_CALL = re.compile(rf"\(((?:none|{_VALUE}|, )*)\)(?: \{{(.*)\}})?$")
_NESTED = r"(?:[^()]|\((?:[^()]|\([^()]*\))*\))*"  # parentheses of up to three levels
_ATTR = re.compile(rf"(\w+)=((?:\({_NESTED}\)|\"(?:[^\"\\]|\\.)*\"|[^,]+))(?:, |$)")
_SLOT = re.compile(r"([\w.]+)\(((?:[^()]|\([^()]*\))*)\)")
_RETURN = re.compile(rf"({_NAME})=({_VALUE})(?:\[(\d+): ({_NAME})\])?")


def parse(source: str, constants: Mapping[str, Array] | None = None) -> Graph:
    """Returns the graph of a printed text. constants: the arrays that the text names by hash (`Graph.constants()`).

    Raises Error, with the line, for text that is not a graph, and for ops that refuse their inputs.
    """
    reader = _Reader(constants or {})
    around: list[tuple[str, _Reader]] = []  # for each enclosing body its name, and the reader around it
    lines = source.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            if number > 1 and (body := _BODY.match(line.strip())):
                around.append((body[1], reader))
                reader = _Reader(constants or {})
                reader.line(body[2], first=True)
                continue
            reader.line(line.strip(), first=number == 1)
            if around and reader.outputs:
                (name, outer), graph = around.pop(), reader.graph()
                outer.bodies[name] = graph
                reader = outer
        except Error as error:
            raise Error(f"[line {number}] {error}") from None
        except (ValueError, OverflowError, SyntaxError, KeyError) as error:
            raise Error(f"[line {number}] cannot be read: {error}; got {line.strip()!r}") from None
    if not reader.outputs or around:
        raise Error(f"[line {len(lines)}] got no return, need one")
    return reader.graph()


class _Reader:
    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.constants = constants
        self.values: dict[str, Value] = {}
        self.name = ""
        self.inputs: list[Value] = []
        self.outputs: list[Port] = []
        self.updates: list[Value] = []
        self.bodies: dict[str, Graph] = {}  # bodies that the next node owns

    def graph(self) -> Graph:
        return Graph(tuple(self.inputs), tuple(self.outputs), tuple(self.updates), self.name)

    def line(self, line: str, first: bool) -> None:
        if first:
            self.header(line)
        elif line.startswith("update "):
            self.updates.append(self.value(line.removeprefix("update ")))
        elif line.startswith("return "):
            self.outputs = [
                Port(_plain(n), self.value(v), _plain(length) if length else "", int(axis or 0))
                for n, v, axis, length in _RETURN.findall(line)
            ]
        elif line and not line.startswith("#"):
            self.node(line)

    def header(self, line: str) -> None:
        match = _HEADER.match(line)
        if not match:
            raise Error(f"got {line!r}, need `graph NAME (%input: type, ...)`")
        self.name = _plain(match[1])
        for name, kind in _INPUT.findall(match[2]):
            value = unique("input", _plain(name[1:]), _type(kind))
            self.values[name] = value
            self.inputs.append(value)

    def node(self, line: str) -> None:
        match = _LINE.match(line)
        if not match:
            raise Error(f"got {line!r}, need `%n = op(...) : type`")
        names, op, rest = match[1].split(", "), match[2], match[3]
        types = [_type(t) for t in re.findall(_TYPE, match[4])]
        sources = tuple(match[5].split(", ")) if match[5] else ()
        if op == "const":
            results: tuple[Value, ...] = (constant(self.array(rest.strip(), types[0]), sources),)
        elif op in ("param", "state"):
            name, _, data = rest.strip().partition(" ") if rest.strip()[0] != '"' else _split_quoted(rest.strip())
            array = self.array(data, types[0]) if data else None
            results = (unique(op, _plain(name), types[0], array, sources),)
        else:
            results = self.call(op, rest, sources)
        if [v.type for v in results] != types:
            raise Error(f"got the types {', '.join(map(str, types))}, need {', '.join(str(v.type) for v in results)}")
        self.values.update(zip(names, results, strict=True))

    def call(self, op: str, rest: str, sources: tuple[str, ...]) -> tuple[Value, ...]:
        match = _CALL.match(rest)
        if not match or op not in OPS:
            raise Error(f"got {op}{rest}, need an op of the catalogue with its operands")
        inputs = [None if v == "none" else self.value(v) for v in re.findall(rf"none|{_VALUE}", match[1])]
        attrs = {k: _slots(v) if k == "epilogue" else _attr(v) for k, v in _ATTR.findall(match[2] or "")}
        attrs.update(self.bodies)
        self.bodies = {}
        return apply(OPS[op], inputs, attrs, sources)

    def value(self, name: str) -> Value:
        if name not in self.values:
            raise Error(f"got {name}, need a value defined above")
        return self.values[name]

    def array(self, data: str, kind: TensorType) -> Array:
        if data.startswith("@"):
            if data not in self.constants:
                raise Error(f"got the constant {data}, need its array in `constants`")
            return self.constants[data]
        elements = literal_eval(re.sub(r"\binf\b", "1e999", data))
        exact = kind.dtype.kind in ("int", "uint")
        array = integers(elements, kind.dtype.numpy) if exact else np.array(elements, kind.dtype.numpy)
        return array.reshape(kind.shape)


def _type(text: str) -> TensorType:
    name, _, dims = text.partition("[")
    if name not in DTYPES:
        raise Error(f"got the dtype {name}, need one of {', '.join(DTYPES)}")
    return tensor_type(name, [int(d) for d in dims.rstrip("]").split(",") if d.strip()])


def _attr(text: str) -> Any:
    return text if text in DTYPES else literal_eval(re.sub(r"\binf\b", "1e999", _quote_words(text)))


def _slots(text: str) -> tuple[EpilogueSlot, ...]:
    """Parses slots as an EpilogueSlot prints them: (add(3), clip(alpha=0.0, beta=6.0))."""
    result = []
    for op, arguments in _SLOT.findall(text):
        named = tuple((k, _attr(v)) for k, v in _ATTR.findall(arguments))
        result.append(EpilogueSlot(op, named, int(arguments) if arguments and not named else None))
    return tuple(result)


def _quote_words(text: str) -> str:
    """Quotes plain words: (add, 0.0) -> ("add", 0.0)."""
    return re.sub(r'"(?:[^"\\]|\\.)*"|\b(?!True\b|False\b|inf\b|nan\b|e\d)([A-Za-z_]\w*)',
                  lambda m: m[0] if m[1] is None else repr(m[1]), text)  # fmt: skip


def _plain(name: str) -> str:
    return str(literal_eval(name)) if name.startswith('"') else name


def _split_quoted(text: str) -> tuple[str, str, str]:
    match = re.match(_NAME, text)
    assert match
    return match[0], " ", text[match.end() :].strip()
