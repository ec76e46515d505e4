"""One ONNX node as its translation sees it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from hexane.errors import Error
from hexane.graph import Array, Value
from hexane.ops.fold import Builder as Builder

Result = Any  # what a Builder returns: a Value, or several


class TensorList(tuple[Value, ...]):
    """A sequence of tensors, as an ONNX value may be."""


Item = Value | TensorList


class Attributes(dict[str, Any]):
    """Attributes that remember which of them were looked at. Those that are not `given` are the schema's defaults."""

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


# What may be given without a meaning for inference, for dtypes we have, or beside the choice another attribute makes.
IRRELEVANT: Mapping[str, tuple[str, ...]] = {
    "BatchNormalization": ("attribute 'momentum'",),
    "Cast": ("attribute 'round_mode'", "attribute 'saturate'"),
    "CastLike": ("attribute 'round_mode'", "attribute 'saturate'"),
    "Dropout": ("input 1", "attribute 'ratio'", "attribute 'seed'"),
    "LayerNormalization": ("attribute 'stash_type'",),
    "GroupNormalization": ("attribute 'stash_type'",),
    "RMSNormalization": ("attribute 'stash_type'",),
    "MaxPool": ("attribute 'storage_order'",),
    "Pad": ("attribute 'value'", "input 2"),
    "QuantizeLinear": ("attribute 'saturate'",),
    "Resize": (
        "input 1", "input 2", "attribute 'cubic_coeff_a'", "attribute 'exclude_outside'",
        "attribute 'extrapolation_value'", "attribute 'keep_aspect_ratio_policy'", "attribute 'nearest_mode'",
    ),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class OnnxNode:
    """`version` is the opset in which the op took its present meaning; `attrs` has the schema's defaults filled in."""

    op: str
    version: int
    inputs: tuple[Item | None, ...]
    attrs: Mapping[str, Any]
    outputs: tuple[str, ...]  # "" where one is not wanted
    steps: tuple[int, ...] = ()  # of the Loops and Scans around it, outermost first
    _inputs_read: set[int] = field(default_factory=set)

    def has(self, index: int) -> bool:
        return self.optional(index) is not None

    def value(self, index: int) -> Value:
        found = self.optional(index)
        if found is None:
            raise Error(f"input {index}: got none, need a tensor")
        return found

    def optional(self, index: int) -> Value | None:
        self._inputs_read.add(index)
        found = self.inputs[index] if index < len(self.inputs) else None
        if isinstance(found, TensorList):
            raise Error(f"input {index}: got a sequence of {len(found)} tensors, need a tensor")
        return found

    def sequence(self, index: int) -> TensorList:
        found = self.item(index)
        if not isinstance(found, TensorList):
            raise Error(f"input {index}: got a tensor, need a sequence")
        return found

    def item(self, index: int) -> Item:
        """A tensor or a sequence."""
        self._inputs_read.add(index)
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise Error(f"input {index}: got none, need a tensor or a sequence")
        return found

    def array(self, index: int) -> Array:
        """A constant input. Raises Error where it is computed at run time."""
        node = self.value(index).node
        if node.op != "const":
            raise Error(f"input {index} is computed at run time (by {node.where}), need a constant")
        assert node.data is not None
        return node.data

    def scalar(self, index: int) -> Array:
        """A constant input of one element, as a rank-0 array."""
        array = self.array(index)
        if array.size != 1:
            raise Error(f"input {index}: got {array.size} elements, need 1")
        return array.reshape(())

    def ints(self, index: int) -> tuple[int, ...]:
        """A constant input of integers: a vector, or one number."""
        array = self.array(index)
        if array.dtype.kind not in "iu" or array.ndim > 1:
            raise Error(f"input {index}: got {array.dtype}{list(array.shape)}, need a vector of integers")
        return tuple(int(v) for v in array.reshape(-1))

    def integer(self, index: int) -> int:
        """A constant input of one integer."""
        values = self.ints(index)
        if len(values) != 1:
            raise Error(f"input {index}: got {len(values)} elements, need 1")
        return values[0]

    def check_read(self) -> None:
        """Raises Error for an input or attribute that was given and that nothing looked at: it may mean something."""
        unread = [f"input {i}" for i, v in enumerate(self.inputs) if v is not None and i not in self._inputs_read]
        if isinstance(self.attrs, Attributes):
            unread += [f"attribute {name!r}" for name in self.attrs.unread()]
        for what in unread:
            if what not in IRRELEVANT.get(self.op, ()):
                raise Error(f"{what} is given, which Hexane does not know in this op")

    def wants(self, index: int) -> bool:
        """Is this output named?"""
        return index < len(self.outputs) and self.outputs[index] != ""


Handler = Callable[[Builder, OnnxNode], Result]


def axis_of(axis: int, rank: int) -> int:
    """`axis` from the front."""
    if not -rank <= axis < rank:
        raise Error(f"axis: got {axis}, need {-rank}..{rank - 1} for rank {rank}")
    return axis % rank
