"""Lets attention products read keys and values once for all query heads that share them (grouped-query attention)."""

from collections.abc import Sequence

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.passes.engine.chain import slots_of
from hexane.passes.engine.legalize.check_layers import refusal
from hexane.targets import Chip

SHARED = {"anec.matmul": (1,), "anec.sdpa": (1, 2)}  # the positions of the shared operands
RANK = 4


def share_keys(graph: Graph, chip: Chip) -> Graph:
    """anec.matmul(%q : [1, 8, 32, 64], anec.reshape(anec.broadcast(%k : [1, 2, 1, 64, 32])) : [1, 8, 64, 32])
      ->  anec.reshape(anec.matmul(anec.reshape(%q) : [2, 4, 32, 64], anec.reshape(%k) : [2, 1, 64, 32])) : [1, 8, 32, 32]

    Applies also to an attention whose keys and values are both repeated. Each head of the keys becomes a batch entry,
    and the product broadcasts it over the query heads that share it. Nothing is copied, and no tensor has five axes.
    """  # noqa: E501
    if graph.ops.isdisjoint(("anec.broadcast", "anec.tile")):
        return graph

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        query = inputs[0] if inputs else None
        if node.op not in SHARED or query is None or query.type.rank != RANK or slots_of(node):
            return None
        shared = [_before_repeat(inputs[place]) for place in SHARED[node.op]]
        heads, each = query.shape[1], 0
        operands: list[Value | None] = list(inputs)
        for place, operand in zip(SHARED[node.op], shared, strict=True):
            if operand is None:
                return None
            source, swapped = operand
            batch, count = source.shape[0], source.shape[1]
            if batch != query.shape[0] or heads % count or (each and heads // count != each):
                return None
            each = heads // count
            reshaped = _reshaped(source, (batch * count, 1, *source.shape[-2:]), node)
            operands[place] = _turned(reshaped, node) if swapped else reshaped
        groups = query.shape[0] * heads // each
        operands[0] = _reshaped(query, (groups, each, *query.shape[-2:]), node)
        if len(inputs) > 3 and (mask := inputs[3]) is not None:
            operands[3] = _of_groups(mask, query.shape[0], heads, groups, node)
            if operands[3] is None:
                return None
        result = apply(OPS[node.op], operands, node.attrs, node.sources)[0]
        back = _reshaped(result, node.types[0].shape, node)
        made_here = (*operands[: 1 + len(shared)], result, back)
        return None if any(v is not None and refusal(v.node, chip) is not None for v in made_here) else (back,)

    return graph.rewrite(change)


def _before_repeat(value: Value | None) -> tuple[Value, bool] | None:
    """Returns x of (batch, heads, 1, rows, columns) if the value is x with each head repeated, and whether the value
    then has its last two axes exchanged; None if heads are not repeated."""
    if value is None or value.type.rank != RANK:
        return None
    transpose = made_by(value, "anec.transpose")
    swapped = transpose is not None and transpose.attrs["perm"] == (0, 1, 3, 2)
    inner = transpose.inputs[0] if transpose is not None and swapped else value
    flat = made_by(inner, "anec.reshape")
    repeat = made_by(None if flat is None else flat.inputs[0], "anec.broadcast", "anec.tile")
    source = None if repeat is None else repeat.inputs[0]
    if inner is None or flat is None or repeat is None or source is None or source.type.rank != RANK + 1:
        return None
    batch, heads, one, rows, columns = source.shape
    each = repeat.types[0].shape[2]
    if one != 1 or repeat.types[0].shape != (batch, heads, each, rows, columns):
        return None
    return (source, swapped) if inner.shape == (batch, heads * each, rows, columns) else None


def _of_groups(mask: Value, batch: int, heads: int, groups: int, node: Node) -> Value | None:
    """Returns the mask with its heads in groups. None if the mask differs between batch entries, or if it differs
    between heads and the batch is above 1."""
    outer = (1,) * (RANK - mask.type.rank) + tuple(mask.shape[:-2])
    if outer == (1, 1):
        return mask
    if outer == (1, heads) and batch == 1:
        return _reshaped(mask, (groups, heads // groups, *mask.shape[-2:]), node)
    return None


def _turned(value: Value, node: Node) -> Value:
    return apply(OPS["anec.transpose"], [value], {"perm": (0, 1, 3, 2)}, node.sources)[0]


def _reshaped(value: Value, shape: Sequence[int], node: Node) -> Value:
    if value.shape == tuple(shape):
        return value
    return apply(OPS["anec.reshape"], [value], {"shape": tuple(shape)}, node.sources)[0]
