"""Writes rows of a state in place if a model scatters them into a copy of the state."""

from collections.abc import Sequence
from typing import NamedTuple

from hexane.graph import Graph, Node, Value
from hexane.lowering.row_updates import SCATTERS, RowUpdate, row_update
from hexane.ops import OPS, apply
from hexane.ops.compose import part
from hexane.ops.rewriter import Rewriter
from hexane.targets import Target

VIEWS = ("reshape", "expand_dims", "squeeze", "transpose", "identity")
MOST = 16  # the most rows: writing more costs as much as a copy.
Labels = tuple[int | None, ...]  # For each axis of a view: the state's axis, or None for an extent of 1.


def write_rows(graph: Graph, target: Target | None = None, most: int = MOST) -> Graph:
    """write_state(%s, view(scatter_nd(view(%s), %i, %row)))  ->  write_state(%s, view(%row), %i)

    Several rows become one write each, up to `most` of them: rows that start at a negative index may wrap around to row
    0. The views may be transposes, and reshapes that add or drop axes of extent 1, and must lead back to the axes of
    the state. Other readers of the scatter read the state after the write. A decoder's step writes one row, not a whole
    cache.
    """
    if "write_state" not in graph.ops or graph.ops.isdisjoint(SCATTERS):
        return graph
    writes = [node for node in graph.nodes if node.op == "write_state"]
    states = [node.inputs[0] for node in writes]
    alone = [node for node in writes if states.count(node.inputs[0]) == 1]
    by_scatter = {candidate.scatter: candidate for node in alone if (candidate := _found(node, most))}
    written: dict[Node, Value] = {}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node in written:
            return (written[node],)
        if node not in by_scatter:
            return None
        write, views, labels = by_scatter[node].write, by_scatter[node].views, by_scatter[node].labels
        rows = row_update(node.with_inputs(inputs))
        assert rows is not None
        whole = written[write] = _written(rows, labels, write)
        for view in views:  # the scatter's readers expect the scatter's axes
            (whole,) = apply(OPS[view.op], [whole], view.attrs, view.sources)
        return (whole,)

    return graph.rewrite(change) if by_scatter else graph


class _Found(NamedTuple):
    """A scatter into a view of a state, whose result `write` stores in the state. views: from the state to the scatter.
    labels: the axes after these views."""

    scatter: Node
    write: Node
    views: list[Node]
    labels: Labels


def _found(write: Node, most: int) -> _Found | None:
    state, update, _ = write.inputs
    if state is None or update is None or state.node.op != "state" or update.type != state.type:
        return None
    back, scatter = _views(update)
    rows = row_update(scatter) if scatter.op in SCATTERS else None
    if rows is None or rows.num_rows > most:
        return None
    views, start = _views(rows.whole)
    own: Labels = tuple([i if n != 1 else None for i, n in enumerate(state.shape)])
    labels = _followed(own, views) if start is state.node else None
    if labels is None or labels[rows.axis] is None or _followed(labels, back) != own:
        return None
    return _Found(scatter, write, views, labels)


def _views(value: Value) -> tuple[list[Node], Node]:
    """Returns the chain of views that ends in the value, first view first, and the node that they view."""
    path, node = list[Node](), value.node
    while node.op in VIEWS and node.inputs[0] is not None:
        path.insert(0, node)
        node = node.inputs[0].node
    return path, node


def _followed(labels: Labels | None, views: Sequence[Node]) -> Labels | None:
    """Returns the labels after the views, or None if a view splits or merges axes."""
    for node in views:
        if labels is None:
            return None
        before = node.inputs[0].shape if node.inputs[0] is not None else ()
        after = node.types[0].shape
        if node.op == "transpose":
            labels = tuple([labels[i] for i in node.attrs["perm"]])
        elif [n for n in before if n != 1] != [n for n in after if n != 1]:
            return None
        else:
            wide = iter([label for label in labels if label is not None])
            labels = tuple([next(wide) if n != 1 else None for n in after])
    return labels


def _written(rows: RowUpdate, labels: Labels, write: Node) -> Value:
    """Returns the state after the rows are written to it. The rows' axes are moved to the order of the state's axes."""
    state, axis = write.inputs[0], labels[rows.axis]
    assert state is not None
    assert axis is not None
    b, order = Rewriter(*write.sources), [label for label in labels if label is not None]
    count, perm = rows.num_rows, sorted(range(len(order)), key=order.__getitem__)
    update = b.reshape(rows.update, shape=[count if label == axis else state.shape[label] for label in order])
    update = update if perm == [*range(len(order))] else b.transpose(update, perm=perm)
    update = b.reshape(update, shape=[count if i == axis else n for i, n in enumerate(state.shape)])
    if count == 1:
        return b.write_state(state, update, rows.places, axis=axis)
    for i in range(count):
        row, place = part(b, update, axis, i, i + 1), part(b, rows.places, 0, i, i + 1)
        state = b.write_state(state, row, place, axis=axis)
    return state
