"""Replaces a matrix product whose result is split along its columns by one product per part."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from hexane.graph import Graph, Node, Value, constant
from hexane.ops import OPS, apply
from hexane.ops.match import made_by
from hexane.targets import Target

_PRODUCTS = ("matmul", "linear")


def split_products(graph: Graph, target: Target) -> Graph:
    """split(matmul(%x, const [64, 192], %b) : [32, 192]) {axis=1, num_splits=3}  ->  matmul(%x, const [64, 64], %b[:64]), ..

    Queries, keys and values are often computed as one product. The product's weights must be a constant matrix, its
    bias constant, and its readers a split, or slices of columns that do not overlap, possibly after reshapes that keep
    the columns. The sums and their order do not change.
    """  # noqa: E501
    counts, users = graph.use_counts(), graph.users()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        old, x = node.inputs[0], inputs[0]
        spans = _spans(node)
        if spans is None or old is None or x is None or not _is_parted(old, users.get(old, []), counts):
            return None
        operands = [_part(old, x, begin, end, node, counts) for begin, end in spans]
        parts = tuple([v for v in operands if v is not None])
        return parts if len(parts) == len(spans) else None

    return graph.rewrite(change, ("split", "slice_by_index"))


def _spans(node: Node) -> list[tuple[int, int]] | None:
    """Returns the range of columns of each result, or None if the node slices another axis or has a stride."""
    x = node.inputs[0]
    if x is None or x.type.rank == 0 or any(t.rank != x.type.rank for t in node.types):
        return None
    last = x.type.rank - 1
    widths = [t.shape[last] for t in node.types]
    if any(t.shape[:last] != x.shape[:last] for t in node.types) or 0 in widths:
        return None
    if node.op == "split":
        begins = np.cumsum([0, *widths[:-1]]).tolist()
    elif node.op == "slice_by_index" and node.attrs["stride"][last] == 1 and all(s > 0 for s in node.attrs["stride"]):
        begins = [node.attrs["begin"][last] % x.shape[last]]
    else:
        return None
    return [(begin, begin + width) for begin, width in zip(begins, widths, strict=True)]


def _is_parted(value: Value, readers: Sequence[Node], counts: Counter[Value]) -> bool:
    """True if every reader of the value reads a range of its columns and no two ranges overlap."""
    by_reader = [_spans(reader) for reader in readers]
    if len(readers) != counts[value] or any(spans is None for spans in by_reader):
        return False
    spans = sorted(span for spans in by_reader for span in spans or [])
    return len(spans) > 1 and all(a[1] <= b[0] for a, b in pairwise(spans))


def _part(old: Value, now: Value, begin: int, end: int, node: Node, counts: Counter[Value]) -> Value | None:
    """Returns these columns of a value, computed by a product of their own, or None. old: the value in the original
    graph, in which `counts` counts reads."""
    reshape, add = made_by(old, "reshape"), made_by(old, "add")
    sources = (*now.node.sources, *(s for s in node.sources if s not in now.node.sources))
    if reshape is not None:
        inner, inner_now = reshape.inputs[0], now.node.inputs[0]
        if inner is None or inner_now is None or counts[inner] != 1 or inner.shape[-1:] != old.shape[-1:]:
            return None
        part = _part(inner, inner_now, begin, end, node, counts)
        shape = (*old.shape[:-1], end - begin)
        return None if part is None else apply(OPS["reshape"], [part], {"shape": shape}, sources)[0]
    if add is not None:
        for i in (0, 1):
            inner, inner_now, bias = add.inputs[i], now.node.inputs[i], now.node.inputs[1 - i]
            if inner is None or inner_now is None or counts[inner] != 1 or inner.type != old.type:
                continue
            columns = _columns(bias, begin, end, old.shape[-1])
            part = None if columns is None else _part(inner, inner_now, begin, end, node, counts)
            if part is not None:
                return apply(OPS["add"], [part, columns] if i == 0 else [columns, part], {}, sources)[0]
        return None
    product = made_by(old, *_PRODUCTS)
    return None if product is None else _product(now.node, begin, end, sources)


def _product(node: Node, begin: int, end: int, sources: tuple[str, ...]) -> Value | None:
    x, weight, bias = (*node.inputs, None)[:3]
    data = None if weight is None or weight.node.op != "const" else weight.node.data
    if weight is None or data is None or data.ndim != 2:
        return None
    out_first = node.op == "linear" or node.attrs["transpose_y"]
    width = data.shape[0 if out_first else 1]
    part = data[begin:end] if out_first else data[:, begin:end]
    columns = None if bias is None else _columns(bias, begin, end, width)
    if bias is not None and columns is None:
        return None
    weights = constant(np.ascontiguousarray(part), weight.node.sources, weight.dtype)
    return apply(OPS[node.op], [x, weights, columns], node.attrs, sources)[0]


def _columns(bias: Value | None, begin: int, end: int, width: int) -> Value | None:
    """Returns these columns of a constant bias, or the bias itself if it is one number per row."""
    data = None if bias is None or bias.node.op != "const" else bias.node.data
    if bias is None or data is None:
        return None
    if prod(data.shape[-1:]) == 1:
        return bias
    return (
        constant(np.ascontiguousarray(data[..., begin:end]), bias.node.sources, bias.dtype)
        if data.shape[-1] == width
        else None
    )
