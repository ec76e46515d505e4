"""Layers whose steps round elsewhere than in the expansion of their record."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hexane.dtypes import FP16
from hexane.graph import EpilogueSlot, Value
from hexane.ops import OPS
from hexane.ops.compose import Builder, cast
from hexane.ops.records.engine.mac import sdpa_core, swapped_rows
from hexane.ops.records.engine.planar import REDUCTIONS
from hexane.ops.records.norm import expand_batch_norm
from hexane.ops.slot_steps import run_chain
from hexane.passes.engine.deconvolution_steps import deconvolution
from hexane.passes.engine.steps import Steps


def _softmax(b: Builder, x: Value, axis: int) -> Value:
    return b.softmax(x, axis=axis)


def _sdpa(b: Builder, *inputs: Value | None, subtract_max: bool, **attrs: Any) -> Value:
    if subtract_max:
        attend = partial(b.apply, "scaled_dot_product_attention")
        result = sdpa_core(attend, *inputs, turn=partial(swapped_rows, b), **attrs)
    else:
        result = OPS["anec.sdpa"].expand(b, *inputs, subtract_max=subtract_max, **attrs)  # type: ignore[misc]
    assert isinstance(result, Value)
    return result


def _instance_norm(b: Builder, x: Value, gamma: Value | None, beta: Value | None, epsilon: float, layout: str) -> Value:
    """Computes an instance norm as a group norm with one channel per group."""
    assert layout == "nchw"
    result = OPS["group_norm"].expand(b, x, gamma, beta, num_groups=x.shape[1], epsilon=epsilon)  # type: ignore[misc]
    assert isinstance(result, Value)
    return result


def _reduction(
    b: Builder,
    *inputs: Value | None,
    kind: str,
    operand: str,
    axes: tuple[int, ...],
    keep_dims: bool,
    epilogue: tuple[EpilogueSlot, ...],
    rounds: tuple[str, ...],
) -> Value:
    """Rounds the squares or magnitudes, their sum, and a directly following gain and offset once together."""
    assert isinstance(b, Steps)
    affine = dict(epilogue[0].attributes) if epilogue and epilogue[0].op == "gain_offset" else None
    if kind not in ("sum", "avg") or (operand == "none" and affine is None) or "accumulate" in rounds:
        result = OPS["anec.reduction"].expand(
            b, *inputs, kind=kind, operand=operand, axes=axes, keep_dims=keep_dims, epilogue=epilogue, rounds=rounds
        )  # type: ignore[misc]
        assert isinstance(result, Value)
        return result
    x = inputs[0]
    if operand != "none":
        x = b.wide("mul", x, x) if operand == "sqr" else b.wide("abs", x)
    y = b.wide(REDUCTIONS[kind], x, axes=axes, keep_dims=keep_dims)
    if affine is not None:
        for name, op in (("gain", "mul"), ("offset", "add")):
            if affine[name] >= 0:
                y = b.wide(op, y, _along(b, inputs[affine[name]], len(y.shape) - 1 - affine["axis"]))
        epilogue = epilogue[1:]
    return run_chain(b, cast(b, y, FP16), epilogue, inputs, rounds, FP16)  # type: ignore[no-any-return]


def _along(b: Builder, constant: Value | None, trailing: int) -> Value | None:
    """Reshapes a vector along an axis for broadcasting; `trailing` is the number of axes after it. A scalar is returned
    unchanged."""
    return constant if constant is None or not constant.shape else b.reshape(constant, shape=(-1, *[1] * trailing))


def _l2_norm(b: Builder, x: Value, axes: tuple[int, ...], epsilon: float) -> Value:
    """Multiplies x by the rsqrt of its sum of squares plus epsilon. The chip holds the sum with the precision of fp16
    but a wider exponent. If the sum overflows fp16, the rsqrt table reads sum * 2^-16 or sum * 2^-32, and the product
    is multiplied by 2^-8 or 2^-16 to compensate.
    """
    assert isinstance(b, Steps)
    total = b.wide("reduce_sum", b.wide("mul", x, x), axes=axes, keep_dims=True)
    total = b.wide("add", total, b.const(np.array(epsilon, np.float32)))
    narrow = cast(b, total, FP16)
    root, down, fits = b.rsqrt(narrow), b.const(np.float16(1)), b.less(narrow, np.inf)
    for scale in (2.0**-8, 2.0**-16):
        total = b.wide("mul", total, 2.0**-16)
        narrow = cast(b, total, FP16)
        root, down = b.select(fits, root, b.rsqrt(narrow)), b.select(fits, down, b.const(np.float16(scale)))
        fits = b.less(narrow, np.inf)
    return b.mul(b.mul(x, root), down)


def _over_root(b: Builder, x: Value, v: Value) -> Value:
    return b.mul(x, b.rsqrt(v))


STEPS: dict[str, Callable[..., Value]] = {
    "anec.softmax": _softmax,
    "anec.sdpa": _sdpa,
    "anec.instance_norm": _instance_norm,
    "anec.reduction": _reduction,
    "anec.l2_norm": _l2_norm,
    "anec.batch_norm": partial(expand_batch_norm, over_root=_over_root),
    "anec.deconvolution": deconvolution,
}
