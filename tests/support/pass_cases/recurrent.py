"""Recurrent networks that stay loops, and those that are written out."""

import numpy as np

import hexane as hx
from hexane.passes.legalize.keep_recurrent import keep_recurrent, keep_recurrent_for_c99
from pass_cases.graphs import Case


def lstm(dtype: str = "fp32", gates: int = 4) -> list[hx.Tensor]:
    x, weight = hx.input("x", (3, 1, 4), dtype), hx.input("w", (1, gates * 4, 4), dtype)
    return list(hx.lstm(x, weight, hx.input("r", (1, gates * 4, 4), dtype)))


def gru() -> list[hx.Tensor]:
    x, weight = hx.input("x", (3, 1, 4)), hx.input("w", (1, 12, 4))
    return list(hx.gru(x, weight, hx.input("r", (1, 12, 4))))


def of_lengths() -> list[hx.Tensor]:
    x, weight = hx.input("x", (2, 5, 4)), hx.input("w", (2, 12, 4))
    options = {"direction": "bidirectional", "batch_first": True, "linear_before_reset": True}
    return list(hx.gru(x, weight, hx.input("r", (2, 12, 4)), lengths=np.array([5, 3], np.int32), **options))


def trained() -> list[hx.Tensor]:
    x, weight, recurrent = hx.input("x", (2, 1, 4)), hx.input("w", (1, 4, 4)), hx.input("r", (1, 4, 4))
    y = hx.rnn(x, weight, recurrent)[0]
    loss = hx.reduce_sum(y * y)
    return [loss, *hx.grad(loss, [weight])]


FIRES: dict[str, Case] = {
    "keep_recurrent": (keep_recurrent, lstm),
    "keep_recurrent_of_lengths": (keep_recurrent, of_lengths),
    "keep_recurrent_of_a_last_state": (keep_recurrent, lambda: lstm()[1:2]),
    "keep_recurrent_for_c99": (keep_recurrent_for_c99, gru),
}

LEAVES: dict[str, Case] = {
    "recurrent_in_fp64": (keep_recurrent, lambda: lstm("fp64")),
    "recurrent_with_gradients": (keep_recurrent, trained),
    "recurrent_in_fp16_for_c99": (keep_recurrent_for_c99, lambda: lstm("fp16")),
}
