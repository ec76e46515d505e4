"""Lowers ops that are native on a chip to layers of its engine."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Graph, Node, Value, constant
from hexane.graph.decisions import Decision
from hexane.lowering.attention import attention, rotary
from hexane.lowering.elementwise import (
    affine,
    clamped,
    div,
    floor_div,
    hard_sigmoid,
    hard_swish,
    neuron,
    or_equal,
    prelu,
)
from hexane.lowering.movement import concatenated, reshaped, sliced, transposed
from hexane.lowering.products import conv, linear, matmul
from hexane.lowering.reductions import arg_min_max, l2_norm, log_sum_exp, pool, reduction, rms_norm
from hexane.lowering.weights import decoded, is_constant
from hexane.ops import OPS, apply
from hexane.ops.compose import lift
from hexane.ops.encodings import PALETTES, is_encoded
from hexane.ops.fold import fold_node
from hexane.ops.neurons import MODE_OF
from hexane.ops.recording import check, recorded
from hexane.ops.records.engine import movement, planar
from hexane.ops.rewriter import Pattern, Rewriter
from hexane.ops.verify import STATE_OPS
from hexane.targets import Target

# Layers with the same meaning and attributes as the user's op.
SAME = {
    op: f"anec.{name}" for name, op, _ in (*movement.SAME, *movement.RESAMPLED, *planar.SAME) if name != "unflatten"
}
SAME |= {op: f"anec.{name}" for name, op in (*planar.WITH_SLOTS.items(), *planar.WITHOUT.items())}
SAME["softmax"] = "anec.softmax"
del SAME["write_state"]


def lower(graph: Graph, target: Target) -> Graph:
    """relu(conv(%x, %w, %b))  ->  anec.neuron(anec.convolution(%x, %w, none, %b) {epilogue=(gain_offset(offset=3, ..))}) {mode=relu}

    Most ops become one layer of the engine. An op with only constant operands becomes a constant, unless it decodes
    weights that are stored quantised. Ops without a layer are expanded into ops with layers. If the chip is known to
    compute an op with other results, the layer keeps the op's meaning, and a hazard is recorded. Raises Error for an op
    that no layer computes.
    """  # noqa: E501
    b = Layers()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        if node.op in STATE_OPS or OPS[node.op].level == "engine":
            return None
        if all(is_constant(v) or is_encoded(v.node) for v in inputs if v is not None):
            stored = _with_one_table(node.with_inputs(inputs))
            known = stored.with_inputs(tuple(None if v is None else decoded(v) for v in inputs))
            # No layer supports several tables, a table of vectors, or several scales along its input channels.
            stays = is_encoded(stored) and stored.op not in (*PALETTES, "decode_blocks")
            result = None if stays else fold_node(known)
            if result is not None:
                return result
            if stored.op != node.op:
                node, inputs = stored, stored.inputs
        return b.lowered(node, inputs)

    return graph.rewrite(change).decided(*b.decisions)


def _with_one_table(node: Node) -> Node:
    """Rewrites decode_palette(const, const : fp16[1, 1, 16]) as gather(const : fp16[16], const : int32), the form of a
    layer's table. Returns other nodes unchanged."""
    indices, table = (
        (None if v is None else v.node.data for v in node.inputs[:2]) if len(node.inputs) > 1 else (None, None)
    )
    if (
        node.op != "decode_palette"
        or indices is None
        or table is None
        or table.size != table.shape[-1]
        or indices.ndim < 2
    ):
        return node
    picked = np.minimum(indices, table.size - 1).astype(np.int32)  # indices beyond the end select the last entry
    operands = [constant(table.reshape(-1), node.sources, node.types[0].dtype), constant(picked, node.sources)]
    return apply(OPS["gather"], operands, {"axis": 0}, node.sources)[0].node


def is_layer(node: Node) -> bool:
    return OPS[node.op].level == "engine"


