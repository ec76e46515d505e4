"""Cases of passes that recognise attention, its heads and rotary embedding."""

import math
from collections.abc import Callable

import numpy as np

import hexane as hx
from hexane.passes.fuse.fold_signs import fold_signs
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.fuse.fuse_rotary import fuse_rotary
from hexane.passes.fuse.group_heads import group_heads
from pass_cases.graphs import (
    Case,
    block,
    normal,
)


def heads(name: str, rows: int = 5, columns: int = 4, dtype: str = "fp32") -> hx.Tensor:
    return hx.input(name, (2, 2, rows, columns), dtype)


def weighted(
    scores: Callable[[hx.Tensor], hx.Tensor] = lambda s: s * 0.5,
    weights: Callable[[hx.Tensor], hx.Tensor] = lambda w: w,
    dtype: str = "fp32",
    axis: int = -1,
) -> hx.Tensor:
    """softmax(scores(q @ k')) @ v"""
    q, k, v = heads("q", dtype=dtype), heads("k", 3, dtype=dtype), heads("v", 3, dtype=dtype)
    product = q @ hx.transpose(k, perm=(0, 1, 3, 2))
    return weights(hx.softmax(scores(product), axis=axis)) @ v


def hidden(value: float, keep: bool = True) -> Callable[[hx.Tensor], hx.Tensor]:
    mask, lowest = hx.input("mask", (5, 3), "bool"), np.float32(value)
    return lambda s: hx.select(mask, s, lowest) if keep else hx.select(mask, lowest, s)


def clipped(mask: np.ndarray, low: float = -32768.0) -> Callable[[hx.Tensor], hx.Tensor]:
    """As clamp_masks leaves a sum of scores and a constant mask."""
    return lambda s: hx.clip(s + mask.astype(np.float32), alpha=low)


def repeated(name: str, axis: int = 2) -> hx.Tensor:
    x = hx.input(name, (2, 2, 3, 4))
    shape = [2, 2, 3, 4]
    shape.insert(axis, 1)
    x = hx.reshape(x, shape=tuple(shape))
    shape[axis] = 3
    return hx.reshape(hx.broadcast_to(x, shape=tuple(shape)), shape=(2, 6, 3, 4))


def grouped(mask: hx.Tensor | None = None, axis: int = 2) -> hx.Tensor:
    return hx.scaled_dot_product_attention(hx.input("q", (2, 6, 5, 4)), repeated("k", axis), repeated("v"), mask)


def swapped(x: hx.Tensor) -> hx.Tensor:
    """The halves of each row in the other order, the first then negative."""
    half = x.shape[-1] // 2
    return hx.concat(-x[..., half:], x[..., :half], axis=len(x.shape) - 1)


def angles(rows: int = 3, columns: int = 2) -> hx.Tensor:
    turns = hx.input("angles", (rows, columns))
    return hx.concat(turns, turns, axis=1)


def turned(x: hx.Tensor, a: hx.Tensor, b: hx.Tensor, stack: bool = False, axis: int = -1) -> hx.Tensor:
    cos, sin = (hx.input(name, a.shape[1:]) for name in ("cos", "sin"))
    first, second = a * cos - b * sin, cos * b + a * sin
    if stack:
        first, second = (hx.reshape(y, shape=(*x.shape[:-1], -1, 1)) for y in (first, second))
    joined = hx.concat(first, second, axis=axis)
    return hx.reshape(joined, shape=x.shape) if joined.shape != x.shape else joined


