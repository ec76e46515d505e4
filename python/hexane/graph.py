"""The graph: immutable nodes, made once each (hash-consed), and the program they make up.

One Node serves every level, from the ops a user calls to what the executor runs; the record of its op (`hexane.ops`)
says what it means.
"""

import os
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import count
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hexane import _core, printer
from hexane.decisions import Decision
from hexane.dtypes import DType, dtype
from hexane.errors import Error
from hexane.limits import MAX_BYTES, MAX_RANK

AttrValue = Any  # bool, int, float, str, DType, EpilogueSlot, and tuples of them: what the record of the op declares
Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True)
class TensorType:
    """The dtype and shape of an array. Sizes are counted in bits."""

    dtype: DType
    shape: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        return (self.size * self.dtype.bits + 7) // 8

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class EpilogueSlot:
    """One thing that a kernel does to its accumulators before it stores them: an op of one operand with all of its
    attributes, or the addition of the node's input number `operand`."""

    op: str
    attributes: tuple[tuple[str, AttrValue], ...] = ()
    operand: int | None = None

    def __str__(self) -> str:
        """clip(alpha=0.0, beta=6.0), or add(3)."""
        parts = [] if self.operand is None else [str(self.operand)]
        parts += [f"{name}={printer.print_attr(value)}" for name, value in self.attributes]
        return f"{self.op}({', '.join(parts)})"


_INT = frozenset((int,))  # and no bool, which is equal to an int


def tensor_type(spec: object, shape: Sequence[int]) -> TensorType:
    """A checked TensorType. Raises Error for negative dims, a rank above 8 or a size past 2^40 bytes."""
    kind = dtype(spec)
    if type(shape) is tuple and _INT.issuperset(map(type, shape)) and (not shape or min(shape) >= 0):
        return _tensor_type(kind, shape)
    if not isinstance(shape, Iterable) or isinstance(shape, str):
        raise Error(f"[shape] got {shape!r}, need a sequence of integers")
    dims = []
    for d in shape:
        if isinstance(d, bool) or not isinstance(d, (int, np.integer)) or d < 0:
            raise Error(f"[shape] {tuple(shape)}: got the dim {d!r}, need integers that are not negative")
        dims.append(int(d))
    return _tensor_type(kind, tuple(dims))


@lru_cache(maxsize=1 << 12)  # a graph has many tensors of few types, which then share one object
def _tensor_type(kind: DType, dims: tuple[int, ...]) -> TensorType:
    if len(dims) > MAX_RANK:
        raise Error(f"[shape] {dims}: got rank {len(dims)}, need at most {MAX_RANK}")
    if prod(max(d, 1) for d in dims) * kind.bits > MAX_BYTES * 8:
        raise Error(f"[shape] {kind}{list(dims)}: got more than {MAX_BYTES} bytes, need less")
    return TensorType(kind, dims)


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

    `uid` is 0, except for inputs, params and states, which never merge. `data` is the array of a const (or the initial
    contents of a param or state). `sources` says where in the user's model the node comes from; merging nodes join
    theirs.
    """

    __slots__ = ("__weakref__", "_kind", "_sources", "attrs", "data", "inputs", "op", "types", "uid")

    op: str
    inputs: tuple[Value | None, ...]
    attrs: Mapping[str, AttrValue]
    types: tuple[TensorType, ...]
    uid: int
    data: Array | None
    _kind: "Kind"
    _sources: tuple[str, ...] | str  # a single source is stored as a plain string, since every node has one

    @property
    def sources(self) -> tuple[str, ...]:
        return (self._sources,) if isinstance(self._sources, str) else self._sources

    @property
    def values(self) -> "tuple[Value, ...]":
        """The outputs."""
        if len(self.types) == 1:  # nearly always, and passes ask often: made without the call of Value
            return (_new_tuple(Value, (self, 0)),)
        return tuple(Value(self, i) for i in range(len(self.types)))

    def with_inputs(self, inputs: "tuple[Value | None, ...]") -> "Node":
        """The same op of other inputs, whose types are those of its own."""
        if inputs == self.inputs:
            return self
        return self._kind.node(inputs, self.sources)

    @property
    def source(self) -> str:
        return ", ".join(self.sources)

    @property
    def where(self) -> str:
        """Op, as users know it, and source, for messages."""
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
        """The node of this kind that reads these inputs; an existing one where there is one."""
        return _intern((self, inputs), self, inputs, sources)


_kinds: "weakref.WeakValueDictionary[Any, Kind]" = weakref.WeakValueDictionary()
_lock = threading.RLock()  # a node may die, and leave the table, while its thread looks something up in it


class _Interned(weakref.ref[Node]):
    """A place in the table of nodes. WeakValueDictionary would do; its Python code cost a tenth of a compilation."""

    __slots__ = ("identity",)

    identity: object


_interned: dict[object, _Interned] = {}


def _forget(place: _Interned, table: dict[object, _Interned] = _interned, lock: Any = _lock) -> None:
    """Of a node that has died. Defaults, because the module's names may be gone when the last nodes die."""
    with lock:
        if table.get(place.identity) is place:
            del table[place.identity]


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)
_uids = count(1)
_NO_ATTRS: Mapping[str, AttrValue] = MappingProxyType({})
_SAMPLED_BYTES = 1 << 16  # larger constants are hashed at 64 places first, of 256 bytes each
_MOST_SOURCES = 32  # a constant 1.0 may come from everywhere; who reads a message has seen enough by then
_KEY_BYTES = 64  # constants up to this size are found by their bytes, larger ones by a hash first


