"""The registry of TFLite's ops, by operator name, and the context from which they read their operands."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from hexane.dtypes import DTYPES, DType
from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreml.known import known_array
from hexane.importers.tflite.model import Grid, Operator, Tensor
from hexane.ops.compose import Builder

if TYPE_CHECKING:
    from hexane.importers.tflite.translate import Scope, Translator

INT8, UINT8, INT16 = DTYPES["int8"], DTYPES["uint8"], DTYPES["int16"]
COMPLEX = "COMPLEX64"
NARROW = (INT8, UINT8, INT16)


class Context:
    """The context of an operator. b: applies ops. o: the operator's options."""

    __slots__ = ("b", "o", "op", "scope", "translator")

    def __init__(self, b: Builder, op: Operator, scope: "Scope", translator: "Translator") -> None:
        self.b, self.op, self.scope, self.translator = b, op, scope, translator
        self.o: Mapping[str, Any] = op.options

    def has(self, i: int) -> bool:
        return i < len(self.op.inputs) and self.op.inputs[i] >= 0

    def x(self, i: int = 0) -> Value:
        """Returns an operand. Raises Error if the operator lacks this operand, or if it is complex."""
        if not self.has(i):
            raise Error(f"got no operand {i}, need one")
        if self.is_complex(i):
            raise Error("got complex numbers, need their real parts or magnitudes")
        return self.translator.value(self.scope, self.op.inputs[i])

    def pairs(self, i: int = 0) -> Value:
        """Returns a complex operand, with real and imaginary parts along a last axis of 2."""
        if self.t(i).type != COMPLEX:
            raise Error(f"got {self.t(i).type}, need complex numbers")
        return self.translator.value(self.scope, self.op.inputs[i])

    def is_complex(self, i: int = 0) -> bool:
        return self.t(i).type == COMPLEX

    def any(self, i: int = 0) -> tuple[Value, tuple[int, ...]]:
        """Returns an operand of any dtype, and its axes that the value has beyond the file's tensor: (2,) for complex
        numbers."""
        return (self.pairs(i), (2,)) if self.is_complex(i) else (self.x(i), ())

    def maybe(self, i: int) -> Value | None:
        return self.x(i) if self.has(i) else None

    def t(self, i: int = 0) -> Tensor:
        if not self.has(i):
            raise Error(f"got no operand {i}, need one")
        return self.scope.graph.tensors[self.op.inputs[i]]

    def out(self, i: int = 0) -> Tensor:
        if i >= len(self.op.outputs) or self.op.outputs[i] < 0:
            raise Error(f"got no result {i}, need one")
        return self.scope.graph.tensors[self.op.outputs[i]]

    def known(self, i: int) -> Array:
        """Returns the elements of an operand. Raises ComputedError for an operand that is not a constant."""
        return known_array(self.x(i))

    def ints(self, i: int) -> tuple[int, ...]:
        return tuple(int(v) for v in self.known(i).reshape(-1))

    def grid(self, i: int = 0) -> Grid:
        return grid_of(self.t(i))

    @property
    def out_grid(self) -> Grid:
        return grid_of(self.out())

    @property
    def is_integer(self) -> bool:
        """True if the first operand is quantised: an integer of at most 16 bits with a scale."""
        return self.x().dtype in NARROW and self.t().grid is not None


def grid_of(tensor: Tensor) -> Grid:
    if tensor.grid is None:
        raise Error(f"got no scale for {tensor.name!r} of {tensor.type}, need one")
    return tensor.grid


def limits(dtype: DType) -> tuple[int, int]:
    info = np.iinfo(dtype.numpy)
    return int(info.min), int(info.max)


HANDLERS: dict[str, Callable[[Context], Any]] = {}


def reads(*names: str) -> Callable[[Callable[[Context], Any]], Callable[[Context], Any]]:
    def register(read: Callable[[Context], Any]) -> Callable[[Context], Any]:
        for name in names:
            assert name not in HANDLERS, name
            HANDLERS[name] = read
        return read

    return register
