"""Each pass: what it fires on, what it must leave alone, and that the graph still computes the same."""

import inspect
import math
import re
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hexane as hx
from compare import assert_close
from hexane import pipeline
from hexane.graph import Graph
from hexane.passes.cancel import cancel
from hexane.passes.channels_last import channels_last
from hexane.passes.expand import expand
from hexane.passes.fold import fold
from hexane.passes.fold_batch_norm import fold_batch_norm
from hexane.passes.fold_pad import fold_pad
from hexane.passes.fold_qdq import fold_qdq
from hexane.passes.fp16 import to_fp16
from hexane.passes.fuse_attention import fuse_attention
from hexane.passes.fuse_bias import fuse_bias
from hexane.passes.fuse_clip import fuse_clip
from hexane.passes.fuse_epilogue import fuse_epilogue
from hexane.passes.fuse_gelu import fuse_gelu
from hexane.passes.fuse_gelu_tanh import fuse_gelu_tanh
from hexane.passes.fuse_layer_norm import fuse_layer_norm
from hexane.passes.fuse_lookup import fuse_lookup
from hexane.passes.fuse_rms_norm import fuse_rms_norm
from hexane.passes.fuse_rotary import fuse_rotary
from hexane.passes.fuse_silu import fuse_silu
from hexane.passes.fuse_transpose import fuse_transpose
from hexane.passes.group_heads import group_heads
from hexane.passes.move_qdq import move_qdq
from hexane.passes.split_conv_3d import split_conv_3d
from hexane.passes.spread_conv_transpose_3d import spread_conv_transpose_3d
from hexane.passes.trim_output_transpose import trim_output_transpose
from hexane.passes.widen import widen
from hexane.pipeline import lower, passes
from hexane.printer import print_graph
from hexane.reference import run_reference
from hexane.targets import load_target

HOST = load_target("host")
Pass = Callable[[Graph], Graph]
rng = np.random.default_rng(3)


@pytest.fixture(autouse=True)
def _same_weights_in_whatever_order_tests_run() -> None:
    global rng
    rng = np.random.default_rng(3)


def epilogue(graph: Graph) -> Graph:
    return fuse_epilogue(graph, HOST)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def image(channels: int = 3) -> hx.Tensor:
    return hx.input("x", (1, channels, 6, 5))


def conv(x: hx.Tensor, out: int, **attrs: object) -> hx.Tensor:
    return hx.conv(x, normal(out, x.shape[1], 3, 3), pad=1, **attrs)  # type: ignore[arg-type]


def gelu(x: hx.Tensor) -> hx.Tensor:
    return x * (hx.erf(x / math.sqrt(2)) + 1.0) * 0.5


def gelu_tanh(x: hx.Tensor, cubic: float = 0.044715) -> hx.Tensor:
    return 0.5 * x * (1.0 + hx.tanh(math.sqrt(2 / math.pi) * (x + cubic * hx.pow(x, 3.0))))


def layer_norm(x: hx.Tensor, axes: tuple[int, ...] = (-1,), keep_dims: bool = True) -> hx.Tensor:
    centred = x - hx.reduce_mean(x, axes=axes)
    variance = hx.reduce_mean(hx.pow(centred, 2.0), axes=axes, keep_dims=keep_dims)
    return centred / hx.sqrt(variance + 1e-5)


def mean_square(x: hx.Tensor) -> hx.Tensor:
    return hx.reduce_mean(hx.pow(x, 2.0), axes=(-1,)) + 1e-6


def residual() -> hx.Tensor:
    x = image(4)
    return hx.relu(conv(conv(x, 4), 4) + x)


def attention() -> hx.Tensor:
    q, k = hx.input("q", (1, 5, 2, 4)), hx.input("k", (1, 5, 2, 4))
    return hx.transpose(q, perm=(0, 2, 1, 3)) @ hx.transpose(k, perm=(0, 2, 3, 1))


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


def normed(y: hx.Tensor, axis: int = 1) -> hx.Tensor:
    channels = y.shape[axis]
    params = normal(channels), rng.uniform(0.5, 2, channels).astype(np.float32), normal(channels), normal(channels)
    return hx.batch_norm(y, *params, axis=axis)


def padded(x: hx.Tensor, value: float = 0.0, end: int = 2, **attrs: str) -> hx.Tensor:
    return hx.pad(x, begin=(0, 0, 1, 0), end=(0, 0, end, 1), value=value, **attrs)


def twice(x: hx.Tensor, **attrs: str) -> hx.Tensor:
    return hx.resize_nearest_neighbor(x, height=12, width=10, scale_h=0.5, scale_w=0.5, mode="floor", **attrs)


def shared(make: Callable[[hx.Tensor], hx.Tensor]) -> list[hx.Tensor]:
    """The op's operand is read by somebody else too."""
    y = conv(image(), 4)
    return [make(y), hx.exp(y)]


def block(dtype: str = "fp32", name: str = "x") -> hx.Tensor:
    return hx.input(name, (2, 3, 4), dtype)


def casts(source: str, *dtypes: str) -> hx.Tensor:
    x = hx.input(source, (2, 3, 4), source)
    for d in dtypes:
        x = hx.cast(x, dtype=d)
    return x


def grid(scale: float = 0.5, zero: int | None = 3, dtype: str = "int8") -> list[hx.Tensor | None]:
    """A scale and zero point."""
    return [hx.const(np.float32(scale)), None if zero is None else hx.const(np.array(zero, dtype))]


def integers(name: str = "q", shape: tuple[int, ...] = (2, 3, 4), dtype: str = "int8") -> hx.Tensor:
    return hx.input(name, shape, dtype)


def real(name: str = "q", shape: tuple[int, ...] = (2, 3, 4), scale: float = 0.5, **kind: Any) -> hx.Tensor:
    """What an int8 input stands for."""
    return hx.dequantize(integers(name, shape), *grid(scale, **kind))


def steps(x: hx.Tensor, scale: float = 0.5, zero: int | None = 3, dtype: str = "int8") -> hx.Tensor:
    return hx.quantize(x, *grid(scale, zero, dtype), dtype=dtype)


def kernel(out: int, inner: int, scale: float = 0.25, zero: int | None = None, dtype: str = "int8") -> hx.Tensor:
    """Quantised weights of a 3x3 convolution."""
    data = rng.integers(-128, 128, (out, inner, 3, 3)) + (0 if dtype == "int8" else 128)
    return hx.dequantize(hx.const(data.astype(dtype)), *grid(scale, zero, dtype))


def qdq_conv(x: hx.Tensor, out: int = 4, bias: Any = None, **attrs: Any) -> hx.Tensor:
    return hx.conv(x, kernel(out, x.shape[1]), bias, pad=1, **attrs)


def transposed_weights(
    inner: int = 3, outer: int = 2, size: int = 2, axis: int = 1, zero: bool = False, dtype: str = "int8"
) -> hx.Tensor:
    """Quantised weights of a transposed convolution, a scale and zero point for each index of an axis."""
    n = (inner, outer)[axis]
    data = rng.integers(-128, 128, (inner, outer, size, size)) + (0 if dtype == "int8" else 128)
    zeros = np.arange(7, 7 + n).astype(dtype) if zero else None
    return hx.dequantize(hx.const(data.astype(dtype)), 2.0 ** np.arange(n, dtype="f"), zeros, axis=axis)


def widened(x: hx.Tensor, weights: hx.Tensor | None = None, bias: Any = None, **attrs: Any) -> hx.Tensor:
    return hx.conv_transpose(x, transposed_weights() if weights is None else weights, bias, **{"strides": 2, **attrs})