def make_node(
    op: str,
    inputs: Sequence[Value | None],
    attrs: Mapping[str, AttrValue],
    types: Sequence[TensorType],
    sources: tuple[str, ...] = (),
) -> Node:
    """The node of these parts; an existing one where there is one. Does not check them: `ops.apply` does."""
    return kind_of(op, attrs, types).node(tuple(inputs), sources)


def kind_of(op: str, attrs: Mapping[str, AttrValue], types: Sequence[TensorType]) -> Kind:
    """What nodes of this op share that have these attributes and types."""
    return _kind(op, attrs, tuple(types), tuple((k, attr_bits(v)) for k, v in attrs.items()))


def constant(array: Array, sources: tuple[str, ...] = (), dtype: DType | None = None) -> Value:
    """A const node holding the array (copied when it is not C-contiguous; never modified). Equal bits merge. dtype: for
    those that NumPy keeps in the bytes of another, uint3 and uint6; the array has just such elements."""
    data = truths(array if array.flags.c_contiguous else np.ascontiguousarray(array))
    if not data.dtype.isnative:
        raise Error(f"[const] got the byte order {data.dtype.byteorder!r}, need the machine's own")
    kind = _kind("const", _NO_ATTRS, (tensor_type(dtype or data.dtype, data.shape),))
    bits = _Bits(data) if data.nbytes > _KEY_BYTES else data.base if _is_of(data, data.base) else data.tobytes()
    return Value(_intern((kind, bits), kind, (), sources, data=data))


def unique(op: str, name: str, kind: TensorType, data: Array | None = None, sources: tuple[str, ...] = ()) -> Value:
    """An input, param or state: a node that is only ever equal to itself. Raises Error for a name that no plan can
    hold."""
    check_name(op, name)
    uid = next(_uids)
    data = None if data is None else truths(data)
    return Value(_intern(uid, Kind(op, {"name": name}, (kind,)), (), sources, uid=uid, data=data))


def check_name(what: str, name: str) -> None:
    """Raises Error for a name that has no bytes in UTF-8, or NUL among them, which ends a name in a plan."""
    try:
        written = name.encode()
    except UnicodeEncodeError:
        raise Error(f"[graph] {what} {name!a}: got a lone surrogate in the name, need text that UTF-8 has") from None
    if b"\0" in written:
        raise Error(f"[graph] {what} {name!a}: got NUL in the name, need text without it")


def free_name(name: str, taken: set[str]) -> str:
    """The name, or with the first number behind it that nobody has taken."""
    if name not in taken:
        return name
    number = 1
    while f"{name}_{number}" in taken:
        number += 1
    return f"{name}_{number}"


def truths(array: Array) -> Array:
    """A bool of any byte but 0 is true: with 1 for those bytes. Other arrays as they are."""
    if array.dtype != np.bool_ or not (array.view(np.uint8) > 1).any():
        return array
    found: Array = array.view(np.uint8) != 0
    return found


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
            node._sources = sources[0] if len(sources) == 1 else sources
            _interned[identity] = place = _Interned(node, _forget)
            place.identity = identity
        elif sources and len(known := node.sources) < _MOST_SOURCES and sources != known:
            node._sources = tuple(dict.fromkeys((*known, *sources)))
        return node


def attr_bits(value: AttrValue) -> object:
    """Attributes compare by their bits: -0.0 is not 0.0, and NaN is NaN."""
    kind = type(value)
    if kind is float:
        return value.hex()
    if kind is tuple:
        return value if _INT.issuperset(map(type, value)) else tuple([attr_bits(v) for v in value])
    if kind is EpilogueSlot:
        return (value.op, attr_bits(value.attributes), value.operand)
    return value


