"""A MIL program as a tree of statements. str() returns its text. The tree knows the grammar, not the ops.

program(1.3)
[buildInfo = dict<string, string>({{"coremlc-version", "3505.4.1"}})]
{
    func main<ios18>(tensor<fp16, [1, 8]> x) {
        tensor<fp16, [1, 8]> y = relu(x = x)[name = string("y")];
    } -> (y);
}
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

HEADER = """program(1.3)
[buildInfo = dict<string, string>({{"coremlc-component-MIL", "3510.2.1"}, {"coremlc-version", "3505.4.1"}, \
{"coremltools-component-milinternal", ""}, {"coremltools-version", "9.0"}})]
"""


class Type(NamedTuple):
    """tensor<fp16, [1, 8]>, or the type of a scalar: fp16, string. A Type's shape is None for a scalar."""

    dtype: str
    shape: tuple[int, ...] | None

    def __str__(self) -> str:
        return self.dtype if self.shape is None else f"tensor<{self.dtype}, [{', '.join(map(str, self.shape))}]>"


class StateType(Type):
    """state<tensor<fp16, [1, 8]>>: the type of an input whose contents last from call to call."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"state<{Type(*self)}>"


class BlobFile(NamedTuple):
    """BLOBFILE(path = string("@model_path/weights/weights.bin"), offset = uint64(64))"""

    path: str
    offset: int

    def __str__(self) -> str:
        return f"BLOBFILE(path = string({_value(self.path)}), offset = uint64({self.offset}))"


class Bits(int):
    """0x3C00: an integer, or the bits of a float."""


class Name(NamedTuple):
    """The name of a value, used as an argument. at: the name's offset in a parsed text."""

    name: str
    at: int = 0

    def __str__(self) -> str:
        return self.name


class Literal(NamedTuple):
    """TYPE(value): a number, bool or string, lists of them, a NumPy array, or a BlobFile."""

    type: Type
    value: Any
    at: int = 0

    def __str__(self) -> str:
        return f"{_type(self.type)}({_value(self.value)})"


Argument = Name | Literal | tuple["Name | Literal", ...]


class Statement(NamedTuple):
    """TYPE name, .. = op(argument = .., ..)[attribute = .., ..]; without results there is no TYPE name. at: the
    statement's offset in a parsed text. blocks: of a loop or a branch, in Core ML's own programs."""

    results: tuple[tuple[Type, str], ...]
    op: str
    arguments: Mapping[str, Argument]
    attributes: Mapping[str, Argument]
    at: int = 0
    blocks: tuple["NestedBlock", ...] = ()

    def __str__(self) -> str:
        assert not self.blocks, "the engine has no blocks"
        attributes = f"[{_arguments(self.attributes)}]" if self.attributes else ""
        return f"{_declared(self.results)} = {self.op}({_arguments(self.arguments)}){attributes};"


class NestedBlock(NamedTuple):
    """name(TYPE input, ..) { statements } -> (output, ..)"""

    inputs: tuple[tuple[Type, str], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[Name, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function of a program. str() returns the text of a program with this function only."""

    name: str
    opset: str
    inputs: tuple[tuple[Type, str], ...]
    statements: tuple[Statement, ...]
    outputs: tuple[Name, ...]

    def __str__(self) -> str:
        body = "".join([f"        {statement}\n" for statement in self.statements])
        head = f"    func {self.name}<{self.opset}>({_declared(self.inputs)}) {{\n"
        return f"{HEADER}{{\n{head}{body}    }} -> ({', '.join(map(str, self.outputs))});\n}}\n"


def _declared(values: Sequence[tuple[Type, str]]) -> str:
    return ", ".join([f"{_type(kind)} {name}" for kind, name in values])


def _arguments(given: Mapping[str, Argument]) -> str:
    return ", ".join([f"{name} = {_argument(argument)}" for name, argument in given.items()])


def _argument(given: Argument) -> str:
    if isinstance(given, Name):
        return given.name
    return str(given) if isinstance(given, Literal) else f"({', '.join(map(_argument, given))})"


@lru_cache(maxsize=1 << 12)
def _type(kind: Type) -> str:
    return str(kind)


def _value(value: Any) -> str:
    """Returns the text of a value. Floats are exact."""
    if isinstance(value, float):
        return _trimmed(value.hex()) if math.isfinite(value) else str(value)
    if isinstance(value, (list, tuple)) and not isinstance(value, BlobFile):
        return "[" + ", ".join([_value(item) for item in value]) + "]"
    if isinstance(value, np.ndarray):
        return _array(value.tobytes(), value.dtype, value.shape)
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'
    if isinstance(value, Bits):
        return f"0x{value:X}"
    return str(value).lower() if isinstance(value, bool) else str(value)


@lru_cache(maxsize=1 << 16)
def _trimmed(number: str) -> str:
    """Returns a hexadecimal float without trailing zeros: 0x1.8p-3 for 0x1.8000000000000p-3."""
    mantissa, _, exponent = number.partition("p")
    return f"{mantissa.rstrip('0').rstrip('.') if '.' in mantissa else mantissa}p{exponent}"


@lru_cache(maxsize=16)
def _array(data: bytes, dtype: "np.dtype[Any]", shape: tuple[int, ...]) -> str:
    """Returns the text of an array, cached because the layers of a network have equal attention masks."""
    array = np.frombuffer(data, dtype).reshape(shape)
    return _value((array.astype(np.int64) if dtype.kind == "V" else array).tolist())  # integers of less than a byte
