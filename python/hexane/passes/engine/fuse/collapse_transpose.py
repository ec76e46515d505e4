"""Joins chains of transposes and of reshapes; pairs that undo each other vanish."""

from hexane.graph import Graph, Node, Value
from hexane.match import joined_sources, made_by
from hexane.ops import OPS, apply
from hexane.ops.records.engine.planar import WITH_SLOTS
from hexane.targets import Target

_TWO = tuple(f"anec.{name}" for name in WITH_SLOTS)


def collapse_transpose(graph: Graph, target: Target) -> Graph:
    """anec.transpose(anec.transpose(%x) {perm=(0, 2, 1)}) {perm=(0, 2, 1)}  ->  %x

    One that moves only axes of extent 1 is a reshape; reshapes of reshapes are one. A product reads its operands transposed where only
    rows and columns change places. Where both operands of an elementwise layer are transposed alike, its result is instead.
    """

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x = inputs[0] if inputs else None
        if node.op == "anec.transpose" and x is not None:
            return (transposed(x, node.attrs["perm"], node),)
        if node.op == "anec.reshape" and x is not None:
            return (reshaped(x, node.types[0].shape, node),)
        if node.op == "anec.matmul":
            return _product(node, inputs)
        if node.op in _TWO and not node.attrs["epilogue"]:
            return _both(node, inputs)
        return None

    return graph.rewrite(change)


def transposed(x: Value, perm: tuple[int, ...], node: Node) -> Value:
    """x with its axes in another order, as little as says so."""
    maker = made_by(x, "anec.transpose")
    if maker is not None:
        inner: tuple[int, ...] = maker.attrs["perm"]
        assert maker.inputs[0] is not None
        return transposed(maker.inputs[0], tuple(inner[p] for p in perm), node)
    long = [p for p in perm if x.shape[p] != 1]
    if long == sorted(long):
        return reshaped(x, tuple(x.shape[p] for p in perm), node)
    return apply(OPS["anec.transpose"], [x], {"perm": perm}, node.sources)[0]


def reshaped(x: Value, shape: tuple[int, ...], node: Node) -> Value:
    while (maker := made_by(x, "anec.reshape")) is not None and maker.inputs[0] is not None:
        x = maker.inputs[0]
    return x if x.shape == shape else apply(OPS["anec.reshape"], [x], {"shape": shape}, node.sources)[0]


def _product(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    operands, attrs = list(inputs), dict(node.attrs)
    for i, flag in ((0, "transpose_lhs"), (1, "transpose_rhs")):
        maker = made_by(operands[i], "anec.transpose")
        rank = len(maker.attrs["perm"]) if maker is not None else 0
        if maker is not None and maker.attrs["perm"] == (*range(rank - 2), rank - 1, rank - 2):
            operands[i], attrs[flag] = maker.inputs[0], not attrs[flag]
    return None if operands == list(inputs) else apply(OPS[node.op], operands, attrs, node.sources)


def _both(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
    first, second = (made_by(v, "anec.transpose") for v in inputs[:2])
    if first is None or second is None or first.attrs != second.attrs or first.types != second.types:
        return None
    made = apply(OPS[node.op], [first.inputs[0], second.inputs[0]], node.attrs, joined_sources(node, first))
    return (transposed(made[0], first.attrs["perm"], node),)
