"""Lets matrix products read transposed operands without a copy."""

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.passes.simplify.fold import fold_node
from hexane.targets import Target


def fuse_transpose(graph: Graph, target: Target) -> Graph:
    """matmul(%x, transpose(%y) {perm=(0, 2, 3, 1)})  ->  matmul(%x, transpose(%y) {perm=(0, 2, 1, 3)}) {transpose_y=True}

    Requires that the remaining transpose keeps the innermost axis innermost, so that rows stay contiguous in memory.
    """  # noqa: E501

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        operands, attrs = list(inputs), node.attrs
        for i, flag in ((0, "transpose_x"), (1, "transpose_y")):
            maker = made_by(operands[i], "transpose") if flag in attrs else None
            if maker is None:
                continue
            perm = list(maker.attrs["perm"])
            perm[-1], perm[-2] = perm[-2], perm[-1]
            if perm[-1] == len(perm) - 1:
                operands[i] = transposed(maker.inputs[0], tuple(perm), node.sources)  # type: ignore[arg-type]
                attrs = {**attrs, flag: not attrs[flag]}
        return None if operands == list(inputs) else apply(OPS[node.op], operands, attrs, node.sources)

    return graph.rewrite(change, _PRODUCTS)


_PRODUCTS = {name for name, op in OPS.items() if "transpose_y" in (op.attrs or {})}


def transposed(value: Value, perm: tuple[int, ...], sources: tuple[str, ...] = ()) -> Value:
    """Returns the value with its axes permuted, by the cheapest op.

    A transpose of a transpose becomes one transpose. A permutation that only moves axes of extent 1 becomes a reshape.
    A constant is transposed at compile time.
    """
    maker = made_by(value, "transpose")
    if maker is not None:
        inner: tuple[int, ...] = maker.attrs["perm"]
        source = maker.inputs[0]
        assert source is not None
        return transposed(source, tuple(inner[p] for p in perm), sources)
    if perm == tuple(range(len(perm))):
        return value
    long_axes = [p for p in perm if value.shape[p] != 1]
    if long_axes == sorted(long_axes):
        return apply(OPS["reshape"], [value], {"shape": tuple(value.shape[p] for p in perm)}, sources)[0]
    result = apply(OPS["transpose"], [value], {"perm": perm}, sources)[0]
    folded = fold_node(result.node)
    return folded[0] if folded is not None else result
