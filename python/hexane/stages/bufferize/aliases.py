"""Finds values that share memory before anything is placed: outputs with their ports, and operands of a concatenation
with its result. Finds the last read of each value's memory, including reads through views and concatenations."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.graph import Graph, Node, TensorType, Value
from hexane.graph.array_bits import reshaped_view
from hexane.ops import LEAVES, OPS
from hexane.ops.records.program import PROGRAM
from hexane.program import Buffer, View, dense_strides
from hexane.targets import Kernels, Target


@dataclass(frozen=True, slots=True)
class Aliases:
    """home: the view into `buffers` of each value that must be computed at a fixed place. ports: by name, the views of
    outputs that need no copy. last_use: the position of the last node that may read a value's memory, or the number of
    nodes for outputs."""

    buffers: list[Buffer]
    home: dict[Value, View]
    ports: dict[str, View]
    last_use: dict[Value, int]


def find_aliases(graph: Graph, order: Sequence[Node]) -> Aliases:
    """Returns aliases for the graph's outputs only. Each of these outputs is computed in its port."""
    aliases = Aliases([], {}, {}, _last_uses(graph, order))
    _claim_ports(graph, aliases)
    return aliases


def claim_concatenations(
    graph: Graph,
    order: Sequence[Node],
    aliases: Aliases,
    target: Target,
    users: Mapping[Value, Sequence[Node]],
    separate: bool = False,
) -> None:
    """Computes an operand of a concatenation inside the result, if its producer and all its readers support the
    strides. separate: disables this."""
    roots = set(graph.roots)
    for node in reversed(order):
        if node.op != "concat":
            continue
        result = node.values[0]
        if result not in aliases.home:
            aliases.buffers.append(Buffer("arena", result.type.bytes, space=target.space("arena").name))
            aliases.home[result] = View(len(aliases.buffers) - 1, 0, result.type, dense_strides(result.type))
        times = Counter(node.inputs)
        for value, piece in pieces(node, aliases.home[result]):
            free = (
                not separate
                and times[value] == 1
                and value not in roots
                and value not in aliases.home
                and is_computed(value)
            )
            if (
                free
                and accepts(target.kernels, value.node, piece)
                and all(user is node or reads(target.kernels, user, piece) for user in users[value])
            ):
                aliases.home[value] = piece


def pieces(node: Node, whole: View) -> list[tuple[Value, View]]:
    """Returns each operand of a concatenation with the part of the result that it becomes."""
    axis, at, result = int(node.attrs["axis"]), 0, []
    for value in node.inputs:
        assert value is not None
        # An empty operand gets the offset of the result, because its offset by strides may lie outside the buffer.
        offset = whole.offset + (at * whole.strides[axis] if value.type.size else 0)
        result.append((value, View(whole.buffer, offset, value.type, canonical(whole.strides, value.type))))
        at += value.shape[axis]
    return result


def window(node: Node, source: View) -> View | None:
    """Returns the node's result as a view of its input's memory, or None if strides cannot express it.

    NumPy computes the strides: the record's ref runs on an array that has the input's strides but only one element.
    """
    kind = node.types[0]
    if kind.size == 0:
        return View(source.buffer, source.offset, kind, dense_strides(kind))
    element = np.zeros(1, f"V{source.type.dtype.bits // 8}")
    array = np.lib.stride_tricks.as_strided(element, source.type.shape, source.strides)
    try:
        result = reshaped_view(array, kind.shape) if node.op == "reshape" else OPS[node.op].ref(array, **node.attrs)
    except ValueError:
        return None
    offset = result.__array_interface__["data"][0] - array.__array_interface__["data"][0]
    return View(source.buffer, source.offset + offset, kind, canonical(result.strides, kind))


def reads(kernels: Kernels, user: Node, view: View) -> bool:
    """True if the node `user` can read the view: its kernel supports the strides, or its op is a concatenation or a
    view."""
    return user.op == "concat" or OPS[user.op].view or accepts(kernels, user, view)


def accepts(kernels: Kernels, node: Node, view: View) -> bool:
    """True if the node's kernel supports operands with the view's strides."""
    accepted = kernels.accepts(OPS[node.op].kernel)
    if accepted == "strided" or view.dense:
        return True
    return accepted == "rows" and view.type.rank > 0 and view.strides[-1] * 8 == view.type.dtype.bits


def is_computed(value: Value) -> bool:
    """True if a step writes the value and its place can be chosen."""
    return value.node.op not in (*LEAVES, "write_state") and not OPS[value.node.op].view


def _claim_ports(graph: Graph, aliases: Aliases) -> None:
    """Assigns each computed output to its port, looking through reshapes. A value is assigned to one port only."""
    for port in graph.outputs:
        value = port.value
        while value.node.op == "reshape":
            value = value.node.inputs[0]  # type: ignore[assignment]
        if not is_computed(value) or value in aliases.home or value.node.op == PROGRAM:
            continue
        aliases.buffers.append(Buffer("port", port.value.type.bytes, port.name))
        buffer = len(aliases.buffers) - 1
        aliases.home[value] = View(buffer, 0, value.type, dense_strides(value.type))
        aliases.ports[port.name] = View(buffer, 0, port.value.type, dense_strides(port.value.type))


def _last_uses(graph: Graph, order: Sequence[Node]) -> dict[Value, int]:
    index = {id(node): i for i, node in enumerate(order)}
    roots = set(graph.roots)
    last = {v: len(order) if v in roots else -1 for node in order for v in node.values}
    for node in reversed(order):
        shares = node.op in ("concat", "write_state") or (node.op in OPS and OPS[node.op].view)
        until = max(index[id(node)], last[node.values[0]] if shares else -1)
        for value in node.inputs:
            if value is not None:
                last[value] = max(last[value], until)
    return last


def canonical(strides: Sequence[int], kind: TensorType) -> tuple[int, ...]:
    """Returns the strides in normal form: an axis of extent 1, whose stride has no meaning, gets the dense stride."""
    result = list(strides)
    for i in reversed(range(kind.rank)):
        if kind.shape[i] == 1:
            result[i] = result[i + 1] * kind.shape[i + 1] if i + 1 < kind.rank else kind.dtype.bits // 8
    return tuple(result)
