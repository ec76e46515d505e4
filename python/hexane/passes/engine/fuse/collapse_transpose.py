"""Merges consecutive transposes and consecutive reshapes, and removes pairs that cancel each other."""

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources, made_by
from hexane.ops.records.engine.planar import WITH_SLOTS
from hexane.passes.engine.chain import refused_reshape
from hexane.passes.engine.moves import READ_TRANSPOSED, swaps_rows
from hexane.targets import Chip

_TWO = tuple(f"anec.{name}" for name in WITH_SLOTS)
_CHANGED = frozenset(("anec.transpose", "anec.reshape", *READ_TRANSPOSED, *_TWO))


def collapse_transpose(graph: Graph, chip: Chip) -> Graph:
    """anec.transpose(anec.transpose(%x) {perm=(0, 2, 1)}) {perm=(0, 2, 1)}  ->  %x

    A transpose that moves only axes of extent 1 becomes a reshape. If the chip refuses a reshape, the layer stays or
    becomes a transpose. Consecutive reshapes become one. A matrix product absorbs a transpose of its operand that swaps
    rows and columns. If both operands of an elementwise layer have the same transpose, the result is transposed
    instead.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0] if inputs else None
        if node.op == "anec.transpose" and x is not None:
            return (transposed(x, node.attrs["perm"], node, chip),)
        if node.op == "anec.reshape" and x is not None:
            perm = _unit_axes_moved(x, node.types[0].shape, chip)
            return (reshaped(x, node.types[0].shape, node, chip) if perm is None else transposed(x, perm, node, chip),)
        if node.op in READ_TRANSPOSED:
            return _product(node, inputs)
        return None if node.attrs["epilogue"] else _both(node, inputs, chip)

    return graph.rewrite(change, _CHANGED)


def transposed(x: Value, perm: tuple[int, ...], node: Node, chip: Chip) -> Value:
    """Returns x with its axes permuted: by a reshape if one suffices, without a move if the order does not change."""
    maker = made_by(x, "anec.transpose")
    if maker is not None:
        inner: tuple[int, ...] = maker.attrs["perm"]
        assert maker.inputs[0] is not None
        return transposed(maker.inputs[0], tuple(inner[p] for p in perm), node, chip)
    long = [p for p in perm if x.shape[p] != 1]
    shape = tuple(x.shape[p] for p in perm)
    if long == sorted(long) and not refused_reshape(x.type, shape, chip):
        return reshaped(x, shape, node, chip)
    return apply(OPS["anec.transpose"], [x], {"perm": perm}, node.sources)[0]


def reshaped(x: Value, shape: tuple[int, ...], node: Node, chip: Chip) -> Value:
    while (maker := made_by(x, "anec.reshape")) is not None and maker.inputs[0] is not None:
        if refused_reshape(maker.inputs[0].type, shape, chip):
            break
        x = maker.inputs[0]
    return x if x.shape == shape else apply(OPS["anec.reshape"], [x], {"shape": shape}, node.sources)[0]


def _unit_axes_moved(x: Value, shape: tuple[int, ...], chip: Chip) -> tuple[int, ...] | None:
    """Returns the permutation that equals this reshape, or None if there is none or if the chip accepts the reshape."""
    long = [i for i, extent in enumerate(x.shape) if extent != 1]
    if len(shape) != len(x.shape) or [x.shape[i] for i in long] != [extent for extent in shape if extent != 1]:
        return None
    if not refused_reshape(x.type, shape, chip):
        return None
    others, units = iter(long), iter([i for i, extent in enumerate(x.shape) if extent == 1])
    return tuple(next(units if extent == 1 else others) for extent in shape)


def _product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    operands, attrs = list(inputs), dict(node.attrs)
    for i, flag in enumerate(READ_TRANSPOSED[node.op]):
        maker = made_by(operands[i], "anec.transpose")
        if maker is not None and swaps_rows(("transpose", maker.attrs["perm"])):
            operands[i], attrs[flag] = maker.inputs[0], not attrs[flag]
    return None if operands == list(inputs) else apply(OPS[node.op], operands, attrs, node.sources)


def _both(node: Node, inputs: tuple[Value | None, ...], chip: Chip) -> tuple[Value, ...] | None:
    first, second = (made_by(v, "anec.transpose") for v in inputs[:2])
    if first is None or second is None or first.attrs != second.attrs or first.types != second.types:
        return None
    result = apply(OPS[node.op], [first.inputs[0], second.inputs[0]], node.attrs, joined_sources(node, first))
    return (transposed(result[0], first.attrs["perm"], node, chip),)