def between_convolutions() -> hx.Tensor:
    """A transposed convolution and another, joined, before a third."""
    table = np.arange(256, dtype=np.uint8)[::-1].astype(np.int8)
    first = hx.lookup(steps(hx.relu(widened(photo())), 64.0), table)
    joined = hx.concat(first, steps(qdq_conv(real("r", (1, 2, 12, 10)), 2), 64.0), axis=1)
    return steps(qdq_conv(hx.dequantize(joined, *grid(64.0))), 4096.0)


def int_bias(scale: float, *numbers: int) -> hx.Tensor:
    return hx.dequantize(hx.const(np.array(numbers, np.int32)), np.float32(scale))


def photo(name: str = "q", channels: int = 3, **kind: Any) -> hx.Tensor:
    return real(name, (1, channels, 6, 5), **kind)


def columns(rows: int = 4, wide: int = 5, axis: int = 1) -> hx.Tensor:
    """Quantised weights of a matrix product, a scale and zero point for each index of an axis."""
    n = (rows, wide)[axis]
    data = rng.integers(-128, 128, (rows, wide)).astype(np.int8)
    return hx.dequantize(hx.const(data), 2.0 ** np.arange(n, dtype="f"), np.arange(n, dtype=np.int8), axis=axis)


def dynamic(scale: hx.Tensor) -> hx.Tensor:
    product = hx.quantized_matmul(
        integers("q", (2, 3, 4), "uint8"), rng.integers(-128, 128, (4, 5)).astype(np.int8), None, None,
        hx.input("z", (), "uint8"), dtype="int32",
    )  # fmt: skip
    return hx.cast(product, dtype="fp32") * scale


def cancelled(outputs: list[hx.Tensor]) -> list[hx.Tensor]:
    return [hx.Tensor(port.value) for port in cancel(hx.graph(outputs)).outputs]


def fold_qdq_of(outputs: hx.Tensor | list[hx.Tensor]) -> list[hx.Tensor]:
    return [hx.Tensor(port.value) for port in fold_qdq(hx.graph(outputs)).outputs]


