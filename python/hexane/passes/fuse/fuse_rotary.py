"""Recognises rotary position embedding written out."""

from dataclasses import dataclass

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.match import made_by, use_counts
from hexane.ops import OPS, apply
from hexane.targets import Target

_DEPTH = 8  # of what computes a table: a file may nest any number

Counts = dict[Value, int]


@dataclass(frozen=True, slots=True)
class _Part:
    """The first (0) or second (1) of each pair of x: of neighbours if interleaved, else of halves."""

    x: Value
    interleaved: bool
    which: int


@dataclass(frozen=True, slots=True)
class _Turn:
    x: Value
    cos: Value
    sin: Value
    interleaved: bool = False
    doubled: bool = False  # the tables have each angle twice, for both halves
    stacked: bool = False  # the tables have another axis of extent 1, that of the pairs


def fuse_rotary(graph: Graph, target: Target) -> Graph:
    """%x * %cos + concat(-%x[.., 2:], %x[.., :2]) * %sin  ->  rotary_embedding(%x, %cos[.., :2], %sin[.., :2])

    Where the tables' second half is seen to repeat the first. Also joined from both results of each pair, %a * %cos - %b * %sin and
    %a * %sin + %b * %cos, which are halves of %x or, interleaved, neighbours. What %x, %cos and %sin go through on the way is
    read by nothing else, and in fp16 not rounded any more.
    """
    counts = use_counts(graph)
    now: dict[Value | None, Value | None] = {}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        now.update(zip(node.inputs, inputs, strict=True))
        found = _doubled(node, counts) or _joined(node, counts)
        if found is None or found.x.type != node.types[0] or found.cos.shape != found.sin.shape:
            return None
        tables = [_fitting(now[t], found) for t in (found.cos, found.sin)]
        return apply(OPS["rotary_embedding"], [now[found.x], *tables], {"interleaved": found.interleaved}, node.sources)

    return graph.rewrite(change)


def _only(value: Value | None, counts: Counts, *ops: str) -> Node | None:
    """What makes the value, if it is one of these and nothing else reads the value."""
    node = made_by(value, *ops)
    return node if node is not None and counts[node.values[0]] == 1 else None


def _both(node: Node) -> tuple[tuple[Value, Value], ...]:
    a, b = node.inputs[:2]
    return () if a is None or b is None else ((a, b), (b, a))


def _doubled(node: Node, counts: Counts) -> _Turn | None:
    """x * cos + (x with its halves swapped, the first then negative) * sin"""
    if node.op != "add":
        return None
    for left, right in _both(node):
        straight, swapped = _only(left, counts, "mul"), _only(right, counts, "mul")
        for x, cos in () if straight is None else _both(straight):
            for turned, sin in () if swapped is None else _both(swapped):
                join = _only(turned, counts, "concat")
                if join is None or len(join.inputs) != 2 or join.attrs["axis"] != x.type.rank - 1:
                    continue
                negative = made_by(join.inputs[0], "neg")
                parts = None if negative is None else (_part(negative.inputs[0]), _part(join.inputs[1]))
                if parts == (_Part(x, False, 1), _Part(x, False, 0)) and _repeats(cos, x) and _repeats(sin, x):
                    return _Turn(x, cos, sin, doubled=True)
    return None


def _joined(node: Node, counts: Counts) -> _Turn | None:
    """The results of each pair, as halves or side by side."""
    pairs = node
    if node.op == "reshape":
        inner = _only(node.inputs[0], counts, "concat")
        if inner is None:
            return None
        pairs = inner
    if pairs.op != "concat" or len(pairs.inputs) != 2 or pairs.attrs["axis"] != pairs.types[0].rank - 1:
        return None
    results = []
    for value in pairs.inputs:
        flat = _only(value, counts, "reshape") if pairs is not node else None
        if flat is not None and flat.inputs[0] is not None and (*flat.inputs[0].shape, 1) == flat.types[0].shape:
            value = flat.inputs[0]
        results.append(_only(value, counts, "sub", "add"))
    first, second = results
    if first is None or second is None or first.op != "sub" or second.op != "add":
        return None
    ac, bs = _term(first.inputs[0], counts), _term(first.inputs[1], counts)
    if ac is None or bs is None:
        return None
    x, interleaved, cos, sin = ac[0].x, ac[0].interleaved, ac[1], bs[1]
    a, b = _Part(x, interleaved, 0), _Part(x, interleaved, 1)
    if (ac[0], bs[0]) != (a, b) or {_term(v, counts) for v in second.inputs[:2]} != {(a, sin), (b, cos)}:
        return None
    shape = (*x.shape[:-1], x.shape[-1] // 2, 2) if interleaved else x.shape
    if interleaved == (pairs is node) or pairs.types[0].shape != shape:
        return None
    return _Turn(x, cos, sin, interleaved, stacked=first.types[0].rank > x.type.rank)


def _term(value: Value | None, counts: Counts) -> tuple[_Part, Value] | None:
    """(a part of pairs, the table), where the value is their product and has the part's shape."""
    product = _only(value, counts, "mul")
    for a, table in () if product is None else _both(product):
        part = _part(a)
        if part is not None and a.type == product.types[0]:  # type: ignore[union-attr]
            return part, table
    return None


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
    """Whether the second half of the value's rows, as long as those of x, is the first again."""
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


def _fitting(table: Value | None, found: _Turn) -> Value:
    """The table as the op reads it: with each angle once."""
    assert table is not None
    if found.stacked and table.type.rank:
        return apply(OPS["reshape"], [table], {"shape": table.shape[:-1]}, table.node.sources)[0]
    if not found.doubled:
        return table
    shape = (*table.shape[:-1], table.shape[-1] // 2)
    if table.node.op == "const":
        assert table.node.data is not None
        return constant(table.node.data[..., : shape[-1]], table.node.sources)
    return apply(OPS["slice_by_index"], [table], {"begin": (0,) * len(shape), "end": shape}, table.node.sources)[0]
