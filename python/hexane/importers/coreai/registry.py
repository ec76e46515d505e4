"""The registry of Core AI operations: a table from a name to the function that writes it in the catalogue's ops."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.importers.coreai.attributes import Other
from hexane.importers.coreai.encoded import decoded, settled
from hexane.importers.coreai.operations import Operation, Result
from hexane.ops.compose import Builder

if TYPE_CHECKING:
    from hexane.importers.coreai.translate import Translator


class Complex:
    """A complex tensor, as its real and imaginary parts."""

    __slots__ = ("imaginary", "real")

    def __init__(self, real: Value, imaginary: Value) -> None:
        self.real, self.imaginary = real, imaginary


class Sparse:
    """A sparse constant: its dense elements, and a mask of the elements that the file stores. A stored element may be
    0."""

    __slots__ = ("dense", "mask")

    def __init__(self, dense: Value, mask: Array) -> None:
        self.dense, self.mask = dense, mask


Item = Value | Complex | Sparse | Other
Found = Item | Sequence[Item] | None


@dataclass(frozen=True, slots=True)
class Context:
    """The arguments of a handler. b: applies ops. operation: the one to translate. operands: its inputs."""

    translator: "Translator"
    operation: Operation
    operands: tuple[Item, ...]
    b: Builder

    def fail(self, text: str) -> NoReturn:
        raise Error(text)

    def value(self, index: int) -> Value:
        """Returns the tensor of an operand. Raises Error if the operand is no real tensor."""
        item = self.operands[index] if index < len(self.operands) else None
        item = item.dense if isinstance(item, Sparse) else item
        if not isinstance(item, Value):
            what = "a complex tensor" if isinstance(item, Complex) else "none"
            self.fail(f"got {what} for operand {index}, need a tensor of real numbers")
        return settled(item)

    def values(self) -> list[Value]:
        return [self.value(i) for i in range(len(self.operands))]

    def array(self, index: int) -> Array:
        """Returns the numbers of an operand that decides shapes or axes. Raises Error for an operand that is computed
        at run time."""
        value = decoded(self.value(index))
        if value.node.op != "const" or value.node.data is None:
            self.fail(f"operand {index} decides shapes or axes and is computed at run time, need a constant")
        return value.node.data

    def integers(self, index: int) -> tuple[int, ...]:
        return tuple(int(i) for i in np.atleast_1d(self.array(index)).ravel())

    def integer(self, index: int) -> int:
        numbers = self.integers(index)
        if len(numbers) != 1:
            self.fail(f"got {len(numbers)} numbers for operand {index}, need one")
        return numbers[0]

    @property
    def results(self) -> tuple[Result, ...]:
        return self.operation.results

    def setting(self, index: int = 0) -> Any:
        """Returns a property of the operation, by its index in the alphabetical order of names."""
        return self.translator.asset.setting(self.operation, index)


Handler = Callable[[Context], Found]
HANDLERS: dict[str, Handler] = {}
COMPOSITES: dict[str, Callable[[Context, dict[str, Any]], Found]] = {}


def handled(name: str, context: Context) -> Found:
    """Returns the values of an operation. Raises Error for an unknown operation, and if the operands do not fit it."""
    if name not in HANDLERS:
        raise Error("Hexane does not have it")
    try:
        return HANDLERS[name](context)
    except (ValueError, IndexError, KeyError, OverflowError) as error:
        raise Error(f"its operands do not fit: {error}") from None


def handles(*names: str) -> Callable[[Handler], Handler]:
    """Registers a handler for operations, by names without the version: `primitive.reshape` stands for `.._v1` and
    `_v2`."""

    def register(handler: Handler) -> Handler:
        for name in names:
            HANDLERS[name] = handler
        return handler

    return register


def composite(*names: str) -> Callable[[Any], Any]:
    """Registers a function that translates private functions with these descriptions."""

    def register(handler: Any) -> Any:
        for name in names:
            COMPOSITES[name] = handler
        return handler

    return register