FIRES: dict[str, tuple[Pass, Callable[[], hx.Tensor | list[hx.Tensor]]]] = {
    "expand_linear": (expand, lambda: hx.linear(hx.input("x", (2, 3)), normal(4, 3), normal(4))),
    "split_conv_3d": (split_conv_3d, lambda: hx.conv(hx.input("x", (1, 2, 4, 3, 3)), normal(3, 2, 2, 1, 1), strides=2)),
    "spread_conv_transpose_3d": (
        spread_conv_transpose_3d,
        lambda: hx.conv_transpose(hx.input("x", (1, 2, 3, 2, 2)), normal(2, 1, 2, 2, 1), groups=2, strides=(2, 1, 1), pad=(1, 0, 0)),
    ),
    "fold_constants": (fold, lambda: hx.input("x", (2,)) + hx.exp(hx.const([0.0, 1.0])) * 2.0),
    "fuse_gelu": (fuse_gelu, lambda: gelu(hx.input("x", (4,)))),
    "fuse_gelu_tanh": (fuse_gelu_tanh, lambda: gelu_tanh(hx.input("x", (4,)))),
    "fuse_gelu_tanh_by_horner": (
        fuse_gelu_tanh,
        lambda: (lambda x: x * (0.5 * (hx.tanh(x * 0.7978845608 * (0.044715 * x * x + 1.0)) + 1.0)))(hx.input("x", (4,))),
    ),
    "fuse_layer_norm": (fuse_layer_norm, lambda: layer_norm(block()) * normal(4) + normal(1, 4)),
    "fuse_layer_norm_of_two_axes": (fuse_layer_norm, lambda: normal(3, 4) * layer_norm(block(), (1, 2))),
    "fuse_layer_norm_shared": (
        fuse_layer_norm, lambda: (lambda y: [y * normal(4), hx.exp(y)])(layer_norm(block()))
    ),
    "fuse_layer_norm_by_products": (
        fuse_layer_norm,
        lambda: (lambda d: hx.rsqrt(1e-5 + hx.reduce_mean(d * d, axes=(2,))) * d + normal(4))(
            (lambda x: x - hx.reduce_mean(x, axes=(2,)))(block())
        ),
    ),
    "fuse_rms_norm": (fuse_rms_norm, lambda: (lambda x: x / hx.sqrt(mean_square(x)) * normal(4))(block())),
    "fuse_rms_norm_by_an_inverse": (
        fuse_rms_norm, lambda: (lambda x: normal(4) * (x * (1.0 / hx.sqrt(mean_square(x)))))(block())
    ),
    "fuse_rms_norm_by_a_power": (
        fuse_rms_norm, lambda: (lambda x: hx.pow(hx.reduce_mean(x * x, axes=(-1,)), -0.5) * x)(block())
    ),
    "fuse_rms_norm_shared": (
        fuse_rms_norm,
        lambda: (lambda y: [y * normal(4), hx.exp(y)])((lambda x: x * hx.inverse(hx.sqrt(mean_square(x))))(block())),
    ),
    "fuse_attention": (fuse_attention, weighted),
    "fuse_attention_masked": (fuse_attention, lambda: weighted(lambda s: hx.input("mask", (2, 1, 1, 3)) + s / 2.0)),
    "fuse_attention_of_a_biased_product": (
        fuse_attention,
        lambda: hx.softmax(hx.matmul(heads("q") * 0.5, heads("k"), hx.input("mask", (5,)), transpose_y=True)) @ heads("v"),
    ),
    "fuse_attention_that_keeps": (fuse_attention, lambda: weighted(hidden(-math.inf))),
    "fuse_attention_that_hides": (fuse_attention, lambda: weighted(hidden(-math.inf, keep=False))),
    "fuse_attention_that_hides_by_a_number": (fuse_attention, lambda: weighted(hidden(-3.4e38, keep=False))),
    "fuse_attention_scaled_before": (
        fuse_attention,
        lambda: hx.softmax((heads("q") * 0.5) @ (0.25 * hx.transpose(heads("k"), perm=(0, 1, 3, 2))))
        @ hx.transpose(heads("v", 4, 5), perm=(0, 1, 3, 2)),
    ),
    "fuse_attention_of_transposed_operands": (
        fuse_attention,
        lambda: hx.matmul(
            hx.softmax(hx.matmul(heads("q", 4, 5) / 2.0, heads("k"), transpose_x=True, transpose_y=True)),
            heads("v", 4, 5), transpose_y=True,
        ),
    ),
    "fuse_attention_between_reshapes": (
        fuse_attention,
        lambda: (lambda k: hx.softmax(heads("q") @ hx.reshape(hx.transpose(k, perm=(0, 2, 1)), shape=(2, 2, 4, 5))))(
            hx.reshape(heads("k"), shape=(4, 5, 4))
        ) @ heads("v"),
    ),
    "fuse_attention_without_nan": (
        fuse_attention, lambda: weighted(hidden(-math.inf), lambda w: hx.select(w != w, np.float32(0), w))
    ),
    "fuse_attention_without_hidden_rows": (
        fuse_attention,
        lambda: weighted(weights=lambda w: hx.select(hx.input("empty", (5, 1), "bool"), np.float32(0), w)),
    ),
    "fuse_attention_twice": (
        fuse_attention, lambda: (lambda y: hx.softmax(y @ hx.transpose(y, perm=(0, 1, 3, 2)) * 0.5) @ y)(weighted())
    ),
    "fuse_attention_shared": (
        fuse_attention,
        lambda: (lambda q, k, v: [
            hx.softmax(hx.matmul(q * 0.5, k, transpose_y=True)) @ v, hx.softmax(hx.matmul(q * 0.5, v, transpose_y=True)) @ v, k
        ])(heads("q"), heads("k"), heads("v")),
    ),
    "group_heads": (group_heads, grouped),
    "group_heads_under_a_mask": (group_heads, lambda: grouped(hx.input("mask", (2, 1, 5, 3)))),
    "group_heads_under_masks": (group_heads, lambda: grouped(hx.input("mask", (6, 1, 3), "bool"))),
    "fuse_rotary": (fuse_rotary, lambda: (lambda x, t: x * hx.cos(t) + swapped(x) * hx.sin(t))(block(), angles())),
    "fuse_rotary_by_constants": (
        fuse_rotary,
        lambda: (lambda x, t: np.sin(t) * swapped(x) + np.cos(t) * x)(block(), np.tile(normal(3, 2), 2)),
    ),
    "fuse_rotary_by_rows_of_a_table": (
        fuse_rotary,
        lambda: (lambda x, i: x * hx.gather(np.tile(normal(5, 2), 2), i) + swapped(x) * hx.gather(np.tile(normal(5, 2), 2), i))(
            block(), hx.input("position", (3,), "int32") % 5
        ),
    ),
    "fuse_rotary_of_halves": (fuse_rotary, lambda: (lambda x: turned(x, x[..., :2], x[..., 2:]))(block())),
    "fuse_rotary_of_neighbours": (
        fuse_rotary, lambda: (lambda x: turned(x, x[..., ::2], x[..., 1::2], stack=True))(block())
    ),
    "fuse_rotary_of_pairs": (
        fuse_rotary,
        lambda: (lambda x, pairs: turned(x, pairs[..., :1], pairs[..., 1:]))(
            *(lambda x: (x, hx.reshape(x, shape=(2, 3, 2, 2))))(block())
        ),
    ),
    "fuse_rotary_shared": (
        fuse_rotary,
        lambda: (lambda x, y, t: [
            x * hx.cos(t) + swapped(x) * hx.sin(t), y * hx.cos(t) + swapped(y) * hx.sin(t), hx.exp(x), hx.cos(t)
        ])(block(), block(name="y"), angles()),
    ),
    "fuse_silu": (fuse_silu, lambda: (lambda x: x * hx.sigmoid(x))(hx.input("x", (4,)))),
    "cancel_transposes": (
        cancel, lambda: hx.exp(hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(1, 2, 0)))
    ),
    "cancel_transposes_to_one": (cancel, lambda: hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(2, 1, 0))),
    "cancel_transpose_to_reshape": (cancel, lambda: hx.transpose(hx.input("x", (2, 1, 4)), perm=(1, 0, 2))),
    "cancel_transposes_shared": (
        cancel, lambda: (lambda y: [hx.transpose(y, perm=(1, 2, 0)), hx.exp(y)])(hx.transpose(block(), perm=(2, 0, 1)))
    ),
    "cancel_reshapes": (cancel, lambda: hx.exp(hx.reshape(hx.reshape(block(), shape=(6, 4)), shape=(2, 3, 4)))),
    "cancel_reshapes_to_one": (cancel, lambda: hx.reshape(hx.reshape(block(), shape=(6, 4)), shape=(3, 8))),
    "cancel_casts": (cancel, lambda: [casts("fp16", "fp32", "fp16"), casts("int8", "fp16", "int8")]),
    "cancel_casts_to_one": (
        cancel, lambda: [casts("fp16", "fp32", "int8"), casts("uint8", "int32", "fp32"), casts("int32", "int64", "int8")]
    ),
    "cancel_reversals": (
        cancel,
        lambda: [hx.reverse(hx.reverse(block(), axes=(0, 2)), axes=(2, 0)),
                 hx.reverse(hx.reverse(hx.input("y", (2, 3)), axes=(0,)), axes=(1, 0))],
    ),
    "cancel_slice_concat_broadcast": (
        cancel,
        lambda: hx.broadcast_to(
            hx.concat(hx.slice_by_index(block(), begin=(0, 0, 0), end=(2, 3, 4)), np.zeros((2, 0, 4), "f"), axis=1),
            shape=(2, 3, 4),
        ),
    ),
    "cancel_negations": (
        cancel,
        lambda: [
            hx.neg(hx.neg(block())), hx.logical_not(hx.logical_not(hx.input("b", (3,), "bool"))),
            hx.abs(hx.abs(hx.input("y", (3,)))),
        ],
    ),
    "cancel_neutral_numbers": (cancel, lambda: np.ones((3, 1), "f") * block() / 1.0 - 0.0),
    "cancel_choices": (
        cancel,
        lambda: [hx.select(np.ones((3, 1), bool), block(), 0.0), hx.select(np.zeros((), bool), 0.0, block(name="y"))],
    ),
    "cancel_limits": (
        cancel,
        lambda: (lambda x: [
            hx.clip(hx.relu(hx.relu(x[0])), beta=6.0), hx.relu(hx.clip(x[1], alpha=-1.0, beta=0.5)),
            hx.clip(hx.clip(x[1] * 2.0, alpha=-1.0, beta=0.5), alpha=0.75, beta=2.0),
        ])(block()),
    ),
    "cancel_a_limit_that_is_shared": (
        cancel, lambda: (lambda y: [hx.relu(y), hx.exp(y)])(hx.relu6(block()))
    ),
    "fuse_clip": (fuse_clip, lambda: hx.clip(hx.input("x", (4,)), alpha=0.0, beta=6.0)),
    "fold_batch_norm": (fold_batch_norm, lambda: normed(hx.conv(image(), normal(4, 3, 3, 3), normal(4)))),
    "fold_batch_norm_nhwc": (
        fold_batch_norm,
        lambda: normed(hx.conv(hx.input("x", (1, 6, 5, 4)), normal(6, 2, 3, 1), groups=2, layout="nhwc"), axis=3),
    ),
    "fold_batch_norm_conv_transpose": (
        fold_batch_norm, lambda: normed(hx.conv_transpose(image(4), normal(4, 3, 3, 3), strides=2, groups=2))
    ),
    "fold_batch_norm_matmul": (fold_batch_norm, lambda: normed(hx.matmul(hx.input("x", (5, 3)), normal(4, 3), transpose_y=True))),
    "fold_batch_norm_chain": (
        fold_batch_norm, lambda: (normed(conv(image(), 4)) * normal(4, 1, 1) - normal(1, 4, 1, 1)) / normal(4, 1, 1)
    ),
    "fold_batch_norm_from_a_constant": (
        fold_batch_norm, lambda: normal(4) - hx.input("x", (2, 5, 3)) @ normal(3, 4)
    ),
    "fold_pad_conv": (fold_pad, lambda: hx.conv(padded(image()), normal(4, 3, 3, 3), pad=(1, 0), strides=2)),
    "fold_pad_nhwc": (
        fold_pad,
        lambda: hx.conv(
            hx.pad(hx.input("x", (1, 6, 5, 4)), begin=(0, 1, 0, 0), end=(0, 0, 2, 0)), normal(6, 4, 3, 3), layout="nhwc"
        ),
    ),
    "fold_pad_max_pool": (fold_pad, lambda: hx.max_pool(padded(image(), -math.inf), kernel_sizes=3, strides=2)),
    "fold_pad_max_pool_of_positive_numbers": (
        fold_pad, lambda: hx.max_pool(padded(hx.relu(image())), kernel_sizes=3, strides=2)
    ),
    "fold_pad_avg_pool": (fold_pad, lambda: hx.avg_pool(padded(image()), kernel_sizes=3, strides=2)),
    "fold_pad_shared": (
        fold_pad, lambda: (lambda y: [hx.conv(y, normal(4, 3, 3, 3)), hx.conv(y, normal(4, 3, 1, 1)), hx.exp(y)])(padded(image()))
    ),
    "fuse_bias_matmul": (fuse_bias, lambda: normal(1, 1, 4) + (hx.input("x", (1, 2, 3)) @ normal(3, 4))),
    "fuse_bias_conv": (fuse_bias, lambda: conv(image(), 4) + normal(4, 1, 1)),
    "fuse_transpose": (fuse_transpose, attention),
    "channels_last": (channels_last, residual),
    "channels_last_flatten": (channels_last, lambda: hx.flatten(hx.relu(conv(image(), 4)))),
    "channels_last_reduce": (
        channels_last, lambda: hx.reduce_mean(conv(image(), 4), axes=(2, 3), keep_dims=False) * 2.0
    ),
    "channels_last_concat": (
        channels_last, lambda: (lambda y: hx.concat(y, hx.relu(y), axis=1))(conv(image(), 4))
    ),
    "channels_last_resize": (
        channels_last, lambda: (lambda x: [twice(x), conv(twice(hx.exp(x)), 4), twice(conv(x, 4))])(image())
    ),
    "channels_last_transpose": (channels_last, lambda: hx.transpose(conv(image(), 4), perm=(0, 2, 3, 1))),
    "fuse_epilogue_residual": (epilogue, residual),
    "fuse_epilogue_elementwise": (epilogue, lambda: hx.relu(hx.input("a", (3,)) + hx.input("b", (3,)))),
    "move_qdq_down": (
        move_qdq,
        lambda: hx.max_pool(hx.transpose(hx.reshape(real(), shape=(1, 6, 4, 1)), perm=(0, 3, 1, 2)), kernel_sizes=2),
    ),
    "move_qdq_down_with_its_axis": (
        move_qdq,
        lambda: hx.transpose(
            hx.dequantize(integers(), np.float32([1, 2, 4]), np.int8([1, 0, -1]), axis=1), perm=(2, 0, 1)
        ),
    ),
    "move_qdq_concat": (move_qdq, lambda: hx.concat(real("a"), real("b", (2, 1, 4)), axis=1)),
    "move_qdq_up": (
        move_qdq,
        lambda: (lambda y: steps(hx.reshape(hx.concat(hx.exp(block()), y, axis=2), shape=(6, 8))))(
            hx.max_pool(hx.exp(block(name="y")), kernel_sizes=1)
        ),
    ),
    "move_qdq_shared": (move_qdq, lambda: (lambda y: [hx.reshape(y, shape=(24,)), hx.exp(y)])(real())),
    "fuse_lookup": (fuse_lookup, lambda: steps(hx.sigmoid(real(scale=0.05)), 1 / 256, 0, "uint8")),
    "fuse_lookup_of_a_chain": (
        fuse_lookup,
        lambda: (lambda x: steps(x * hx.dequantize(steps(hx.sigmoid(x), 0.01), *grid(0.01)) / 1.7, 0.25))(real()),
    ),
    "fuse_lookup_of_another_scale": (fuse_lookup, lambda: steps(real(), 0.25, None)),
    "fuse_lookup_that_limits": (fuse_lookup, lambda: steps(hx.relu(real()))),
    "fuse_lookup_of_nothing": (
        fuse_lookup, lambda: (lambda y: [steps(y), steps(y / 4.0, 0.125)])(real())
    ),
    "fuse_lookup_shared": (fuse_lookup, lambda: (lambda y: [steps(hx.tanh(y), 0.01), hx.exp(y)])(real(scale=0.01))),
    "fold_qdq_conv": (fold_qdq, lambda: steps(hx.relu(qdq_conv(photo(), bias=int_bias(0.125, 5, -9, 0, 300))), 64.0, -5)),
    "fold_qdq_real_bias": (fold_qdq, lambda: steps(hx.relu6(qdq_conv(photo(), bias=normal(4))), 0.5, 0, "uint8")),
    "fold_qdq_bias_of_another_scale": (fold_qdq, lambda: qdq_conv(photo(), bias=int_bias(0.5, 5, -9, 0, 300))),
    "fold_qdq_unsigned_weights": (
        fold_qdq, lambda: steps(hx.conv(photo(zero=None), kernel(4, 3, 0.5, 128, "uint8"), strides=2), 128.0)
    ),
    "fold_qdq_conv_transpose": (
        fold_qdq, lambda: steps(hx.relu(widened(photo(), bias=int_bias(0.5, 9, -300))), 64.0, -5)
    ),
    "fold_qdq_conv_transpose_that_overlaps": (
        fold_qdq,
        lambda: widened(
            photo(channels=4), transposed_weights(4, 3, 3, zero=True), normal(6), pad=1, output_padding=(1, 0), groups=2
        ),
    ),
    "fold_qdq_conv_transpose_channels_last": (
        fold_qdq,
        lambda: steps(
            widened(real(shape=(2, 3, 4, 3)), transposed_weights(dtype="uint8", zero=True), layout="nhwc", strides=(3, 1)), 64.0
        ),
    ),
    "fold_qdq_conv_transpose_shared": (
        fold_qdq,
        lambda: (lambda x, w: [steps(widened(x, w), 64.0), hx.exp(x), hx.relu(w), steps(widened(x, w) + 1.0, 64.0)])(
            photo(), transposed_weights()
        ),
    ),
    "fold_qdq_past_what_moves": (
        fold_qdq, lambda: steps(hx.relu(hx.reshape(hx.relu6(real() @ columns()), shape=(6, 5))), 0.25)
    ),
    "fold_qdq_matmul": (fold_qdq, lambda: steps(real() @ columns(), 256.0)),
    "fold_qdq_matmul_transposed": (
        fold_qdq, lambda: hx.matmul(real(), columns(5, 3, axis=0), transpose_x=True, transpose_y=True)
    ),
    "fold_qdq_matmul_of_two_tensors": (fold_qdq, lambda: steps(real("a", (2, 3, 4)) @ real("b", (2, 4, 3)), 32.0)),
    "fold_qdq_add": (fold_qdq, lambda: steps(hx.relu(real("a") + real("b", (4,), 0.25, zero=None)), 1.0)),
    "fold_qdq_shared": (
        fold_qdq,
        lambda: (lambda x: [steps(qdq_conv(x), 64.0), steps(qdq_conv(x, 2), 64.0), steps(x + x, 1.0), hx.exp(x)])(photo()),
    ),
    "fold_qdq_with_another_reader": (
        fold_qdq, lambda: (lambda y: [steps(y, 64.0), hx.exp(y / 999.0)])(qdq_conv(photo()))
    ),
    "fold_qdq_two_scales": (fold_qdq, lambda: (lambda y: [steps(y, 64.0), steps(y, 32.0)])(qdq_conv(photo()))),
    "fold_qdq_scale_at_run_time": (
        fold_qdq, lambda: hx.dequantize(integers(), hx.input("s", ()), hx.input("z", (), "int8")) @ columns()
    ),
    "fold_qdq_dynamic": (fold_qdq, lambda: dynamic(hx.input("s", (1,)))),
    "fold_qdq_dynamic_columns": (fold_qdq, lambda: dynamic(hx.input("s", ()) * np.float32([1, 2, 3, 4, 5]))),
    "fuse_bias_of_a_quantised_product": (fuse_bias, lambda: fold_qdq_of(dynamic(hx.input("s", ())) + normal(5))),
    "channels_last_quantised": (
        channels_last,
        lambda: fold_qdq_of(
            (lambda y: hx.lookup(steps(y + real("r", (1, 4, 6, 5)), 99.0), np.arange(256, dtype=np.uint8)))(
                hx.dequantize(steps(qdq_conv(photo()), 64.0), np.float32([1, 2, 3, 4]), axis=1)
            )
        ),
    ),
    "channels_last_of_a_transposed_product": (channels_last, lambda: cancelled(fold_qdq_of(between_convolutions()))),
    "channels_last_after_a_transpose": (
        channels_last,
        lambda: conv(hx.pad(hx.transpose(hx.input("x", (1, 6, 5, 3)), perm=(0, 3, 1, 2)) * 2.0, begin=(0, 0, 1, 0), end=(0,) * 4), 4),
    ),
    "to_fp16_quantised": (
        to_fp16, lambda: fold_qdq_of([hx.relu(qdq_conv(photo(), bias=normal(4))) / 999.0, steps(hx.exp(block()), 0.1)])
    ),
    "to_fp16": (to_fp16, lambda: hx.relu(hx.input("x", (2, 3)) @ normal(3, 4))),
    "widen": (widen, lambda: hx.input("x", (2, 3), "bf16") @ hx.cast(hx.const(normal(3, 4)), dtype="bf16")),
    "widen_a_scatter_that_adds": (
        widen,
        lambda: hx.scatter_along_axis(
            hx.input("x", (2, 3), "fp16"), np.array([[1, 1, 1]]), np.ones((1, 3), "e"), axis=1, mode="add"
        ),
    ),
    "widen_integers": (widen, lambda: hx.reduce_sum(block("uint32"), axes=(1,))),
}  # fmt: skip

