"""Cases of the pass that recognises the gradients of a root mean square norm."""

from typing import Any

import hexane as hx
from hexane.passes.fuse.fuse_norm_gradient import fuse_norm_gradient
from pass_cases.graphs import Case


def gradients(
    *, shape: tuple[int, ...] = (2, 3, 8), gamma: tuple[int, ...] = (8,), scaled: bool = True, **attrs: Any
) -> list[hx.Tensor]:
    x, scale = hx.input("x", shape), hx.input("gamma", gamma)
    y = hx.rms_norm(x, scale if scaled else None, **attrs)
    return list(hx.grad(hx.reduce_sum(y * hx.input("weight", shape)), [x, scale] if scaled else [x]))


FIRES: dict[str, Case] = {
    "fuse_norm_gradient": (fuse_norm_gradient, gradients),
    "fuse_norm_gradient_of_a_row": (fuse_norm_gradient, lambda: gradients(shape=(8,), epsilon=1e-3)),
    "fuse_norm_gradient_of_x_alone": (fuse_norm_gradient, lambda: gradients()[:1]),
}

LEAVES: dict[str, Case] = {
    "gradients_of_a_norm_of_several_axes": (fuse_norm_gradient, lambda: gradients(gamma=(3, 8), axes=(1, 2))),
    "gradients_of_a_norm_without_gamma": (fuse_norm_gradient, lambda: gradients(scaled=False)),
    "gradients_of_a_norm_for_gamma_alone": (fuse_norm_gradient, lambda: gradients()[1:]),
}
