"""Forms that keep an engine's program whole if rows at a run-time index are written to a cache, or are read from a
result of the engine."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import inf

import numpy as np

from hexane.dtypes import BOOL, INT32
from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.compose import held, part
from hexane.ops.records.linear import attention_of_parts
from hexane.ops.rewriter import Rewriter
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.retarget.cached_rows import VIEWS, attributes_of, parts_of, rows_of
from hexane.passes.retarget.marked import marked_programs
from hexane.passes.simplify.write_rows import write_rows
from hexane.targets import Chip
from hexane.targets.floors import op_unit

ATTENTION = "scaled_dot_product_attention"
OF_MASKS = ("select", "cast", "add", "sub", "mul", "maximum", "minimum", "clip")
BESIDE = "it reads the old state and the new rows as two operands: the host writes the rows afterwards"
CHOSEN = "the engine inserts the new row into its copy of the state: the host writes the row to the state afterwards"
ONE_ROW = "the host compares the index with each position, and the engine hides all other rows and takes the maximum"
SOURCE = "hexane, exact"
MOST_CHOSEN = 1 << 20  # the most elements to choose a row from: reading more costs more than a transfer to the host


Runs = Callable[[Node], bool]


def read_caches(graph: Graph, chip: Chip, runs: Runs) -> Graph:
    """attention(%q, write_state(%k, %row, %p), ..)  ->  attention(%q, (%k, %row), .., the keys of %k at %p hidden)

    The host writes rows of a state if their position is known only at run time. A program that read the written rows
    back would have to wait for the host in each layer of a decoder. Rows that are scattered into a port would have to
    be awaited too. An attention multiplies its queries by the old keys and by the new keys, and hides the overwritten
    keys. Any op other than an attention reads `select(place == %p, %row, %k)`, if the update is one row. The writes are
    kept as updates of states.

    In exact arithmetic the results do not change for finite caches. If an overwritten value is infinite or NaN, its
    product with the weight 0 is NaN. runs: true for nodes that the engine computes.
    """
    graph = write_rows(graph, most=1)  # writes of several rows are kept: attentions read them next to the state
    if marked_programs(graph).names or all(rows_of(node) is None for node in graph.nodes):
        return graph
    fused = fuse_attention(graph, chip)
    writes = [node.values[0] for node in fused.nodes if node.op == "write_state"]
    decisions: list[Decision] = []
    two_part, chosen = dict[Value, Value](), dict[Value, Value]()
    changed = _beside(fused, runs, two_part, decisions)
    changed = _chosen(changed, runs, chosen, decisions)
    if not decisions:
        return graph
    now = [chosen.get(w, w) for w in (two_part.get(value, value) for value in writes)]
    reached = {value for node in changed.nodes for value in node.values}
    lost = [value for value in now if value not in reached]
    return replace(changed, updates=(*changed.updates, *lost)).decided(*decisions)


# ---- attention ----


def _beside(graph: Graph, runs: Runs, became: dict[Value, Value], decisions: list[Decision]) -> Graph:
    """Returns the graph with attentions that read old and new keys as two operands."""

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        query, key, value, mask = inputs
        assert query is not None
        assert key is not None
        assert value is not None
        keys, values = parts_of(key), parts_of(value)
        if keys is None or values is None or keys.written != values.written or node.attrs["causal"] or not runs(node):
            return None
        if mask is not None and (not mask.type.rank or mask.shape[-1] != key.shape[-2]):
            return None
        b, seen = Rewriter(*keys.sources), key.shape[-2]  # the host computes the masks, because it also writes the rows
        places, last = keys.written, _last(b, keys.written, keys.distinct)
        old = b.logical_not(_overwritten(b, places, keys.extent))
        if seen < keys.extent:  # the attention reads the first rows only, and new rows may follow them
            old, last = part(b, old, 0, 0, seen), b.logical_and(last, b.less(places, seen))
            places = b.minimum(places, seen - 1)
        kept: Value | None = b.concat(old, last, axis=0)
        if mask is not None:
            mask = b.concat(mask, _columns(b, mask, places), axis=mask.type.rank - 1)
        attrs = {name: node.attrs[name] for name in ("causal", "scale", "zero_hidden", "hidden")}
        if mask is not None and mask.dtype is BOOL and attrs["hidden"] == -inf:
            mask, kept = b.logical_and(mask, kept), None  # two masks become one select
        decisions.append(Decision("retarget", node.where, "decomposed", BESIDE, SOURCE))
        result = attention_of_parts(Rewriter(*node.sources), query, keys.both, values.both, (mask, kept), **attrs)
        return (result,)

    return graph.rewrite(change, only=(ATTENTION,), became=became)


def _columns(b: Rewriter, mask: Value, places: Value) -> Value:
    """Returns columns of a mask. The gather comes before any select or sum of floats, because the engine computes
    selects and sums."""
    node, keys = mask.node, mask.shape[-1]
    x = node.inputs[0] if node.op in ("reshape", "expand_dims", "broadcast_to") else None
    if x is not None and x.dtype.kind == "float" and x.shape[-1:] == (keys,):
        some = _columns(b, x, places)
        return apply(OPS[node.op], [some], attributes_of(node, mask.type.rank - 1, places.type.size), node.sources)[0]
    if node.op not in OF_MASKS or mask.dtype.kind != "float":
        return b.gather(mask, places, axis=mask.type.rank - 1)
    wide = [v is not None and v.type.rank > 0 and v.shape[-1] == keys for v in node.inputs]
    operands = [_columns(b, v, places) if v and w else v for v, w in zip(node.inputs, wide, strict=True)]
    return apply(OPS[node.op], operands, node.attrs, node.sources)[0]


def _overwritten(b: Rewriter, places: Value, keys: int) -> Value:
    """Returns booleans (keys,), True at the positions of the new rows."""
    count = places.type.size
    if count == 1:
        return b.equal(b.const(np.arange(keys, dtype=places.dtype.numpy)), places)
    at, none = b.reshape(places, shape=(count, 1)), b.const(np.zeros(keys, np.bool_))
    return b.scatter_nd(none, at, np.ones(count, np.bool_))


def _last(b: Rewriter, places: Value, distinct: bool) -> Value:
    """Returns booleans (count,), True for the new rows that no later new row overwrites."""
    count = places.type.size
    if distinct:
        return b.const(np.ones(count, np.bool_))
    same = b.equal(b.reshape(places, shape=(count, 1)), places)
    later = b.logical_and(same, b.const(np.tri(count, k=-1, dtype=np.bool_)))
    times = b.reduce_max(b.cast(later, dtype=INT32), axes=(0,), keep_dims=False)
    return b.equal(times, b.const(np.int32(0)))


# ---- one row ----


def choose_rows(graph: Graph, runs: Runs) -> Graph:
    """gather(%x, %i)  ->  reduce_max(select(place == %i, %x, -inf))

    Applies if the engine computes x and the index comes from an input or from the host, such as the last token of a
    prompt. A gather would send x to the host. The index is still checked to be in range, on the host.
    """
    decisions: list[Decision] = []
    users = graph.users() if "gather" in graph.ops else {}
    computed = _computed(graph, runs) if users else set()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        x, index = inputs
        assert x is not None
        assert index is not None
        axis, read = node.attrs["axis"], node.inputs[0]
        if read not in computed or node.inputs[1] in computed or index.node.is_constant or index.type.size != 1:
            return None
        if (
            x.dtype.kind != "float"
            or x.type.size > MOST_CHOSEN
            or not _on_engine(users.get(node.values[0], ()), users, runs)
        ):
            return None
        b, keys = Rewriter(*node.sources), x.shape[axis]
        places = np.arange(keys, dtype=np.int32)
        # This gather from the list of all positions raises the error if the index is out of range.
        chosen = b.gather(b.const(places), b.reshape(index, shape=(1,)), axis=0)
        shown = b.reshape(b.equal(b.const(places), chosen), shape=(keys, *[1] * (x.type.rank - axis - 1)))
        row = b.reduce_max(b.select(shown, x, b.const(held(-inf, x.dtype.numpy))), axes=(axis,), keep_dims=True)
        decisions.append(Decision("retarget", node.where, "decomposed", ONE_ROW, SOURCE))
        return (b.reshape(row, shape=node.types[0].shape),)

    changed = graph.rewrite(change, only=("gather",)) if computed else graph
    return changed.decided(*decisions) if decisions else graph


def _computed(graph: Graph, runs: Runs) -> set[Value]:
    """Returns the values that depend on an op that does arithmetic on the engine."""
    result: set[Value] = set()
    for node in graph.nodes:
        if any(v in result for v in node.inputs) or (
            node.inputs and op_unit(node.op) in ("mac", "planar") and not node.is_constant and runs(node)
        ):
            result.update(node.values)
    return result


# ---- other readers ----


def _chosen(graph: Graph, runs: Runs, became: dict[Value, Value], decisions: list[Decision]) -> Graph:
    """Returns the graph with other ops of the engine reading a state into which a select puts the new row."""
    users = graph.users()
    wanted: dict[Node, tuple[Value, ...]] = {}  # reader -> the written states that it reads
    for node in graph.nodes:
        rows = rows_of(node)
        if rows is None or rows.num_rows != 1:
            continue
        (written,) = node.values
        readers = [user for user in users.get(written, ()) if user.op != "write_state"]
        if _on_engine(readers, users, runs):
            for user in readers:
                wanted[user] = (*wanted.get(user, ()), written)
    with_row: dict[Value, Value] = {}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node not in wanted:
            return None
        operands = list(inputs)
        for i, (old, value) in enumerate(zip(node.inputs, inputs, strict=True)):
            if old is None or value is None or old not in wanted[node]:
                continue
            if value not in with_row:
                with_row[value] = _with_row(value.node)
                decisions.append(Decision("retarget", value.node.where, "decomposed", CHOSEN, SOURCE))
            operands[i] = with_row[value]
        return node.with_inputs(tuple(operands)).values

    return graph.rewrite(change, became=became) if wanted else graph


def _on_engine(nodes: Iterable[Node], users: Mapping[Value, Sequence[Node]], runs: Runs) -> bool:
    """True if one of the nodes, or a reader of a view of one, runs on the engine."""
    ahead, seen = list(nodes), set[Node]()
    while ahead:
        one = ahead.pop()
        if one in seen:
            continue
        seen.add(one)
        if one.op not in VIEWS and not OPS[one.op].moves:
            if runs(one):
                return True
        else:
            ahead += [user for value in one.values for user in users.get(value, ())]
    return False


def _with_row(write: Node) -> Value:
    """Returns the state with its new row, by a select."""
    rows = rows_of(write)
    assert rows is not None
    b, keys = Rewriter(*write.sources), rows.whole.shape[rows.axis]
    places = _overwritten(b, rows.places, keys)
    places = b.reshape(places, shape=(keys, *[1] * (rows.whole.type.rank - rows.axis - 1)))
    return b.select(places, rows.update, rows.whole)