FIRES: dict[str, Case] = {
    "fuse_attention": (fuse_attention, weighted),
    "fuse_attention_masked": (fuse_attention, lambda: weighted(lambda s: hx.input("mask", (2, 1, 1, 3)) + s / 2.0)),
    "fuse_attention_of_a_biased_product": (
        fuse_attention,
        lambda: (
            hx.softmax(hx.matmul(heads("q") * 0.5, heads("k"), hx.input("mask", (5,)), transpose_y=True)) @ heads("v")
        ),
    ),
    "fuse_attention_that_keeps": (fuse_attention, lambda: weighted(hidden(-math.inf))),
    "fuse_attention_that_hides": (fuse_attention, lambda: weighted(hidden(-math.inf, keep=False))),
    "fuse_attention_that_hides_by_a_number": (fuse_attention, lambda: weighted(hidden(-3.4e38, keep=False))),
    "fuse_attention_that_hides_by_a_small_number": (fuse_attention, lambda: weighted(hidden(-2))),
    "fuse_attention_scaled_before": (
        fuse_attention,
        lambda: (
            hx.softmax((heads("q") * 0.5) @ (0.25 * hx.transpose(heads("k"), perm=(0, 1, 3, 2))))
            @ hx.transpose(heads("v", 4, 5), perm=(0, 1, 3, 2))
        ),
    ),
    "fuse_attention_of_transposed_operands": (
        fuse_attention,
        lambda: hx.matmul(
            hx.softmax(hx.matmul(heads("q", 4, 5) / 2.0, heads("k"), transpose_x=True, transpose_y=True)),
            heads("v", 4, 5),
            transpose_y=True,
        ),
    ),
    "fuse_attention_between_reshapes": (
        fuse_attention,
        lambda: (
            (lambda k: hx.softmax(heads("q") @ hx.reshape(hx.transpose(k, perm=(0, 2, 1)), shape=(2, 2, 4, 5))))(
                hx.reshape(heads("k"), shape=(4, 5, 4))
            )
            @ heads("v")
        ),
    ),
    "fuse_attention_without_nan": (
        fuse_attention,
        lambda: weighted(hidden(-math.inf), lambda w: hx.select(w != w, np.float32(0), w)),
    ),
    "fuse_attention_without_hidden_rows": (
        fuse_attention,
        lambda: weighted(weights=lambda w: hx.select(hx.input("empty", (5, 1), "bool"), np.float32(0), w)),
    ),
    "fuse_attention_twice": (
        fuse_attention,
        lambda: (lambda y: hx.softmax(y @ hx.transpose(y, perm=(0, 1, 3, 2)) * 0.5) @ y)(weighted()),
    ),
    "fuse_attention_shared": (
        fuse_attention,
        lambda: (
            lambda q, k, v: [
                hx.softmax(hx.matmul(q * 0.5, k, transpose_y=True)) @ v,
                hx.softmax(hx.matmul(q * 0.5, v, transpose_y=True)) @ v,
                k,
            ]
        )(heads("q"), heads("k"), heads("v")),
    ),
    "group_heads": (group_heads, grouped),
    "group_heads_under_a_mask": (group_heads, lambda: grouped(hx.input("mask", (2, 1, 5, 3)))),
    "group_heads_under_masks": (group_heads, lambda: grouped(hx.input("mask", (6, 1, 3), "bool"))),
    "fold_signs": (fold_signs, lambda: (lambda x, t: x * np.cos(t) + swapped(x) * np.sin(t))(block(), normal(3, 4))),
    "fold_signs_of_a_factor_that_is_computed": (
        fold_signs,
        lambda: (lambda x, y, t: [swapped(x) * t, t * swapped(y)])(
            block(), hx.input("y", (2, 3, 4)), hx.sin(hx.input("t", (3, 4)))
        ),
    ),
    "fold_signs_of_a_middle_part": (
        fold_signs,
        lambda: (lambda x: hx.concat(x, hx.exp(x) * -1.0, x[:, :1], axis=1) * normal(7, 1))(block()),
    ),
    "fuse_rotary": (fuse_rotary, lambda: (lambda x, t: x * hx.cos(t) + swapped(x) * hx.sin(t))(block(), angles())),
    "fuse_rotary_by_constants": (
        fuse_rotary,
        lambda: (lambda x, t: np.sin(t) * swapped(x) + np.cos(t) * x)(block(), np.tile(normal(3, 2), 2)),
    ),
    "fuse_rotary_by_rows_of_a_table": (
        fuse_rotary,
        lambda: (
            lambda x, i: (
                x * hx.gather(np.tile(normal(5, 2), 2), i) + swapped(x) * hx.gather(np.tile(normal(5, 2), 2), i)
            )
        )(block(), hx.input("position", (3,), "int32") % 5),
    ),
    "fuse_rotary_of_halves": (fuse_rotary, lambda: (lambda x: turned(x, x[..., :2], x[..., 2:]))(block())),
    "fuse_rotary_of_neighbours": (
        fuse_rotary,
        lambda: (lambda x: turned(x, x[..., ::2], x[..., 1::2], stack=True))(block()),
    ),
    "fuse_rotary_of_pairs": (
        fuse_rotary,
        lambda: (lambda x, pairs: turned(x, pairs[..., :1], pairs[..., 1:]))(
            *(lambda x: (x, hx.reshape(x, shape=(2, 3, 2, 2))))(block())
        ),
    ),
    "fuse_rotary_shared": (
        fuse_rotary,
        lambda: (
            lambda x, y, t: [
                x * hx.cos(t) + swapped(x) * hx.sin(t),
                y * hx.cos(t) + swapped(y) * hx.sin(t),
                hx.exp(x),
                hx.cos(t),
            ]
        )(block(), block(name="y"), angles()),
    ),
}


