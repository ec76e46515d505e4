"""Pools, reductions and norms as layers of the engine."""

from collections.abc import Callable
from typing import Any

import numpy as np

from hexane.graph import Node
from hexane.lowering.layouts import first_perm
from hexane.ops import simpler
from hexane.ops.slots import activation, slot


def pool(kind: str) -> Callable[..., Any]:
    def lowered(b: Any, node: Node, x: Any) -> Any:
        attrs = {k: v for k, v in node.attrs.items() if k != "layout"}
        if node.attrs["layout"] == "nchw":
            return b.layer("pool", x, kind=kind, **attrs)
        rank = len(x.shape)
        first = b.transpose(x, perm=first_perm(rank))
        return b.transpose(b.layer("pool", first, kind=kind, **attrs), perm=(0, *range(2, rank), 1))

    return lowered


def reduction(kind: str, operand: str = "none", after: str = "") -> Callable[..., Any]:
    slots = (activation("post_activation", after),) if after else ()
    return lambda b, node, x: b.layer("reduction", x, kind=kind, operand=operand, **node.attrs, epilogue=slots)


def log_sum_exp(b: Any, node: Node, x: Any) -> Any:
    """Lowers logsumexp without subtracting the largest number first, as the chip does. M3 Max returns 0 if the sum of
    exponentials overflows fp16, from 7.63 on over 32 channels (coremltools#2690)."""
    axes, keep = node.attrs["axes"], node.attrs["keep_dims"]
    powers = b.layer("neuron", x, mode="exp")
    total = b.layer("reduction", powers, kind="sum", axes=axes, epilogue=(activation("post_activation", "log"),))
    return total if keep else b.reshape(total, shape=node.types[0].shape)


def rms_norm(b: Any, node: Node, x: Any, gamma: Any) -> Any:
    """Lowers an RMS norm. One layer computes the mean square, adds epsilon and computes the reciprocal root."""
    axes = tuple(a % len(x.shape) for a in node.attrs["axes"])
    slots = (slot("gain_offset", gain=-1, offset=1, axis=0), activation("post_activation", "rsqrt"))
    epsilon = b.const(np.array(node.attrs["epsilon"], np.float32))
    y = b.layer("mul", x, b.layer("reduction", x, epsilon, kind="avg", operand="sqr", axes=axes, epilogue=slots))
    return y if gamma is None else b.layer("mul", y, gamma)


def l2_norm(b: Any, node: Node, x: Any) -> Any:
    """Lowers an L2 norm to its layer, or to other layers if it is along the batch, which the layer does not support."""
    axes = node.attrs["axes"]
    if len(x.shape) >= 4 and 0 in axes:
        return simpler.l2_norm(b, x, **node.attrs)
    return b.layer("l2_norm", x, axes=axes, epsilon=node.attrs["epsilon"])


def arg_min_max(kind: str) -> Callable[..., Any]:
    return lambda b, node, x: b.layer("arg_min_max", x, kind=kind, **node.attrs)