class _Bits:
    """The bytes of an array as a dictionary key: a fast hash first, then the bytes themselves.

    A large array is hashed at some places, and as a whole once another one looks the same there.
    """

    __slots__ = ("_digest", "array", "sample")

    def __init__(self, array: Array) -> None:
        self.array = array
        self._digest = b""
        raw = _raw(array)
        blocks = raw[: raw.size // 64 * 64].reshape(64, -1)[:, :256] if raw.size > _SAMPLED_BYTES else raw
        self.sample = _core.hash128(np.ascontiguousarray(blocks))

    @property
    def digest(self) -> bytes:
        self._digest = self._digest or _core.hash128(self.array)
        return self._digest

    def __hash__(self) -> int:
        return hash(self.sample)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Bits) or self.sample != other.sample:
            return False
        if self.array is other.array:
            return True
        return self.digest == other.digest and np.array_equal(_raw(self.array), _raw(other.array))


def _is_of(array: Array, base: object) -> bool:
    """Whether the array is these bytes, and no others."""
    return type(base) is bytes and len(base) == array.nbytes


def _raw(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


_PACKAGE = str(Path(__file__).parent)


_scope: ContextVar[tuple[str, ...] | None] = ContextVar("source", default=None)


@contextmanager
def source_scope(*sources: str) -> Iterator[None]:
    """Nodes built inside come from here (the node of a model file), not from the line of Python that builds them."""
    token = _scope.set(sources)
    try:
        yield
    finally:
        _scope.reset(token)


def call_site() -> tuple[str, ...]:
    """The source set by source_scope, else the user's file:line: the innermost frame outside this package."""
    if (scope := _scope.get()) is not None:
        return scope
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return (f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}",)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()


class Port(NamedTuple):
    """A named output. Where its extent along an axis is only known when it has been computed, the shape is the largest
    there may be, and `length` names the output that says how much of it is valid."""

    name: str
    value: Value
    length: str = ""
    axis: int = 0


@dataclass(frozen=True)
class Graph:
    """A program: inputs in the order of its signature, named outputs, and the states it updates.

    `updates` are values of write_state that have to run though no output depends on them. `decisions` say what passes
    decided so far; they are no part of what the graph is. A pass that makes a graph of new ports keeps them by
    `dataclasses.replace`. `taps` are values that somebody wants to find again behind the passes. They keep nothing in
    the graph and stop no fusion: a tap may come to name a node that is no longer part of the graph. `takes` says which
    nodes a pass may bring in: a change that would make another is not made. None: all of them.
    """

    inputs: tuple[Value, ...]
    outputs: tuple[Port, ...]
    updates: tuple[Value, ...] = ()
    name: str = "graph"
    decisions: tuple[Decision, ...] = field(default=(), repr=False, compare=False)
    taps: tuple[Port, ...] = field(default=(), repr=False, compare=False)
    takes: Callable[[Node], bool] | None = field(default=None, repr=False, compare=False)
    # Each holds what it remembers, once that is whole. Two threads may both compute it; the first one's stays.
    _order: list[list[Node]] = field(default_factory=list, init=False, repr=False, compare=False)
    _ops: list[frozenset[str]] = field(default_factory=list, init=False, repr=False, compare=False)
    _counts: list[Counter[Value]] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def roots(self) -> tuple[Value, ...]:
        return (*(port.value for port in self.outputs), *self.updates)

    @property
    def nodes(self) -> list[Node]:
        """Every node, operands first, in the depth-first order that consumes values early."""
        if not self._order:
            self._order.append(topological((*self.inputs, *self.roots)))
        return self._order[0]

    @property
    def ops(self) -> frozenset[str]:
        """The ops of its nodes, by name."""
        if not self._ops:
            self._ops.append(frozenset([node.op for node in self.nodes]))
        return self._ops[0]

    def input_names(self) -> list[str]:
        return [str(value.node.attrs["name"]) for value in self.inputs]

    def constants(self) -> dict[str, Array]:
        """The arrays of consts, params and states by the digest they print as."""
        return {printer.digest(node.data): node.data for node in self.nodes if node.data is not None}

    def users(self) -> dict[Value, list[Node]]:
        """Who reads a value; a node that reads it twice counts twice. Outputs are not listed."""
        table: dict[Value, list[Node]] = {}
        for node in self.nodes:
            for value in node.inputs:
                if value is not None:
                    table.setdefault(value, []).append(node)
        return table

    def use_counts(self) -> Counter[Value]:
        """How often each value is read, outputs and updates included."""
        if not self._counts:
            counts = Counter(self.roots)
            counts.update(value for node in self.nodes for value in node.inputs if value is not None)
            self._counts.append(counts)
        return self._counts[0]

    def rewrite(
        self,
        change: Callable[[Node, tuple[Value | None, ...]], Sequence[Value] | None],
        only: Container[str] | None = None,
        became: dict[Value, Value] | None = None,
    ) -> "Graph":
        """A new graph in which `change(node, new_inputs)` replaces each node that has inputs, operands first.

        `change` returns the values that replace the node's outputs, or None to keep the node (with its new inputs). It
        is asked of these ops only, if any are given. `became` is filled with the values that became others, and may
        begin with inputs that do. Raises Error where a value of another type would take the place of one: its readers'
        types would be wrong.
        """
        table = {} if became is None else became
        if only is not None and not table and not any(op in only for op in self.ops):
            return self
        known = set(self.nodes) if self.takes is not None else None
        for node in self.nodes:
            if not node.inputs:
                continue
            inputs = tuple([None if v is None else table.get(v, v) for v in node.inputs]) if table else node.inputs
            new = change(node, inputs) if only is None or node.op in only else None
            if known is not None and new is not None and not self._takes_all(new, known):
                new = None
            if new is None:
                if inputs == node.inputs:
                    continue
                new = node.with_inputs(inputs).values
                if known is not None:
                    known.add(new[0].node)
            for old, value in zip(node.values, new, strict=True):
                if value.type is not old.type and value.type != old.type:
                    raise Error(f"[{node.where}] rewritten as {value.node.op}: got {value.type}, need {old.type}")
                table[old] = value
        return self.replace(table) if table else self

    def _takes_all(self, values: Sequence[Value], known: set[Node]) -> bool:
        """Whether the graph takes all nodes behind the values that are not known, which they are then."""
        assert self.takes is not None
        fresh: dict[Node, None] = {}
        stack = [value.node for value in values]
        while stack:
            node = stack.pop()
            if node in known or node in fresh:
                continue
            if not self.takes(node):
                return False
            fresh[node] = None
            stack += [v.node for v in node.inputs if v is not None]
        known.update(fresh)
        return True

    def replace(self, table: Mapping[Value, Value]) -> "Graph":
        """The graph whose inputs, roots and taps are looked up in `table`."""
        return replace(
            self,
            taps=self.tapped(lambda value: table.get(value, value)),
            inputs=tuple(table.get(v, v) for v in self.inputs),
            outputs=tuple(p._replace(value=table.get(p.value, p.value)) for p in self.outputs),
            updates=tuple(table.get(v, v) for v in self.updates),
        )

    def tapped(self, became: Callable[[Value], Value]) -> tuple[Port, ...]:
        """The taps in a graph in which `became` says what stands for each value of this one.

        A tap that is no longer part of this graph is made anew of what its operands became, so that a reshape which a
        pass went around is still found. `became` is asked of values of this graph only.
        """
        live = {id(node) for node in self.nodes} if self.taps else ()
        now: dict[Value, Value] = {}

        def stands_for(value: Value) -> Value:
            if value not in now:
                now[value] = became(value)
            return now[value]

        for node in topological(port.value for port in self.taps if id(port.value.node) not in live):
            if id(node) not in live:
                inputs = [None if v is None else stands_for(v) for v in node.inputs]
                made = node if tuple(inputs) == node.inputs else make_node(node.op, inputs, node.attrs, node.types)
                now.update(zip(node.values, made.values, strict=True))
        return tuple(port._replace(value=stands_for(port.value)) for port in self.taps)

    def decided(self, *decisions: Decision) -> "Graph":
        """The same graph with these decisions behind its own, but for those that an earlier pass took already.

        Two that are equal may be about two nodes of one line, so both are kept.
        """
        if not decisions:
            return self
        known = set(self.decisions)
        new = tuple([decision for decision in decisions if decision not in known])
        return replace(self, decisions=(*self.decisions, *new)) if new else self

    def __str__(self) -> str:
        return printer.print_graph(self)

    def _repr_html_(self) -> str:
        return printer.graph_svg(self)


def topological(roots: Iterable[Value], last_first: bool = False) -> list[Node]:
    """Nodes in depth-first post-order from the roots: each as soon after its operands as they allow.

    Operands are visited first to last, or last to first.
    """
    order: list[Node] = []
    opened: set[int] = set()  # nodes whose operands are on the stack, or in the order
    done: set[int] = set()
    for root in roots:
        stack = [root.node]
        while stack:
            node = stack[-1]
            key = id(node)
            if key not in opened:
                opened.add(key)
                height = len(stack)
                for value in node.inputs if last_first else reversed(node.inputs):
                    if value is not None and id(value[0]) not in opened:
                        stack.append(value[0])
                if len(stack) > height:
                    continue
            stack.pop()
            if key not in done:
                done.add(key)
                order.append(node)
    return order
