"""Ops that the C99 runtime has no kernel for."""

import numpy as np

import hexane as hx
from hexane.passes.legalize.expand_for_c99 import expand_for_c99
from pass_cases.graphs import Case


def attention() -> hx.Tensor:
    q, k, v = (hx.input(name, (1, 2, 4, 8)) for name in "qkv")
    return hx.scaled_dot_product_attention(q, k, v)


FIRES: dict[str, Case] = {
    "expand_for_c99": (expand_for_c99, attention),
    "expand_for_c99_log_softmax": (expand_for_c99, lambda: hx.log_softmax(hx.input("x", (2, 5)), axis=1)),
}

LEAVES: dict[str, Case] = {
    "softmax_for_c99": (expand_for_c99, lambda: hx.softmax(hx.input("x", (2, 5)), axis=1)),
    "conv_for_c99": (expand_for_c99, lambda: hx.conv(hx.input("x", (1, 3, 8, 8)), np.ones((4, 3, 3, 3), np.float32))),
}