class Layers(Rewriter):
    """A Rewriter that turns users' ops into layers of the engine and folds constants."""

    __slots__ = ("decisions",)

    def __init__(self) -> None:
        super().__init__(legal=is_layer, patterns=PATTERNS, folds=True)
        self.decisions: list[Decision] = []

    def layer(self, name: str, *inputs: Any, **attrs: Any) -> Any:
        """Applies the layer anec.NAME. Returns its output, or a tuple if it has several."""
        values = apply(OPS[f"anec.{name}"], lift(inputs, self.sources), attrs, self.sources)
        return values if len(values) > 1 else values[0]

    def apply(self, name: str, *inputs: Any, **attrs: Any) -> Any:
        """Applies a user's op, lowered to layers. Returns its output, or a tuple if it has several."""
        values = self.several(name, *inputs, **attrs)
        return values if len(values) > 1 else values[0]

    def lowered(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...]:
        """Returns the values of an op with these inputs, lowered to layers. The op itself is not folded."""
        outer, self.sources = self.sources, node.sources
        try:
            return self.rewritten(node.with_inputs(inputs))
        finally:
            self.sources = outer

    def rewritten(self, node: Node) -> tuple[Value, ...]:
        if not any(math.prod(t.shape) for t in node.types):  # every result has 0 elements
            return tuple(constant(np.empty(t.shape, t.dtype.numpy), node.sources) for t in node.types)
        return super().rewritten(node)

    def stuck(self, node: Node) -> tuple[Value, ...]:
        raise Error(f"[{node.where}] got {node.op}, which no layer of the engine computes, need it on another device")

    def hazard(self, node: Node, reason: str, source: str) -> None:
        self.decisions.append(Decision("lower", node.where, "hazard", reason, source))


LOWERINGS: dict[str, Callable[..., Any]] = {
    "conv": conv,
    "conv_transpose": partial(conv, transposed=True),
    "matmul": matmul,
    "linear": linear,
    "scaled_dot_product_attention": attention,
    "rotary_embedding": rotary,
    "relu6": lambda b, node, x: clamped(b, x, 0.0, 6.0),
    "threshold": lambda b, node, x: clamped(b, x, node.attrs["alpha"], np.inf),
    "neg": lambda b, node, x: affine(b, x, -1.0, None),
    "linear_activation": lambda b, node, x: affine(b, x, node.attrs["alpha"], node.attrs["beta"]),
    "sigmoid_hard": hard_sigmoid,
    "hard_swish": hard_swish,
    "prelu": prelu,
    "real_div": div,
    "floor_div": floor_div,
    "less_equal": or_equal("less"),
    "greater_equal": or_equal("greater"),
    "logical_and": lambda b, node, x, y: b.layer("select", x, y, b.const(np.array(False))),
    "max_pool": pool("max"),
    "avg_pool": pool("avg"),
    "reduce_sum": reduction("sum"),
    "reduce_mean": reduction("avg"),
    "reduce_max": reduction("max"),
    "reduce_min": reduction("min"),
    "reduce_sum_square": reduction("sum", "sqr"),
    "reduce_l1_norm": reduction("sum", "abs"),
    "reduce_l2_norm": reduction("sum", "sqr", "sqrt"),
    "reduce_log_sum": reduction("sum", after="log"),
    "reduce_log_sum_exp": log_sum_exp,
    "reduce_argmax": arg_min_max("max"),
    "reduce_argmin": arg_min_max("min"),
    "rms_norm": rms_norm,
    "l2_norm": l2_norm,
    "identity": lambda b, node, x: x,
    "reshape": reshaped,
    "expand_dims": reshaped,
    "squeeze": reshaped,
    "flatten2d": reshaped,
    "slice_by_index": sliced,
    "concat": concatenated,
    "transpose": transposed,
}


def checked(lowering: Callable[..., Any]) -> Pattern:
    """Returns a pattern that applies the lowering and checks that it has read every attribute of the node."""

    def pattern(b: Layers, node: Node) -> Any:
        view = recorded(node)
        result = lowering(b, view, *node.inputs)
        check(view, "lowering")
        return result

    return pattern


def _neuron_of_floats(b: Layers, node: Node) -> Any:
    return _NEURON(b, node) if node.types[0].dtype.kind == "float" else None


def _same(b: Layers, node: Node) -> Any:
    return b.layer(SAME[node.op].removeprefix("anec."), *node.inputs, **node.attrs)


_NEURON = checked(neuron)
PATTERNS: dict[str, tuple[Pattern, ...]] = {
    op: (*([checked(LOWERINGS[op])] if op in LOWERINGS else [_neuron_of_floats] if op in MODE_OF else []),
         *([_same] if op in SAME else []))
    for op in {**LOWERINGS, **MODE_OF, **SAME}
}  # fmt: skip
