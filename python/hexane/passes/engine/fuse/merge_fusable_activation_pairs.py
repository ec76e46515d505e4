"""Merges two consecutive activations if a single activation has the same effect."""

from math import inf
from typing import Any

import numpy as np

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.ops.match import joined_sources, made_by
from hexane.passes.engine.chain import TABLE, Readers, slots_of
from hexane.targets import Target

STAGE = "merge_fusable_activation_pairs"
_IDEMPOTENT = ("abs", "sign", "floor", "ceil", "round_nearest")


def merge_fusable_activation_pairs(graph: Graph, target: Target) -> Graph:
    """anec.neuron(anec.neuron(%x) {mode=relu}) {mode=clamped_relu, alpha=-1.0, beta=6.0}  ->  anec.neuron(%x) {mode=clamped_relu, beta=6.0}

    Clamps merge their limits; of two equal idempotent activations one is removed. Requires that nothing else reads the
    first activation.
    """  # noqa: E501
    if "anec.neuron" not in graph.ops:
        return graph
    readers, decisions = Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        first = made_by(inputs[0], "anec.neuron") if node.op == "anec.neuron" else None
        if first is None or slots_of(first) or slots_of(node) or inputs[0] is None or not readers.alone(inputs[0]):
            return None
        one = _joined(first, node)
        if one is None:
            return None
        decisions.append(Decision(STAGE, node.where, "fused", f"one activation with {first.where}", TABLE))
        return apply(OPS[node.op], [first.inputs[0]], {**node.attrs, **one}, joined_sources(first, node))

    return graph.rewrite(change).decided(*decisions)


def _limits(node: Node) -> tuple[float, float] | None:
    mode = node.attrs["mode"]
    return (
        (0.0, inf) if mode == "relu" else (node.attrs["alpha"], node.attrs["beta"]) if mode == "clamped_relu" else None
    )


def _joined(first: Node, second: Node) -> dict[str, Any] | None:
    if first.attrs["mode"] == second.attrs["mode"] and first.attrs["mode"] in _IDEMPOTENT:
        return {}
    inner, outer = _limits(first), _limits(second)
    if inner is None or outer is None:
        return None
    low, high = (float(np.clip(v, *outer)) for v in inner)
    if (low, high) == (0.0, inf):
        return {"mode": "relu", "alpha": 0.0, "beta": 0.0}
    return {"mode": "clamped_relu", "alpha": low, "beta": high}
