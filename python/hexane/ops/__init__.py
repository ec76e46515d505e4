"""The catalogue: the records of all ops of users, of kernels and of the engine, by name. `hexane.ops` also evaluates a
node by its record."""

from collections.abc import Sequence

import numpy as np

from hexane.graph import Array, Node
from hexane.ops.application import apply
from hexane.ops.neurons import NEURONS
from hexane.ops.records import (
    accumulating_product,
    attention_gradient,
    barrier,
    bf16_product,
    by_range,
    control,
    conv,
    decode,
    deform_conv,
    dynamic,
    einsum,
    elementwise,
    encoded_product,
    index,
    label_rows,
    linear,
    losses,
    matrix,
    norm,
    norm_gradient,
    optimizers,
    program,
    q31,
    quant,
    quant_mean,
    quant_product,
    random,
    rearrange,
    recurrent,
    reduce,
    resize,
    running,
    sampling,
    shape,
    signal,
    sort,
    sparse_product,
    state,
    training,
    widening_product,
    windows,
)
from hexane.ops.records.engine import engine_ops
from hexane.ops.slot_steps import chain_ref
from hexane.ops.spec import Op, kernel_form

__all__ = [
    "ENGINE_OPS",
    "FAMILIES",
    "KERNEL_FORMS",
    "LEAVES",
    "OPS",
    "USER_OPS",
    "Op",
    "apply",
    "evaluate",
    "evaluate_exactly",
]

FAMILIES = (
    elementwise,
    reduce,
    norm,
    linear,
    matrix,
    einsum,
    losses,
    training,
    optimizers,
    recurrent,
    conv,
    windows,
    shape,
    rearrange,
    resize,
    sampling,
    deform_conv,
    signal,
    index,
    sort,
    state,
    dynamic,
    control,
    random,
    quant,
    quant_product,
    quant_mean,
    by_range,
    q31,
)
USER_OPS: dict[str, Op] = {op.name: op for family in FAMILIES for op in family.OPS}
KERNEL_FORMS: dict[str, Op] = {op.name: kernel_form(op) for op in USER_OPS.values() if op.epilogue}
ENGINE_OPS: dict[str, Op] = engine_ops(USER_OPS)
OPS: dict[str, Op] = {
    op.name: op
    for op in (
        *USER_OPS.values(),
        *KERNEL_FORMS.values(),
        *ENGINE_OPS.values(),
        *program.OPS,
        *control.COMPILED_OPS,
        *running.OPS,
        *recurrent.LOOPS,
        *label_rows.OPS,
        *attention_gradient.OPS,
        *norm_gradient.OPS,
        *encoded_product.OPS,
        *sparse_product.OPS,
        *decode.OPS,
        *widening_product.OPS,
        *bf16_product.OPS,
        *accumulating_product.OPS,
        *barrier.OPS,
    )
}
LEAVES = ("input", "const", "param", "state")


def evaluate(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """Returns the node's outputs for these inputs: the record's ref in fp64 with the epilogue, rounded once.

    Integers and bools are computed in their own dtype. Raises Error if the op does, such as for an index out of range.
    """
    with np.errstate(all="ignore"):
        results = evaluate_exactly(node, arrays)
        return [np.asarray(r).astype(t.dtype.numpy, copy=False) for r, t in zip(results, node.types, strict=True)]


def evaluate_exactly(node: Node, arrays: Sequence[Array | None]) -> list[Array]:
    """Like `evaluate`, but does not round the result to its dtype."""
    op = OPS[node.op]
    attrs = dict(node.attrs)
    slots, rounds = attrs.pop("epilogue", ()), attrs.pop("rounds", ())
    with np.errstate(all="ignore"):
        wide = [a if a is None or op.moves else _widen(a) for a in arrays]
        results = op.ref(*wide[: len(op.inputs)] if op.takes_slots else wide, **attrs)
        if not isinstance(results, list):
            results = [results]
        if op.level == "engine" and op.takes_slots:
            store = arrays[0].dtype  # type: ignore[union-attr]
            results[0] = chain_ref(results[0], slots, wide, rounds, store, _activated)
            slots = ()
        for slot in slots:
            if slot.operand is not None:
                results[0] = results[0] + wide[slot.operand]
            else:
                results[0] = OPS[slot.op].ref(results[0], **dict(slot.attributes))
        if op.stored is not None:
            results[0] = op.stored(results[0], **attrs)
        return [np.asarray(r) for r in results]


def _activated(mode: str, y: Array, alpha: float, beta: float) -> Array:
    """Applies an activation of the engine, by the record of the equal op of users."""
    neuron = NEURONS[mode]
    return np.asarray(OPS[neuron.op].ref(y, **neuron.attrs(alpha, beta)))


def _widen(array: Array) -> Array:
    floating = array.dtype.kind == "f" or array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e5m2")
    return array.astype(np.float64) if floating else array
