"""Cases of passes that recognise activations."""

import math
from functools import reduce

import numpy as np

import hexane as hx
from hexane.passes.fuse.fuse_clip import fuse_clip
from hexane.passes.fuse.fuse_gelu import fuse_gelu
from hexane.passes.fuse.fuse_gelu_tanh import fuse_gelu_tanh
from hexane.passes.fuse.fuse_silu import fuse_silu
from pass_cases.graphs import (
    Case,
)


def gelu(x: hx.Tensor) -> hx.Tensor:
    return x * (hx.erf(x / math.sqrt(2)) + 1.0) * 0.5


def gelu_tanh(x: hx.Tensor, cubic: float = 0.044715) -> hx.Tensor:
    return 0.5 * x * (1.0 + hx.tanh(math.sqrt(2 / math.pi) * (x + cubic * hx.pow(x, 3.0))))


FIRES: dict[str, Case] = {
    "fuse_gelu": (fuse_gelu, lambda: gelu(hx.input("x", (4,)))),
    "fuse_gelu_tanh": (fuse_gelu_tanh, lambda: gelu_tanh(hx.input("x", (4,)))),
    "fuse_gelu_tanh_by_horner": (
        fuse_gelu_tanh,
        lambda: (lambda x: x * (0.5 * (hx.tanh(x * 0.7978845608 * (0.044715 * x * x + 1.0)) + 1.0)))(
            hx.input("x", (4,))
        ),
    ),
    "fuse_silu": (fuse_silu, lambda: (lambda x: x * hx.sigmoid(x))(hx.input("x", (4,)))),
    "fuse_clip": (fuse_clip, lambda: hx.clip(hx.input("x", (4,)), alpha=0.0, beta=6.0)),
}


LEAVES: dict[str, Case] = {
    "gelu_of_another_constant": (fuse_gelu, lambda: (lambda x: x * (hx.erf(x / 1.5) + 1.0) * 0.5)(hx.input("x", (4,)))),
    "gelu_of_two_tensors": (
        fuse_gelu,
        lambda: hx.input("y", (4,)) * (hx.erf(hx.input("x", (4,)) / math.sqrt(2)) + 1.0) * 0.5,
    ),
    "gelu_that_broadcasts": (
        fuse_gelu,
        lambda: (lambda x: x * (hx.erf(x / math.sqrt(2)) + 1.0) * np.full((2, 4), 0.5, "f"))(hx.input("x", (4,))),
    ),
    "gelu_tanh_of_another_constant": (fuse_gelu_tanh, lambda: gelu_tanh(hx.input("x", (4,)), 0.0447)),
    "gelu_tanh_of_two_tensors": (
        fuse_gelu_tanh,
        lambda: hx.input("y", (4,)) * (hx.tanh(hx.input("x", (4,)) * math.sqrt(2 / math.pi)) + 1.0) * 0.5,
    ),
    "gelu_tanh_of_a_tower_of_sums": (
        fuse_gelu_tanh,
        lambda: (lambda x: 0.5 * x * (1.0 + hx.tanh(reduce(lambda y, _: y + y, range(60), x))))(hx.input("x", (4,))),
    ),
    "silu_of_two_tensors": (fuse_silu, lambda: hx.input("y", (4,)) * hx.sigmoid(hx.input("x", (4,)))),
    "clip_at_minus_zero": (fuse_clip, lambda: hx.clip(hx.input("x", (4,)), alpha=-0.0)),
    "clip_of_integers": (fuse_clip, lambda: hx.clip(hx.input("x", (4,), "int32"), alpha=0, beta=6)),
}
