"""Recognises rotary position embedding written as separate ops."""

from dataclasses import dataclass, replace

import numpy as np

from hexane.graph import Graph, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.match import Found, made_by, op, rewrite
from hexane.targets import Target

_DEPTH = 8  # the deepest table expression that is searched: a file may nest any number of ops

# x * cos + (x with its halves swapped and the new first half negated) * sin
_SWAPPED = op(
    "add",
    op("mul", "x", "cos", alone=True),
    op("mul", op("concat", op("neg", "second"), "first", name="swapped", alone=True), "sin", alone=True),
)
# The two results of each pair (a, c). The elements of a pair are neighbours, or lie in different halves of the row.
_A = op("sub", op("mul", "a", "cos", alone=True), op("mul", "c", "sin", alone=True), name="rotated", alone=True)
_C = op("add", op("mul", "a", "sin", alone=True), op("mul", "c", "cos", alone=True), alone=True)
_STACKED = [op("reshape", part, alone=True) | part for part in (_A, _C)]
_ROTATED = _SWAPPED | op("concat", _A, _C) | op("reshape", op("concat", *_STACKED, name="pairs", alone=True))


@dataclass(frozen=True, slots=True)
class _Part:
    """The first (which=0) or second (which=1) elements of the pairs of x. A pair is two neighbours if interleaved, else
    one element of each half."""

    x: Value
    interleaved: bool
    which: int


@dataclass(frozen=True, slots=True)
class _Turn:
    x: Value
    cos: Value
    sin: Value
    interleaved: bool = False
    doubled: bool = False  # The tables repeat each angle, for both halves.
    stacked: bool = False  # The tables have an additional axis of extent 1, for the pairs.


def fuse_rotary(graph: Graph, target: Target) -> Graph:
    """%x * %cos + concat(-%x[.., 2:], %x[.., :2]) * %sin  ->  rotary_embedding(%x, %cos[.., :2], %sin[.., :2])

    Requires that the second half of each table provably repeats the first. The pass also recognises the two results of
    each pair, %a * %cos - %b * %sin and %a * %sin + %b * %cos. %a and %b are the halves of %x or, interleaved, its even
    and odd elements. The intermediate values must have no other reader. In fp16, intermediate values are no longer
    rounded.
    """

    def build(m: Found) -> tuple[Value, ...] | None:
        rotation = _doubled(m) if "swapped" in m.bound else _joined(m)
        if rotation is None or rotation.x.type != m.node.types[0] or rotation.cos.shape != rotation.sin.shape:
            return None
        tables = [_fitting(m.now(t), rotation) for t in (rotation.cos, rotation.sin)]
        return m.make("rotary_embedding", [m.now(rotation.x), *tables], interleaved=rotation.interleaved)

    return rewrite(graph, _ROTATED, build)


def _doubled(m: Found) -> _Turn | None:
    x, cos, sin = m.bound["x"], m.bound["cos"], m.bound["sin"]
    if m.bound["swapped"].node.attrs["axis"] != x.type.rank - 1 or not (_repeats(cos, x) and _repeats(sin, x)):
        return None
    parts = _part(m.bound["first"]), _part(m.bound["second"])
    return _Turn(x, cos, sin, doubled=True) if parts == (_Part(x, False, 0), _Part(x, False, 1)) else None


def _joined(m: Found) -> _Turn | None:
    pairs, rotated = m.bound.get("pairs", m.node.values[0]), m.bound["rotated"].type
    a, c = _part(m.bound["a"]), _part(m.bound["c"])
    if a is None or c is None or a.which or c != replace(a, which=1) or pairs.node.attrs["axis"] != pairs.type.rank - 1:
        return None
    if m.bound["a"].type != rotated or m.bound["c"].type != rotated:
        return None
    x, interleaved = a.x, a.interleaved
    shape = (*x.shape[:-1], x.shape[-1] // 2, 2) if interleaved else x.shape
    if interleaved != ("pairs" in m.bound) or pairs.shape != shape:
        return None
    return _Turn(x, m.bound["cos"], m.bound["sin"], interleaved, stacked=rotated.rank > x.type.rank)


def _part(value: Value | None) -> _Part | None:
    flat = made_by(value, "reshape")
    inner = flat.inputs[0] if flat is not None else value
    if value is None or inner is None or (flat is not None and inner.shape != (*value.shape, 1)):
        return None
    node = made_by(inner, "slice_by_index")
    x = node.inputs[0] if node is not None else None
    if node is None or x is None or x.shape[:-1] != inner.shape[:-1]:
        return None
    begin, step, columns, rows = node.attrs["begin"][-1], node.attrs["stride"][-1], x.shape[-1], made_by(x, "reshape")
    whole = rows.inputs[0] if rows is not None else None
    if columns == 2 and whole is not None and x.shape == (*whole.shape[:-1], whole.shape[-1] // 2, 2):
        return _Part(whole, True, begin)
    if flat is not None or inner.shape[-1] * 2 != columns:
        return None
    if step == 2 and columns > 2:
        return _Part(x, True, begin)
    return _Part(x, False, int(begin > 0)) if begin in (0, columns // 2) else None


def _repeats(value: Value, x: Value, depth: int = _DEPTH) -> bool:
    """True if the second half of each row of the value provably repeats the first half. Rows must be as long as x's."""
    node, columns = value.node, x.shape[-1]
    if value.type.rank == 0 or value.shape[-1] != columns or not depth:
        return False
    if node.op == "const":
        assert node.data is not None
        return bool(np.array_equal(node.data[..., : columns // 2], node.data[..., columns // 2 :]))
    last = value.type.rank - 1
    if node.op == "concat":
        return node.attrs["axis"] == last and len(node.inputs) == 2 and node.inputs[0] == node.inputs[1]
    op = OPS.get(node.op)
    if op is not None and op.elementwise:
        return all(
            v is not None and (v.type.rank == 0 or v.shape[-1] == 1 or _repeats(v, x, depth - 1)) for v in node.inputs
        )
    keeps_rows = op is not None and op.view
    if node.op == "gather" and node.inputs[0] is not None:
        keeps_rows = node.attrs["axis"] < node.inputs[0].type.rank - 1
    elif node.op == "transpose":
        keeps_rows = node.attrs["perm"][-1] == last
    return keeps_rows and node.inputs[0] is not None and _repeats(node.inputs[0], x, depth - 1)


def _fitting(table: Value | None, rotation: _Turn) -> Value:
    """Returns the table in the op's form: each angle once, and no extra axis for the pairs."""
    assert table is not None
    if rotation.stacked and table.type.rank:
        return apply(OPS["reshape"], [table], {"shape": table.shape[:-1]}, table.node.sources)[0]
    if not rotation.doubled:
        return table
    shape = (*table.shape[:-1], table.shape[-1] // 2)
    if table.node.op == "const":
        assert table.node.data is not None
        return constant(table.node.data[..., : shape[-1]], table.node.sources)
    return apply(OPS["slice_by_index"], [table], {"begin": (0,) * len(shape), "end": shape}, table.node.sources)[0]
