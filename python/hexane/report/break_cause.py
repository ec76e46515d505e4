"""Finds why a layer that `culprit` found breaks the outputs: by the chip's rules for the layer. If a chip computes
several ops as one layer, each op is examined."""

from collections.abc import Callable
from math import inf

import numpy as np

from hexane.graph import Array, Graph, Value
from hexane.report.causes import CANCELS, Cause, Run, by_a_power, cause_of, doubted
from hexane.report.culprit import LARGEST, Blame, blamed

ROUNDED = ("overflow", "vanished", "magnified", "accumulated", "table", "reduction", "fp16")


def cause_of_break(graph: Graph, number: int, a: Run, b: Run) -> Cause:
    """Returns the cause of a layer's wrong result with exact operands. a: the chip's run with exact values before the
    layer; b: the model in its own dtypes. If the chip computes several ops as one layer, the cause names the op."""
    cause = cause_of(graph, number, a, b, exact=True)
    if cause.kind not in ROUNDED or "tried" in cause.change.replace("(not tried)", ""):
        return cause
    numbers = {node: n for n, node in enumerate(graph.nodes)}

    def known(value: Value) -> Array | None:
        n = numbers.get(value.node, -1)
        if n not in b.layers and n in a.layers:  # `b` has fused the layer into another layer
            return a.array(n)
        return b.array(n) if n in b.layers else b.feeds.get(str(value.node.attrs.get("name")))

    blame = blamed(graph.nodes[number], known, lambda value: numbers.get(value.node, -1) in a.layers)
    if blame is None or blame.node.where == cause.where:
        return cause
    return _of_operand(blame, a.label, known) or _of_blame(blame, a.label)


def _of_operand(blame: Blame, label: str, known: Callable[[Value], Array | None]) -> Cause | None:
    """Returns the cause if an operand of the op overflows fp16, None if not. Infinity over infinity is NaN, and an
    infinite operand makes a product infinite."""
    if blame.kind != "overflow":
        return None
    for value in blame.node.inputs:
        if value is None or (value.node.op == "const" and abs(blame.exact) >= LARGEST):
            continue
        array = known(value)
        if array is None or array.dtype.kind != "f":
            continue
        size = np.abs(array.astype(np.float64))
        if not (size >= LARGEST).any():
            continue
        where = f"input {value.node.attrs['name']!r}" if value.node.op == "input" else value.node.where
        index = np.unravel_index(int(np.argmax(size)), size.shape)
        became = "NaN" if np.isnan(blame.stored) else "infinite"
        why = f"{label}: {where}: {array[index]:g} becomes infinite: it is beyond fp16"
        why += f"; {blame.node.where} reads it, and {blame.exact:g} becomes {became}"
        evidence = f"element {[int(i) for i in index]} of {value.type} is {array[index]:g}"
        return Cause("overflow", where, doubted(value.node, why), evidence, by_a_power(True, value.node))
    return None


def _of_blame(blame: Blame, label: str) -> Cause:
    where, kind = blame.node.where, blame.node.types[0]
    evidence = (
        f"element {list(blame.index)} of {kind} is {blame.exact:g}, and {blame.stored:g} in fp16; with its exact result"
        f" the layer is {blame.after:.2g} apart, without {'infinite' if blame.before == inf else f'{blame.before:.2g}'}"
    )
    if blame.kind == "cancelled":
        why = f"{label}: {where}: fp16 has too few digits for its result"
        return Cause("magnified", where, doubted(blame.node, why), evidence, CANCELS)
    became = "infinite: it is beyond fp16" if blame.kind == "overflow" else "0, or loses its digits: it is below fp16"
    why = f"{label}: {where}: {blame.exact:g} becomes {became}"
    known = by_a_power(blame.kind == "overflow", blame.node)
    return Cause(blame.kind, where, doubted(blame.node, why), evidence, known)
