"""Immutable nodes and their values. Equal nodes are one object (hash-consing).

One Node class serves every level, from users' ops to the executor's kernels; the op's record (`hexane.ops`) defines its
meaning.
"""

import threading
import weakref
from collections.abc import Mapping, Sequence
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hexane.dtypes import DType
from hexane.errors import Error
from hexane.graph.array_bits import identity, truths
from hexane.graph.attributes import AttrValue, attr_bits
from hexane.graph.names import check_name
from hexane.graph.tensor_type import Array, TensorType, tensor_type
from hexane.system.forks import at_fork


class Value(NamedTuple):
    """One output of a node."""

    node: "Node"
    output: int = 0

    @property
    def type(self) -> TensorType:
        return self.node.types[self.output]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.node.types[self.output].shape

    @property
    def dtype(self) -> DType:
        return self.node.types[self.output].dtype


_new_tuple = tuple.__new__


class Node:
    """An op applied to values. Two nodes of the same op, inputs, attributes and types are the same object.

    `uid` is 0, except for inputs, params and states, which never merge. `data` is the array of a const, or the initial
    contents of a param or state. `is_constant`: true for a const, and for a node computed only from constants.
    `sources`: the places in the user's model that the node comes from; a merged node has the sources of both.
    """

    __slots__ = ("__weakref__", "_kind", "_sources", "attrs", "data", "inputs", "is_constant", "op", "types", "uid")

    op: str
    inputs: tuple[Value | None, ...]
    attrs: Mapping[str, AttrValue]
    types: tuple[TensorType, ...]
    uid: int
    data: Array | None
    is_constant: bool
    _kind: "Kind"
    _sources: tuple[str, ...] | str  # a single source is stored as a plain string, since every node has one

    @property
    def sources(self) -> tuple[str, ...]:
        return (self._sources,) if isinstance(self._sources, str) else self._sources

    @property
    def values(self) -> "tuple[Value, ...]":
        """The outputs."""
        if len(self.types) == 1:  # nearly all nodes; passes ask often, so this avoids the call of Value
            return (_new_tuple(Value, (self, 0)),)
        return tuple(Value(self, i) for i in range(len(self.types)))

    def with_inputs(self, inputs: "tuple[Value | None, ...]") -> "Node":
        """This node's op with other inputs of the same types."""
        if inputs == self.inputs:
            return self
        return self._kind.node(inputs, self.sources)

    @property
    def source(self) -> str:
        return ", ".join(self.sources)

    @property
    def where(self) -> str:
        """The op, by its name for users, and its source, for messages."""
        name = self.op.rpartition(".")[2]
        return f"{name} at {self.source}" if self.sources else name

    def __reduce__(self) -> Any:
        # A copy would be a second node equal to this one, or an input with the identity of another.
        raise Error("[pickle] got a graph, need a file: str() and hx.parse keep graphs, net.save keeps compiled models")

    def __repr__(self) -> str:
        return f"<{self.op} {', '.join(map(str, self.types))}>"


class Kind:
    """Op, attributes and types, stored once for all nodes that share them."""

    __slots__ = ("__weakref__", "attrs", "op", "types")

    def __init__(self, op: str, attrs: Mapping[str, AttrValue], types: tuple[TensorType, ...]) -> None:
        self.op, self.attrs, self.types = op, attrs, types

    def node(self, inputs: "tuple[Value | None, ...]", sources: tuple[str, ...] = ()) -> Node:
        """Returns the node of this kind with these inputs, an existing node if there is one."""
        return _intern((self, inputs), self, inputs, sources)


_kinds: "weakref.WeakValueDictionary[Any, Kind]" = weakref.WeakValueDictionary()
_lock = threading.RLock()  # reentrant: a node may die, and leave a table, while its thread holds the lock


class _Interned(weakref.ref[Node]):
    """An entry in the table of nodes. WeakValueDictionary would work, but its Python code took a tenth of compile
    time."""

    __slots__ = ("identity",)

    identity: object


_interned: dict[object, _Interned] = {}


def _forget(place: _Interned, table: dict[object, _Interned] = _interned, lock: Any = _lock) -> None:
    """Removes a node that has died. table and lock are defaults, because the module's names may be gone when the last
    nodes die."""
    with lock:
        if table.get(place.identity) is place:
            del table[place.identity]


at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_uids = count(1)
_NO_ATTRS: Mapping[str, AttrValue] = MappingProxyType({})
_MOST_SOURCES = 32  # many nodes may share the constant 1.0; messages show only a few sources


def make_node(
    op: str,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, AttrValue],
    types: Sequence[TensorType],
    sources: tuple[str, ...] = (),
) -> Node:
    """Returns the node with these parts, an existing node if there is one. Does not check the parts: `ops.apply`
    does."""
    return kind_of(op, attrs, types).node(tuple(inputs), sources)


def kind_of(op: str, attrs: Mapping[str, AttrValue], types: Sequence[TensorType]) -> Kind:
    """The kind that all nodes of this op with these attributes and types share."""
    return _kind(op, attrs, tuple(types), tuple((k, attr_bits(v)) for k, v in attrs.items()))


def constant(array: Array, sources: tuple[str, ...] = (), dtype: DType | None = None) -> Value:
    """A const node with the array, which is copied if it is not C-contiguous, and never modified. Arrays with equal
    bits are one node. dtype: needed for uint1, uint3 and uint6, which NumPy stores as another dtype."""
    data = truths(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    if not data.dtype.isnative:
        raise Error(f"[const] got the byte order {data.dtype.byteorder!r}, need the machine's own")
    kind = _kind("const", _NO_ATTRS, (tensor_type(dtype or data.dtype, data.shape),))
    return Value(_intern((kind, identity(data)), kind, (), sources, data=data))


def unique(op: str, name: str, kind: TensorType, data: Array | None = None, sources: tuple[str, ...] = ()) -> Value:
    """Returns an input, param or state: a node that is only equal to itself. Raises Error for a name that no plan can
    hold."""
    check_name(op, name)
    uid = next(_uids)
    data = None if data is None else truths(data)
    return Value(_intern(uid, Kind(op, {"name": name}, (kind,)), (), sources, uid=uid, data=data))


def _kind(op: str, attrs: Mapping[str, AttrValue], types: tuple[TensorType, ...], bits: object = ()) -> Kind:
    key = (op, bits, types)
    with _lock:
        kind = _kinds.get(key)
        if kind is None:
            _kinds[key] = kind = Kind(op, attrs, types)
        return kind


def _intern(
    identity: object,
    kind: Kind,
    inputs: tuple[Value | None, ...],
    sources: tuple[str, ...],
    uid: int = 0,
    data: Array | None = None,
) -> Node:
    with _lock:
        place = _interned.get(identity)
        node = None if place is None else place()
        if node is None:
            node = Node.__new__(Node)
            node.op, node.inputs, node.attrs, node.types = kind.op, inputs, kind.attrs, kind.types
            node.uid, node.data, node._kind = uid, data, kind
            node.is_constant = kind.op == "const" or _are_constant(inputs)
            node._sources = sources[0] if len(sources) == 1 else sources
            _interned[identity] = place = _Interned(node, _forget)
            place.identity = identity
        elif sources and len(known := node.sources) < _MOST_SOURCES and sources != known:
            node._sources = tuple(dict.fromkeys((*known, *sources)))
        return node


def _are_constant(inputs: "tuple[Value | None, ...]") -> bool:
    for value in inputs:
        if value is not None and not value.node.is_constant:
            return False
    return any(inputs)
