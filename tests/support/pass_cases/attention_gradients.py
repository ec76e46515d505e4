"""Cases of the pass that recognises the gradients of an attention."""

from typing import Any

import hexane as hx
from hexane.passes.fuse.fuse_attention_gradient import fuse_attention_gradient
from pass_cases.graphs import Case


def gradients(*more: hx.Tensor, key: tuple[int, ...] = (2, 5, 4), **attrs: Any) -> list[hx.Tensor]:
    operands = [hx.input("query", (2, 5, 4)), hx.input("key", key), hx.input("value", key)]
    y = hx.scaled_dot_product_attention(*operands, *more, **attrs)
    return list(hx.grad(hx.reduce_sum(y * hx.input("weight", (2, 5, 4))), operands))


FIRES: dict[str, Case] = {
    "fuse_attention_gradient": (fuse_attention_gradient, gradients),
    "fuse_attention_gradient_causal": (fuse_attention_gradient, lambda: gradients(causal=True)),
    "fuse_attention_gradient_masked": (
        fuse_attention_gradient,
        lambda: gradients(hx.input("mask", (5, 5), "bool"), hidden=-2.0, scale=0.3),
    ),
    "fuse_attention_gradient_added_mask": (fuse_attention_gradient, lambda: gradients(hx.input("mask", (5, 5)))),
}

LEAVES: dict[str, Case] = {
    "gradients_of_an_attention_to_other_keys": (fuse_attention_gradient, lambda: gradients(key=(2, 7, 4))),
    "gradients_of_an_attention_to_shared_keys": (fuse_attention_gradient, lambda: gradients(key=(1, 5, 4))),
    "gradients_of_an_attention_without_nan": (fuse_attention_gradient, lambda: gradients(zero_hidden=True)),
    "gradients_of_an_attention_without_its_keys": (fuse_attention_gradient, lambda: gradients()[::2]),
}
