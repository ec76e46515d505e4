"""Nodes that record which attributes were read. A form of a node that ignores an attribute would compute something
else."""

from collections.abc import Iterator, Mapping
from typing import Any

from hexane.errors import Error
from hexane.graph import AttrValue, Node, TensorType, Value
from hexane.ops import OPS


class IgnoredError(Error):
    """Raised for a lowering or form of a node that ignores an attribute, a bug of the library, not of the network."""


class _Recorded(Mapping[str, AttrValue]):
    """A node's attributes, which record the names that are read."""

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
    """A view of a node for one of its forms. The view's `values` are the node's own values, and `with_inputs` returns a
    plain node.

    A read of types or values counts as a read of the attributes that follow from them (`Attr.typed`).
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
        """Raises IgnoredError if the form has not read an attribute of the node that differs from its default."""
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
    """Returns a RecordedNode for the node, or the node itself if it has no attributes."""
    return RecordedNode(node) if node.attrs else node


def check(view: Node, form: str) -> None:
    """Calls `RecordedNode.check`, or does nothing for a node without attributes."""
    if isinstance(view, RecordedNode):
        view.check(form)