LEAVES: dict[str, tuple[Pass, Callable[[], hx.Tensor | list[hx.Tensor]]]] = {
    "fold_a_large_broadcast": (fold, lambda: hx.input("x", (1,)) + hx.broadcast_to(hx.const(1.0), shape=(1 << 25, 1))),
    "gelu_of_another_constant": (fuse_gelu, lambda: (lambda x: x * (hx.erf(x / 1.5) + 1.0) * 0.5)(hx.input("x", (4,)))),
    "gelu_of_two_tensors": (
        fuse_gelu,
        lambda: hx.input("y", (4,)) * (hx.erf(hx.input("x", (4,)) / math.sqrt(2)) + 1.0) * 0.5,
    ),
    "gelu_that_broadcasts": (
        fuse_gelu, lambda: (lambda x: x * (hx.erf(x / math.sqrt(2)) + 1.0) * np.full((2, 4), 0.5, "f"))(hx.input("x", (4,)))
    ),
    "gelu_tanh_of_another_constant": (fuse_gelu_tanh, lambda: gelu_tanh(hx.input("x", (4,)), 0.0447)),
    "gelu_tanh_of_two_tensors": (
        fuse_gelu_tanh, lambda: hx.input("y", (4,)) * (hx.tanh(hx.input("x", (4,)) * math.sqrt(2 / math.pi)) + 1.0) * 0.5
    ),
    "gelu_tanh_of_a_tower_of_sums": (
        fuse_gelu_tanh,
        lambda: (lambda x: 0.5 * x * (1.0 + hx.tanh(reduce(lambda y, _: y + y, range(60), x))))(hx.input("x", (4,))),
    ),
    "a_layer_norm_of_the_first_axis": (fuse_layer_norm, lambda: layer_norm(block(), (0,))),
    "a_layer_norm_whose_variance_loses_its_axis": (
        fuse_layer_norm, lambda: layer_norm(hx.input("x", (3, 3)), keep_dims=False)
    ),
    "a_layer_norm_of_another_mean": (
        fuse_layer_norm,
        lambda: (lambda d: d / hx.sqrt(hx.reduce_mean(hx.square(d), axes=(1, 2)) + 1e-5))(
            (lambda x: x - hx.reduce_mean(x, axes=(2,)))(block())
        ),
    ),
    "a_scale_of_rows_after_layer_norm": (fuse_layer_norm, lambda: hx.layer_norm(block()) * normal(3, 1)),
    "an_rms_norm_of_another_tensor": (
        fuse_rms_norm, lambda: hx.input("y", (2, 3, 4)) / hx.sqrt(mean_square(block()))
    ),
    "an_rms_norm_of_cubes": (
        fuse_rms_norm, lambda: (lambda x: x / hx.sqrt(hx.reduce_mean(hx.pow(x, 3.0), axes=(2,))))(block())
    ),
    "attention_whose_scores_are_shared": (
        fuse_attention, lambda: (lambda s: [hx.softmax(s) @ heads("v"), hx.exp(s)])(heads("q") @ heads("k", 4, 5))
    ),
    "attention_whose_weights_are_an_output": (
        fuse_attention, lambda: (lambda w: [w @ heads("v"), w])(hx.softmax(heads("q") @ heads("k", 4, 5)))
    ),
    "attention_whose_product_is_shared": (
        fuse_attention, lambda: (lambda s: [hx.softmax(s * 0.5) @ heads("v"), s])(heads("q") @ heads("k", 4, 5))
    ),
    "attention_over_queries": (fuse_attention, lambda: weighted(axis=-2)),
    "attention_with_a_scale_that_is_computed": (
        fuse_attention, lambda: weighted(lambda s: s * hx.input("scale", (1,)))
    ),
    "attention_with_scales_of_keys": (fuse_attention, lambda: weighted(lambda s: s * normal(3))),
    "attention_of_scale_zero": (fuse_attention, lambda: weighted(lambda s: s * 0.0)),
    "attention_with_a_scaled_mask": (
        fuse_attention, lambda: weighted(lambda s: (s + hx.input("mask", (5, 3))) * 0.5)
    ),
    "attention_with_a_mask_that_widens": (
        fuse_attention, lambda: weighted(lambda s: s + hx.input("mask", (3, 1, 1, 5, 3)))
    ),
    "attention_hidden_by_a_small_number": (fuse_attention, lambda: weighted(hidden(-1e9))),
    "attention_of_fp16_hidden_by_a_number": (
        fuse_attention,
        lambda: weighted(lambda s: hx.select(hx.input("mask", (5, 3), "bool"), s, np.float16(-65504)), dtype="fp16"),
    ),
    "attention_with_a_choice_of_weights": (
        fuse_attention,
        lambda: weighted(weights=lambda w: hx.select(hx.input("which", (5, 3), "bool"), np.float32(0), w)),
    ),
    "attention_with_weights_for_nan": (
        fuse_attention, lambda: weighted(weights=lambda w: hx.select(w != w, np.float32(1), w))
    ),
    "attention_with_a_bias": (
        fuse_attention, lambda: hx.matmul(hx.softmax(heads("q") @ heads("k", 4, 5)), heads("v"), normal(4))
    ),
    "attention_of_values_that_widen": (
        fuse_attention, lambda: hx.softmax(hx.input("q", (5, 4)) @ hx.input("k", (4, 5))) @ heads("v")
    ),
    "heads_that_do_not_repeat": (
        group_heads, lambda: hx.scaled_dot_product_attention(heads("q"), heads("k"), heads("v"))
    ),
    "heads_that_repeat_in_turns": (group_heads, lambda: grouped(axis=1)),
    "a_choice_that_widens": (cancel, lambda: hx.select(np.ones((2, 3), bool), hx.input("x", (3,)), 0.0)),
    "a_choice_of_both": (cancel, lambda: hx.select(np.array([True, False, True]), hx.input("x", (3,)), 0.0)),
    "a_rotation_by_tables_whose_halves_differ": (
        fuse_rotary, lambda: (lambda x: x * normal(3, 4) + swapped(x) * normal(3, 4))(block())
    ),
    "a_rotation_by_tables_that_are_given": (
        fuse_rotary,
        lambda: (lambda x: x * hx.input("cos", (3, 4)) + swapped(x) * hx.input("sin", (3, 4)))(block()),
    ),
    "a_rotation_of_two_tensors": (
        fuse_rotary, lambda: (lambda t: block() * hx.cos(t) + swapped(block(name="y")) * hx.sin(t))(angles())
    ),
    "a_rotation_the_other_way": (
        fuse_rotary,
        lambda: (lambda x, t: x * hx.cos(t) + hx.concat(x[..., 2:], -x[..., :2], axis=2) * hx.sin(t))(block(), angles()),
    ),
    "a_rotation_whose_product_is_shared": (
        fuse_rotary, lambda: (lambda x, y, t: [x * hx.cos(t) + y * hx.sin(t), y])(*(lambda x: (x, swapped(x)))(block()), angles())
    ),
    "a_rotation_that_widens": (
        fuse_rotary,
        lambda: (lambda x, t: x * hx.cos(t) + swapped(x) * hx.sin(t))(hx.input("x", (4,)), angles()),
    ),
    "a_rotation_of_neighbours_joined_as_halves": (
        fuse_rotary, lambda: (lambda x: turned(x, x[..., ::2], x[..., 1::2]))(block())
    ),
    "a_rotation_of_halves_joined_as_neighbours": (
        fuse_rotary, lambda: (lambda x: turned(x, x[..., :2], x[..., 2:], stack=True))(block())
    ),
    "a_rotation_of_parts_in_the_other_order": (
        fuse_rotary, lambda: (lambda x: turned(x, x[..., 2:], x[..., :2]))(block())
    ),
    "silu_of_two_tensors": (fuse_silu, lambda: hx.input("y", (4,)) * hx.sigmoid(hx.input("x", (4,)))),
    "two_transposes_of_one_tensor": (
        cancel, lambda: (lambda x: [hx.transpose(x, perm=(0, 2, 1)), hx.transpose(x, perm=(1, 2, 0))])(block())
    ),
    "casts_that_round": (cancel, lambda: casts("fp32", "fp16", "fp32")),
    "casts_that_round_large_integers": (cancel, lambda: casts("int32", "fp32", "int32")),
    "casts_that_wrap": (cancel, lambda: casts("int32", "uint8", "int32")),
    "casts_that_saturate": (cancel, lambda: casts("int32", "fp64", "int8")),
    "casts_to_bool": (cancel, lambda: casts("fp32", "bool", "fp32")),
    "a_sum_with_zero": (cancel, lambda: block() + 0.0),
    "a_difference_with_minus_zero": (cancel, lambda: block() - np.float32(-0.0)),
    "one_over_x": (cancel, lambda: 1.0 / block()),
    "a_one_that_widens": (cancel, lambda: hx.input("x", (3,)) * np.ones((2, 3), "f")),
    "a_limit_whose_operand_is_shared": (
        cancel, lambda: (lambda y: [hx.clip(y, beta=3.0), hx.exp(y)])(hx.relu(block()))
    ),
    "limits_at_minus_zero": (cancel, lambda: hx.relu(hx.clip(block(), alpha=-0.0))),
    "limits_of_integers": (cancel, lambda: hx.clip(hx.clip(block("int32"), alpha=0.5), alpha=0.25)),
    "clip_at_minus_zero": (fuse_clip, lambda: hx.clip(hx.input("x", (4,)), alpha=-0.0)),
    "clip_of_integers": (fuse_clip, lambda: hx.clip(hx.input("x", (4,), "int32"), alpha=0, beta=6)),
    "a_batch_norm_whose_operand_is_shared": (fold_batch_norm, lambda: shared(normed)),
    "a_batch_norm_after_weights_that_are_computed": (
        fold_batch_norm, lambda: normed(hx.conv(image(), hx.input("w", (4, 3, 3, 3))))
    ),
    "a_batch_norm_after_a_bias_that_is_computed": (
        fold_batch_norm, lambda: normed(hx.conv(image(), normal(4, 3, 3, 3), hx.input("b", (4,))))
    ),
    "a_batch_norm_of_rows": (fold_batch_norm, lambda: normed(hx.input("x", (2, 5, 3)) @ normal(3, 4))),
    "a_batch_norm_of_parameters_that_are_computed": (
        fold_batch_norm, lambda: hx.batch_norm(conv(image(), 4), hx.input("m", (4,)), normal(4) ** 2)
    ),
    "a_batch_norm_of_negative_variance": (
        fold_batch_norm, lambda: hx.batch_norm(conv(image(), 4), normal(4), np.full(4, -1, "f"))
    ),
    "a_scale_under_which_weights_vanish": (fold_batch_norm, lambda: conv(image(), 4) * np.full((4, 1, 1), 1e-40, "f")),
    "a_scale_of_one_number": (fold_batch_norm, lambda: (hx.input("x", (2, 3)) @ normal(3, 4)) * 0.3),
    "a_scale_of_one_number_for_one_channel": (fold_batch_norm, lambda: conv(image(), 1) / 0.3),
    "a_scale_that_fp16_weights_cannot_hold": (
        fold_batch_norm,
        lambda: (hx.input("x", (2, 3), "fp16") @ normal(3, 4).astype("e")) * np.full(4, 0.3, "e"),
    ),
    "a_quotient_of_a_constant": (fold_batch_norm, lambda: normal(4) / (hx.input("x", (2, 3)) @ normal(3, 4))),
    "a_pad_with_another_value": (fold_pad, lambda: hx.conv(padded(image(), 1.0), normal(4, 3, 3, 3))),
    "a_pad_with_minus_zero": (fold_pad, lambda: hx.conv(padded(image(), -0.0), normal(4, 3, 3, 3))),
    "a_pad_in_another_mode": (fold_pad, lambda: hx.conv(padded(image(), mode="edge"), normal(4, 3, 3, 3))),
    "a_pad_that_cuts_off": (fold_pad, lambda: hx.conv(padded(image(), end=-1), normal(4, 3, 3, 3))),
    "a_pad_of_channels": (
        fold_pad, lambda: hx.conv(hx.pad(image(), begin=(0, 1, 1, 1), end=(0, 0, 1, 1)), normal(2, 4, 3, 3))
    ),
    "a_pad_before_a_transposed_convolution": (fold_pad, lambda: hx.conv_transpose(padded(image()), normal(3, 4, 3, 3))),
    "zeros_before_a_max_pool": (fold_pad, lambda: hx.max_pool(padded(image()), kernel_sizes=3)),
    "zeros_before_a_max_pool_with_gaps": (
        fold_pad, lambda: hx.max_pool(padded(hx.relu(image())), kernel_sizes=2, dilations=3)
    ),
    "a_pad_as_wide_as_the_window": (fold_pad, lambda: hx.avg_pool(padded(image()), kernel_sizes=2)),
    "a_pad_before_an_avg_pool_that_leaves_out_its_own": (
        fold_pad, lambda: hx.avg_pool(padded(image()), kernel_sizes=3, pad=(1, 0))
    ),
    "a_pad_in_which_a_rounded_up_window_begins": (
        fold_pad,
        lambda: hx.avg_pool(
            hx.pad(hx.input("x", (1, 1, 3)), begin=(0, 0, 0), end=(0, 0, 1)), kernel_sizes=2, strides=3, ceil_mode=True
        ),
    ),
    "a_bias_that_has_another_user_of_the_product": (fuse_bias, lambda: shared(lambda y: y + normal(4, 1, 1))),
    "a_bias_along_rows": (fuse_bias, lambda: (hx.input("x", (4, 3)) @ normal(3, 4)) + normal(4, 1)),
    "a_bias_that_widens": (fuse_bias, lambda: (hx.input("x", (1, 3)) @ normal(3, 4)) + normal(2, 4)),
    "a_transpose_that_moves_the_innermost_axis_elsewhere": (
        fuse_transpose, lambda: hx.transpose(hx.input("q", (4, 5, 6)), perm=(2, 0, 1)) @ normal(5, 2)
    ),
    "a_dequantize_of_rows_before_a_reshape": (
        move_qdq, lambda: hx.reshape(hx.dequantize(integers(), np.float32([1, 2, 4]), axis=1), shape=(6, 4))
    ),
    "a_concat_of_two_scales": (move_qdq, lambda: hx.concat(real("a"), real("b", scale=0.25), axis=1)),
    "a_maximum_of_a_negative_scale": (
        move_qdq, lambda: hx.max_pool(hx.dequantize(integers(), np.float32(-1)), kernel_sizes=2)
    ),
    "a_maximum_of_a_scale_that_is_computed": (
        move_qdq, lambda: hx.max_pool(hx.dequantize(integers(), hx.input("s", ())), kernel_sizes=2)
    ),
    "a_quantize_of_what_is_shared": (
        move_qdq, lambda: (lambda y: [steps(y), hx.exp(y)])(hx.transpose(block()))
    ),
    "a_function_of_two_quantised_tensors": (fuse_lookup, lambda: steps(real("a") * real("b"))),
    "a_function_of_a_byte_and_a_vector": (fuse_lookup, lambda: steps(real() * normal(4))),
    "a_function_of_a_byte_that_widens": (fuse_lookup, lambda: steps(real(shape=(4,)) * np.ones((1, 1), "f"))),
    "a_function_of_a_scale_that_is_computed": (
        fuse_lookup, lambda: steps(hx.relu(hx.dequantize(integers(), hx.input("s", ()))))
    ),
    "a_function_that_gives_16_bits": (fuse_lookup, lambda: steps(real(), dtype="int16")),
    "a_function_of_16_bits": (fuse_lookup, lambda: steps(hx.dequantize(integers(dtype="int16"), np.float32(0.5)))),
    "a_convolution_of_floats_by_integers": (fold_qdq, lambda: steps(qdq_conv(image()))),
    "a_convolution_of_16_bits": (
        fold_qdq, lambda: qdq_conv(hx.dequantize(integers(shape=(1, 3, 6, 5), dtype="int16"), np.float32(0.5)))
    ),
    "a_convolution_of_a_scale_for_each_row": (
        fold_qdq, lambda: qdq_conv(hx.dequantize(integers(shape=(1, 3, 6, 5)), np.float32([1, 2, 4]), axis=1))
    ),
    "a_transposed_convolution_of_a_scale_for_each_row_of_weights": (
        fold_qdq, lambda: steps(widened(photo(), transposed_weights(axis=0)))
    ),
    "a_transposed_convolution_of_a_scale_for_each_row": (
        fold_qdq,
        lambda: steps(widened(hx.dequantize(integers(shape=(1, 3, 6, 5)), np.float32([1, 2, 4]), axis=1))),
    ),
    "a_transposed_convolution_of_weights_at_run_time": (
        fold_qdq, lambda: steps(widened(photo(), hx.dequantize(integers("w", (3, 2, 2, 2)), np.float32(0.5))))
    ),
    "a_transposed_convolution_with_dilations": (fold_qdq, lambda: steps(widened(photo(), dilations=2))),
    "a_transposed_convolution_of_16_bits": (
        fold_qdq, lambda: widened(hx.dequantize(integers(shape=(1, 3, 6, 5), dtype="int16"), np.float32(0.5)))
    ),
    "a_transposed_convolution_whose_pad_is_wider_than_its_kernel": (fold_qdq, lambda: steps(widened(photo(), pad=(0, 0, 2, 1)))),
    "a_transposed_convolution_of_mostly_zeros": (
        fold_qdq, lambda: steps(widened(photo(), transposed_weights(size=1), strides=3))
    ),
    "a_transposed_convolution_of_floats_by_integers": (fold_qdq, lambda: steps(widened(image()))),
    "a_product_whose_weights_have_a_scale_for_each_row": (fold_qdq, lambda: real() @ columns(axis=0)),
    "a_sum_that_is_quantised_to_16_bits": (fold_qdq, lambda: steps(real("a") + real("b"), dtype="int16")),
    "a_product_in_fp16": (
        fold_qdq,
        lambda: hx.dequantize(integers("a", (2, 4)), np.float32(0.5), dtype="fp16")
        @ hx.dequantize(integers("b", (4, 3)), np.float32(0.5), dtype="fp16"),
    ),
    "a_product_that_may_overflow": (fold_qdq, lambda: real("a", (1, 70000)) @ real("b", (70000, 1))),
    "a_sum_that_is_not_quantised": (fold_qdq, lambda: real("a") + real("b")),
    "a_sum_of_a_quantised_tensor_and_another": (fold_qdq, lambda: steps(real("a") + block())),
    "an_int32_product_with_another_reader": (
        fold_qdq,
        lambda: (lambda y: [hx.cast(y, dtype="fp32") * 0.5, y])(
            hx.quantized_matmul(integers("a", (2, 3)), integers("b", (3, 2)), dtype="int32")
        ),
    ),
    "channels_last_of_a_graph_without_spatial_ops": (channels_last, attention),
    "channels_last_of_an_image_that_is": (channels_last, lambda: twice(hx.input("x", (1, 6, 5, 3)), layout="nhwc")),
    "attention_whose_bias_is_scaled": (
        fuse_attention,
        lambda: hx.softmax(hx.matmul(heads("q"), heads("k"), hx.input("mask", (5,)), transpose_y=True) * 0.5) @ heads("v"),
    ),
    "attention_whose_biased_product_is_masked": (
        fuse_attention,
        lambda: hx.softmax(
            hx.matmul(heads("q"), heads("k"), hx.input("bias", (5,)), transpose_y=True) + hx.input("mask", (5, 5))
        ) @ heads("v"),
    ),
    "an_activation_whose_operand_is_shared": (epilogue, lambda: shared(hx.relu)),
    "a_residual_that_broadcasts": (epilogue, lambda: conv(image(), 4) + hx.input("y", (4, 1, 1))),
    "an_activation_of_integers": (epilogue, lambda: hx.relu(hx.input("a", (3,), "int32") + hx.input("b", (3,), "int32"))),
    "a_dtype_that_has_a_kernel": (widen, lambda: hx.relu(block("fp16")) * 2.0),
    "a_dtype_without_a_wider_one": (widen, lambda: hx.relu(block("fp64"))),
}  # fmt: skip


