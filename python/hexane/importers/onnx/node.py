"""An ONNX node with the operands and attributes that its translation reads."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import onnx

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.ops import OPS
from hexane.ops.compose import Operand
from hexane.ops.fold import Folder


class NotConstant(Error):
    """Raised for an input that has to be a constant but is computed at run time. index: the index of this input."""

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


Result = Any  # a Value, or a tuple of them for an op with several results


def known(value: Value) -> Array | None:
    """Returns the elements of a constant, or None for another value. Params and states do not count as constants,
    because their contents may change."""
    return value.node.data if value.node.op == "const" else None


class TensorList(tuple[Value, ...]):
    """An ONNX value that is a sequence of tensors."""


NOTHING = TensorList()  # an optional value without an element; compared by identity

Item = Value | TensorList
Outputs = Sequence[Item] | None


def described(item: Item) -> str:
    """Returns the kind of an item, for messages."""
    if item is NOTHING:
        return "an optional value without an element"
    return f"a sequence of {len(item)} tensors" if isinstance(item, TensorList) else "a tensor"


Captured = Callable[[Item | None], Item | None]


@dataclass(frozen=True, slots=True)
class Counter:
    """The iteration number of a loop that is not unrolled. depth: how many bodies enclose the number, the loop's own
    body included."""

    value: Value
    depth: int


class Run(Protocol):
    """Translates a subgraph of a node for given inputs. step: the iteration, if it is a loop's body: an integer, or the
    body's input. captured: a function that returns the body's input for a value of the surrounding graph. trial: raise
    Error for an unsupported node, and report nothing.

    Returns the subgraph's outputs, or None if a node is unsupported, which is reported then.
    """

    def __call__(
        self,
        graph: onnx.GraphProto,
        given: Sequence[Item] = (),
        step: int | Value | None = None,
        captured: Captured | None = None,
        trial: bool = False,
    ) -> Outputs: ...


class Builder(Folder):
    """Applies ops for handlers. Returns a tuple if the op has several outputs."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Callable[..., Result]:
        return partial(self.apply, name)

    def apply(self, name: str, *inputs: Operand, **attrs: Any) -> Result:
        values, outputs = self.several(name, *inputs, **attrs), OPS[name].outputs
        return values if len(outputs) > 1 or outputs[0].endswith("*") else values[0]


class Attributes(dict[str, Any]):
    """Attributes that record which of them were read. Attributes that are not in `given` have the schema's defaults."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        super().__init__({**defaults, **given})
        self._pending = {name for name, value in given.items() if name not in defaults or defaults[name] != value}

    def __getitem__(self, name: str) -> Any:
        self._pending.discard(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self._pending.discard(name)
        return super().get(name, default)

    def __contains__(self, name: object) -> bool:
        self._pending.discard(str(name))
        return super().__contains__(name)

    def unread(self) -> list[str]:
        return sorted(self._pending)


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """A node. version: the opset that introduced the op's present meaning. attrs: with the schema's defaults."""

    op: str
    version: int
    inputs: tuple[Item | None, ...]
    attrs: Attributes
    outputs: tuple[str, ...]  # "" for an unused output.
    run: Run  # Translates a subgraph of the node.
    steps: tuple[int | Counter, ...] = ()  # Iteration of each enclosing Loop and Scan, outermost first.
    bodies: tuple[Captured, ...] = ()  # Captures of the enclosing bodies, outermost first.
    states: set[str] = field(default_factory=set)  # Names of all states in the model.
    updates: list[Value] = field(default_factory=list)  # Writes of states that bodies read.
    block: int = 0  # Channels in a block, for images in onnxruntime's blocked layout.
    _inputs_read: set[int] = field(default_factory=set)

    def has(self, index: int) -> bool:
        return self.optional(index) is not None

    def value(self, index: int) -> Value:
        value = self.optional(index)
        if value is None:
            raise Error(f"input {index}: got none, need a tensor")
        return value

    def optional(self, index: int) -> Value | None:
        self._inputs_read.add(index)
        item = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(item, TensorList):
            raise Error(f"input {index}: got {described(item)}, need a tensor")
        return item

    def sequence(self, index: int) -> TensorList:
        item = self.item(index)
        if not isinstance(item, TensorList) or item is NOTHING:
            raise Error(f"input {index}: got {described(item)}, need a sequence")
        return item

    def item(self, index: int) -> Item:
        """Returns an input that is a tensor or a sequence."""
        self._inputs_read.add(index)
        item = self.inputs[index] if index < len(self.inputs) else None
        if item is None:
            raise Error(f"input {index}: got none, need a tensor or a sequence")
        return item

    def array(self, index: int) -> Array:
        """Returns the elements of a constant input. Raises Error if the input is computed at run time."""
        node = self.value(index).node
        if node.op != "const":
            raise NotConstant(f"input {index} is computed at run time (by {node.where}), need a constant", index)
        assert node.data is not None
        return node.data

    def scalar(self, index: int) -> Array:
        """Returns a constant input of one element as a rank-0 array."""
        array = self.array(index)
        if array.size != 1:
            raise Error(f"input {index}: got {array.size} elements, need 1")
        return array.reshape(())

    def ints(self, index: int) -> tuple[int, ...]:
        """Returns a constant input of integers, from a vector or one number."""
        array = self.array(index)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise Error(f"input {index}: got {array.dtype}{list(array.shape)}, need a vector of integers")
        return tuple(int(v) for v in array.reshape(-1))

    def integer(self, index: int) -> int:
        """Returns a constant input of one integer."""
        values = self.ints(index)
        if len(values) != 1:
            raise Error(f"input {index}: got {len(values)} elements, need 1")
        return values[0]

    def check_read(self, ignores: Collection[int | str]) -> None:
        """Raises Error for an input or attribute that the translation has not read, since it may change the result."""
        unread: list[int | str] = [i for i, v in enumerate(self.inputs) if v is not None and i not in self._inputs_read]
        for what in [*unread, *self.attrs.unread()]:
            if what not in ignores:
                named = f"input {what}" if isinstance(what, int) else f"attribute {what!r}"
                raise Error(f"{named} is given, which Hexane does not know in this op")

    def wants(self, index: int) -> bool:
        """True if the node names this output."""
        return index < len(self.outputs) and self.outputs[index] != ""


def axis_of(axis: int, rank: int) -> int:
    """Returns a non-negative axis."""
    if not -rank <= axis < rank:
        raise Error(f"axis: got {axis}, need {-rank}..{rank - 1} for rank {rank}")
    return axis % rank
