"""Adds operations to a function of an asset: constants, primitives, and operations with a body."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hexane.coreai.table import REDUCTIONS, STEP_OF_REDUCTION
from hexane.emit.coreai.asset import ELEMENT_OF, AssetWriter
from hexane.emit.coreai.bytecode import OperationRecord, WrittenBody, WrittenValue
from hexane.graph import Array, TensorType, tensor_type

YIELD = "dataflow.yield_v1"
Fill = Callable[..., "Typed"]


class Typed:
    """A value and its type."""

    __slots__ = ("type", "value")

    def __init__(self, value: WrittenValue, kind: TensorType) -> None:
        self.value, self.type = value, kind

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape


class Scope:
    """The operations of a function or of a body. location: the index of the attribute with the operations' source
    location."""

    def __init__(self, writer: AssetWriter, location: int | None = None) -> None:
        self.writer, self.location = writer, location
        self.operations: list[OperationRecord] = []

    def value(self, kind: TensorType) -> Typed:
        return Typed(WrittenValue(self.writer.tensor(kind.shape, ELEMENT_OF[kind.dtype.name])), kind)

    def const(self, array: Array, dtype: Any = None) -> Typed:
        """Adds a constant. dtype: needed if it differs from the array's dtype."""
        kind = tensor_type(dtype or array.dtype, array.shape)
        constant = self.writer.constant(array, ELEMENT_OF[kind.dtype.name])
        constant.location = self.location
        self.operations.append(constant)
        return Typed(constant.results[0], kind)

    def axes(self, *axes: int) -> Typed:
        return self.const(np.array(axes, np.int32))

    def scalar(self, number: int) -> Typed:
        return self.const(np.array(number, np.int32))

    def extents(self, shape: Sequence[int]) -> Typed:
        return self.const(np.array(shape, np.uint32))

    def number(self, x: float, like: Typed) -> Typed:
        """Adds a number in the dtype of another value."""
        return self.const(np.array(x, like.type.dtype.numpy), like.type.dtype)

    def add(
        self,
        name: str,
        operands: Sequence[Typed],
        kind: TensorType,
        *,
        settings: Sequence[int] | None = None,
        bodies: Sequence[WrittenBody] = (),
    ) -> Typed:
        """Adds an operation with one result."""
        return self.append(name, operands, self.value(kind), settings=settings, bodies=bodies)

    def append(
        self,
        name: str,
        operands: Sequence[Typed],
        result: Typed,
        *,
        settings: Sequence[int] | None = None,
        bodies: Sequence[WrittenBody] = (),
    ) -> Typed:
        """Adds an operation that has this result."""
        self.operations.append(
            OperationRecord(
                name,
                [v.value for v in operands],
                (result.value,),
                settings,
                bodies=bodies,
                isolated=bool(bodies),
                location=self.location,
            )
        )
        return result

    def composite(self, name: str, operands: Sequence[Typed], kind: TensorType, fill: Fill) -> Typed:
        """Adds an operation with a body. fill: a function that writes the body into a scope, from its arguments."""
        return self.add(name, operands, kind, bodies=(self.body([v.type for v in operands], fill),))

    def body(self, types: Sequence[TensorType], fill: Fill) -> WrittenBody:
        inner = Scope(self.writer, self.location)
        arguments = [inner.value(kind) for kind in types]
        result = fill(inner, *arguments)
        inner.operations.append(OperationRecord(YIELD, (result.value,), location=self.location))
        return WrittenBody([v.value for v in arguments], inner.operations)

    # ---- operations that several forms use ----

    def broadcast(self, x: Typed, shape: tuple[int, ...]) -> Typed:
        if x.shape == shape:
            return x
        kind = tensor_type(x.type.dtype, shape)
        return self.add("primitive.broadcast_to_v1", (x, self.extents(shape)), kind)

    def binary(self, name: str, x: Typed, y: Typed, kind: TensorType) -> Typed:
        """Adds an operation on two values of one shape, or one that broadcasts them."""
        if x.shape == y.shape == kind.shape:
            return self.add(f"primitive.{name}_v1", (x, y), kind)

        def fill(s: Scope, a: Typed, b: Typed) -> Typed:
            wide = (s.broadcast(a, kind.shape), s.broadcast(b, kind.shape))
            return s.add(f"primitive.{name}_v1", wide, kind)

        return self.composite(f"broadcasting_{name}_v1", (x, y), kind, fill)

    def reshape(self, x: Typed, shape: Sequence[int]) -> Typed:
        if x.shape == tuple(shape):
            return x
        kind = tensor_type(x.type.dtype, shape)
        return self.add("primitive.reshape_v2", (x, self.const(np.array(shape, np.int32))), kind)

    def reduce(self, step: str, x: Typed, axes: Sequence[int], first: float) -> Typed:
        """Adds a reduction over axes, which keep extent 1."""
        shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
        kind, one = tensor_type(x.type.dtype, shape), tensor_type(x.type.dtype, ())
        name = next(REDUCTIONS[op] for op, known in STEP_OF_REDUCTION.items() if known == step)

        def fill(s: Scope, a: Typed, along: Typed) -> Typed:
            inner = s.body((one, one), lambda t, p, q: t.add(f"primitive.{step}_v1", (p, q), one))
            return s.add("primitive.reduce_v1", (a, along, s.number(first, a)), kind, bodies=(inner,))

        return self.composite(f"reduce_{name}_v1", (x, self.axes(*axes)), kind, fill)