def feeds(graph: Graph) -> dict[str, np.ndarray]:
    values = np.random.default_rng(5)
    return {
        str(v.node.attrs["name"]): values.integers(0, 256, v.shape).astype(v.dtype.numpy)
        if v.dtype.name in ("int8", "uint8")
        else values.uniform(-2, 2, v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    }


def assert_same_meaning(before: Graph, after: Graph, loose: bool = False) -> None:
    want, got = run_reference(before, feeds(before)), run_reference(after, feeds(before))
    for name in want:
        if loose:
            np.testing.assert_allclose(got[name], want[name], rtol=2e-2, atol=2e-2)
        else:
            assert_close(got[name], want[name])


@pytest.mark.parametrize("name", FIRES)
def test_a_pass_fires(name: str, golden: Callable[[str, str], None]) -> None:
    run, make = FIRES[name]
    before = hx.graph(make())
    after = run(before)
    assert print_graph(before) != print_graph(after)
    assert_same_meaning(before, after, loose=run is to_fp16)
    golden(f"passes/{name}", f"{print_graph(before, sources=False)}\n{print_graph(after, sources=False)}")


@pytest.mark.parametrize("name", FIRES)
def test_what_passes_make_of_a_graph_runs(name: str) -> None:
    before = hx.graph(FIRES[name][1]())
    want, got = run_reference(before, feeds(before)), hx.compile(before)(feeds(before))
    for port, array in (got if len(want) > 1 else {next(iter(want)): got}).items():
        assert_close(array, want[port])


@pytest.mark.parametrize("name", LEAVES)
def test_a_pass_leaves_alone(name: str) -> None:
    run, make = LEAVES[name]
    before = hx.graph(make())
    assert print_graph(run(before)) == print_graph(before)


def test_a_residual_goes_to_the_later_of_two_convolutions() -> None:
    x = image(4)
    first = conv(x, 4)
    graph = fuse_epilogue(hx.graph(first + conv(conv(first, 4), 4)), HOST)
    fused = [node for node in graph.nodes if node.op == "conv" and node.attrs["epilogue"]]
    assert len(fused) == 1
    assert fused[0] is graph.outputs[0].value.node


def test_folding_a_batch_norm_leaves_the_weights_to_their_other_readers() -> None:
    x, weight, bias = image(), hx.const(normal(4, 3, 3, 3)), hx.const(normal(4))
    graph = hx.graph(
        [normed(hx.conv(x, weight, bias)), hx.relu(hx.conv(x, weight, bias)), hx.exp(weight), normed(bias, 0)]
    )
    folded = fold_batch_norm(graph)
    want, got = run_reference(graph, feeds(graph)), run_reference(folded, feeds(graph))
    np.testing.assert_array_equal(got["relu"], want["relu"])
    assert_same_meaning(graph, folded)


def test_two_batch_norms_of_one_convolution_both_stay() -> None:
    y = conv(image(), 4)
    graph = hx.graph([normed(y), normed(y)])
    assert print_graph(fold_batch_norm(graph)) == print_graph(graph)


def test_a_chain_of_scales_is_rounded_once() -> None:
    x, weight = hx.input("x", (1, 3)), normal(3, 4)
    scales = [rng.uniform(0.5, 2, 4).astype(np.float32) for _ in range(5)]
    y = x @ weight
    for scale in scales:
        y = y * scale
    (weights,) = (n.data for n in fold_batch_norm(hx.graph(y)).nodes if n.op == "const" and n.types[0].shape == (3, 4))
    wide = weight * np.prod(np.array(scales, np.float64), axis=0)
    np.testing.assert_array_equal(weights, wide.astype(np.float32))


def test_folding_a_batch_norm_keeps_small_integers_exact() -> None:
    def whole(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, shape).astype(np.float32)

    y = hx.conv(image(), whole(4, 3, 3, 3), whole(4), pad=1)
    scales = np.array([0.25, 1, 4, 16], np.float32)
    y = hx.batch_norm(y, whole(4), scales, whole(4) * 2, whole(4), epsilon=0.0) * 0.5
    graph = hx.graph(hx.relu(y))
    values = {"x": whole(1, 3, 6, 5)}
    folded = lower(graph, HOST)
    assert not any(node.op == "batch_norm" for node in folded.nodes)
    np.testing.assert_array_equal(run_reference(folded, values)["relu"], run_reference(graph, values)["relu"])
    np.testing.assert_array_equal(hx.compile(graph)(values), run_reference(graph, values)["relu"])


def test_outputs_lose_their_transposes(golden: Callable[[str, str], None]) -> None:
    y = hx.transpose(hx.transpose(block(), perm=(2, 0, 1)), perm=(0, 2, 1))
    graph = hx.graph({"inner": hx.relu(block("int32", "i")), "outer": y, "used": hx.exp(y)})
    trimmed = trim_output_transpose(graph)
    want, got = run_reference(graph, feeds(graph)), run_reference(trimmed, feeds(graph))
    np.testing.assert_array_equal(got["outer"].transpose(2, 1, 0), want["outer"])
    np.testing.assert_array_equal(got["used"], want["used"])
    golden(
        "passes/trim_output_transpose", f"{print_graph(graph, sources=False)}\n{print_graph(trimmed, sources=False)}"
    )


def test_trimmed_outputs_have_the_layout_they_were_computed_in() -> None:
    graph = hx.graph(hx.relu(conv(image(), 4)))
    plain, trimmed = hx.compile(graph), hx.compile(graph, trim_output_transpose=True)
    assert (plain.outputs[0].shape, trimmed.outputs[0].shape) == ((1, 4, 6, 5), (1, 6, 5, 4))
    assert len(trimmed.steps) < len(plain.steps)
    np.testing.assert_array_equal(trimmed(feeds(graph)).transpose(0, 3, 1, 2), plain(feeds(graph)))


def test_a_bias_is_moved_but_its_constant_stays_for_others() -> None:
    bias = hx.const(normal(4, 1, 1))
    graph = hx.graph([conv(image(), 4) + bias, hx.exp(bias)])
    fused = fuse_bias(graph)
    assert_same_meaning(graph, fused)


PAGE = Path(__file__).parents[1] / "docs" / "passes.md"
START, END = "## In order\n", "## Without a pass\n"


def section(name: str, why_here: str) -> str:
    """What the page says of a pass: its docstring, and the pipeline's reason for its place."""
    again = name.endswith("_again")
    rule, *conditions = inspect.getdoc(getattr(pipeline, name.removesuffix("_again"))).split("\n\n")
    block = (
        [] if again else ["```", rule.replace("  ->  ", "\n  ->  "), "```", *(c.replace("\n", " ") for c in conditions)]
    )
    place = [f"*Its place:* {why_here[0].lower()}{why_here[1:]}"] if why_here else []
    return "\n".join([f"### {name}", "", *block, *place, ""])


def test_the_page_of_passes_says_what_the_code_does(request: pytest.FixtureRequest) -> None:
    """--update-golden writes that part of the page."""
    found = re.findall(r"((?: +# .*\n)*) +Pass\(\"(\w+)\"", inspect.getsource(passes))
    assert [name for _, name in found] == [p.name for p in passes(HOST)]
    text = "\n".join(section(name, re.sub(r"\s*# ", " ", comment).strip()) for comment, name in found)
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(START)
    fresh = f"{before}{START}\n{text}\n{END}{rest.split(END)[1]}"
    if request.config.getoption("--update-golden"):
        PAGE.write_text(fresh, encoding="utf-8")
    else:
        assert page == fresh, f"{PAGE} differs from the code; pytest --update-golden writes it"
