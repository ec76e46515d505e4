"""Nodes that remember which of their attributes were read: a form of a node that leaves one out computes something
else."""

from collections.abc import Iterator, Mapping
from typing import Any

from hexane.errors import Error
from hexane.graph import AttrValue, Node, TensorType, Value
from hexane.ops import OPS


class IgnoredError(Error):
    """A lowering or form of a node ignores one of its attributes: a bug of this library, not of the network."""


class _Recorded(Mapping[str, AttrValue]):
    """Attributes of a node. Reading one notes its name."""

    __slots__ = ("_attrs", "read")

    def __init__(self, attrs: Mapping[str, AttrValue]) -> None:
        self._attrs = attrs
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> AttrValue:
        self.read.add(name)
        return self._attrs[name]

    def __contains__(self, name: object) -> bool:
        return name in self._attrs

    def __iter__(self) -> Iterator[str]:
        return iter(self._attrs)

    def __len__(self) -> int:
        return len(self._attrs)


class RecordedNode(Node):
    """A view of a node for one form of it. It has the node's values, and itself with other inputs.

    Reading the types, or values, counts as reading the attributes that say nothing else (`Attr.typed`).
    """

    __slots__ = ("_attrs", "_node")

    def __init__(self, node: Node) -> None:
        self._node, self._attrs = node, _Recorded(node.attrs)
        self.op, self.inputs, self.uid, self.data = node.op, node.inputs, node.uid, node.data
        self._kind, self._sources, self.is_constant = node._kind, node._sources, node.is_constant
        self.attrs = self._attrs

    @property
    def types(self) -> tuple[TensorType, ...]:  # type: ignore[override]
        self._read_types()
        return self._node.types

    @property
    def values(self) -> tuple[Value, ...]:
        self._read_types()
        return self._node.values

    def with_inputs(self, inputs: tuple[Value | None, ...]) -> Node:
        return self._node.with_inputs(inputs)

    def check(self, form: str) -> None:
        """Raises IgnoredError for an attribute of the node that is not its record's default and that the form has not
        read."""
        read = self._attrs.read
        if len(read) == len(self._attrs):
            return
        declared = OPS[self.op].attrs or {}
        for name, value in self._node.attrs.items():
            if name not in read and name in declared and value != declared[name].default:
                raise IgnoredError(
                    f"[{self.where}] {name}: got {value!r}, which the {form} of {self.op} ignores, need it read"
                )

    def _read_types(self) -> None:
        for name, attr in (OPS[self.op].attrs or {}).items():
            if attr.typed:
                self._attrs.read.add(name)


def recorded(node: Node) -> Any:
    """A view of the node; nodes without attributes as they are."""
    return RecordedNode(node) if node.attrs else node


def check(view: Node, form: str) -> None:
    """`RecordedNode.check`; nothing for a node that has no attributes."""
    if isinstance(view, RecordedNode):
        view.check(form)