LEAVES: dict[str, Case] = {
    "attention_of_clipped_sums_with_a_row_that_shows_no_key": (
        fuse_attention,
        lambda: weighted(clipped(np.tri(5, 3, -1) * 49152 - 49152)),
    ),
    "attention_of_sums_that_are_clipped_elsewhere": (
        fuse_attention,
        lambda: weighted(clipped(np.tri(5, 3) * 49152 - 49152, -8.0)),
    ),
    "the_sign_of_what_is_read_elsewhere": (
        fold_signs,
        lambda: (lambda x, n: [hx.concat(n, x, axis=2) * normal(3, 8), hx.exp(n)])(*(lambda x: (x, -x))(block())),
    ),
    "the_sign_where_the_factor_is_one_number_for_all": (
        fold_signs,
        lambda: (lambda x: hx.concat(-x, x, axis=2) * normal(3, 1))(block()),
    ),
    "attention_whose_scores_are_shared": (
        fuse_attention,
        lambda: (lambda s: [hx.softmax(s) @ heads("v"), hx.exp(s)])(heads("q") @ heads("k", 4, 5)),
    ),
    "attention_whose_weights_are_an_output": (
        fuse_attention,
        lambda: (lambda w: [w @ heads("v"), w])(hx.softmax(heads("q") @ heads("k", 4, 5))),
    ),
    "attention_whose_product_is_shared": (
        fuse_attention,
        lambda: (lambda s: [hx.softmax(s * 0.5) @ heads("v"), s])(heads("q") @ heads("k", 4, 5)),
    ),
    "attention_over_queries": (fuse_attention, lambda: weighted(axis=-2)),
    "attention_with_a_scale_that_is_computed": (
        fuse_attention,
        lambda: weighted(lambda s: s * hx.input("scale", (1,))),
    ),
    "attention_with_scales_of_keys": (fuse_attention, lambda: weighted(lambda s: s * normal(3))),
    "attention_of_scale_zero": (fuse_attention, lambda: weighted(lambda s: s * 0.0)),
    "attention_with_a_scaled_mask": (fuse_attention, lambda: weighted(lambda s: (s + hx.input("mask", (5, 3))) * 0.5)),
    "attention_with_a_mask_that_widens": (
        fuse_attention,
        lambda: weighted(lambda s: s + hx.input("mask", (3, 1, 1, 5, 3))),
    ),
    "attention_hidden_by_nan": (fuse_attention, lambda: weighted(hidden(math.nan))),
    "attention_with_a_choice_of_weights": (
        fuse_attention,
        lambda: weighted(weights=lambda w: hx.select(hx.input("which", (5, 3), "bool"), np.float32(0), w)),
    ),
    "attention_with_weights_for_nan": (
        fuse_attention,
        lambda: weighted(weights=lambda w: hx.select(w != w, np.float32(1), w)),
    ),
    "attention_with_a_bias": (
        fuse_attention,
        lambda: hx.matmul(hx.softmax(heads("q") @ heads("k", 4, 5)), heads("v"), normal(4)),
    ),
    "attention_of_values_that_widen": (
        fuse_attention,
        lambda: hx.softmax(hx.input("q", (5, 4)) @ hx.input("k", (4, 5))) @ heads("v"),
    ),
    "heads_that_do_not_repeat": (
        group_heads,
        lambda: hx.scaled_dot_product_attention(heads("q"), heads("k"), heads("v")),
    ),
    "heads_that_repeat_in_turns": (group_heads, lambda: grouped(axis=1)),
    "a_rotation_by_tables_whose_halves_differ": (
        fuse_rotary,
        lambda: (lambda x: x * normal(3, 4) + swapped(x) * normal(3, 4))(block()),
    ),
    "a_rotation_by_tables_that_are_given": (
        fuse_rotary,
        lambda: (lambda x: x * hx.input("cos", (3, 4)) + swapped(x) * hx.input("sin", (3, 4)))(block()),
    ),
    "a_rotation_of_two_tensors": (
        fuse_rotary,
        lambda: (lambda t: block() * hx.cos(t) + swapped(block(name="y")) * hx.sin(t))(angles()),
    ),
    "a_rotation_the_other_way": (
        fuse_rotary,
        lambda: (lambda x, t: x * hx.cos(t) + hx.concat(x[..., 2:], -x[..., :2], axis=2) * hx.sin(t))(
            block(), angles()
        ),
    ),
    "a_rotation_whose_product_is_shared": (
        fuse_rotary,
        lambda: (lambda x, y, t: [x * hx.cos(t) + y * hx.sin(t), y])(*(lambda x: (x, swapped(x)))(block()), angles()),
    ),
    "a_rotation_that_widens": (
        fuse_rotary,
        lambda: (lambda x, t: x * hx.cos(t) + swapped(x) * hx.sin(t))(hx.input("x", (4,)), angles()),
    ),
    "a_rotation_of_neighbours_joined_as_halves": (
        fuse_rotary,
        lambda: (lambda x: turned(x, x[..., ::2], x[..., 1::2]))(block()),
    ),
    "a_rotation_of_halves_joined_as_neighbours": (
        fuse_rotary,
        lambda: (lambda x: turned(x, x[..., :2], x[..., 2:], stack=True))(block()),
    ),
    "a_rotation_of_parts_in_the_other_order": (
        fuse_rotary,
        lambda: (lambda x: turned(x, x[..., 2:], x[..., :2]))(block()),
    ),
    "attention_whose_bias_is_scaled": (
        fuse_attention,
        lambda: (
            hx.softmax(hx.matmul(heads("q"), heads("k"), hx.input("mask", (5,)), transpose_y=True) * 0.5) @ heads("v")
        ),
    ),
    "attention_whose_biased_product_is_masked": (
        fuse_attention,
        lambda: (
            hx.softmax(
                hx.matmul(heads("q"), heads("k"), hx.input("bias", (5,)), transpose_y=True) + hx.input("mask", (5, 5))
            )
            @ heads("v")
        ),
    ),
}
