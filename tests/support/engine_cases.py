"""Graphs for each pass over layers: one on which it fires, and some that it has to leave alone."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import hexane as hx

_values = np.random.default_rng(11)
Make = Callable[[], Any]


def restart() -> None:
    """The same weights whichever tests ran before."""
    global _values
    _values = np.random.default_rng(11)


def whole(*shape: int) -> Any:
    """Small whole numbers, none of them 0."""
    return (_values.integers(1, 4, shape) * _values.choice([-1, 1], shape)).astype(np.float16)


def paired(x: hx.Tensor, by: float, axis: int) -> hx.Tensor:
    """A tensor and a multiple of it, joined."""
    return hx.maximum(hx.concat(x, x * np.float16(by), axis=axis), hx.const(np.float16(-1)))


def repeated(x: hx.Tensor, each: int) -> hx.Tensor:
    """(batch, heads, rows, columns) with each head repeated, as grouped attention is exported."""
    batch, heads, *rest = x.shape
    wide = hx.broadcast_to(hx.reshape(x, shape=(batch, heads, 1, *rest)), shape=(batch, heads, each, *rest))
    return hx.reshape(wide, shape=(batch, heads * each, *rest))


def heads(name: str, count: int, batch: int = 1) -> hx.Tensor:
    return hx.input(name, (batch, count, 5, 4), "fp16")


def grouped(mask: Any = None) -> hx.Tensor:
    """Attention of four heads whose keys and values are two."""
    keys = [repeated(heads(name, 2), 2) for name in ("k", "v")]
    return hx.scaled_dot_product_attention(heads("q", 4), *keys, mask, scale=1.0)


def by_pixels(layer: Callable[[hx.Tensor], hx.Tensor]) -> hx.Tensor:
    """A layer on rows of pixels, between convolutions of images."""
    x = hx.conv(image(), whole(4, 4, 3, 3), pad=1)
    return hx.conv(hx.reshape(layer(hx.reshape(x, shape=(1, 4, 1, 36))), shape=(1, 4, 6, 6)), whole(4, 4, 3, 3), pad=1)


def of_windows(layer: Callable[[hx.Tensor], hx.Tensor]) -> hx.Tensor:
    """A layer between an attention over four windows of 2 x 3 pixels and the image of all windows."""
    query, key, value = (hx.input(name, (4, 2, 6, 4), "fp16") for name in "qkv")
    mixed = hx.scaled_dot_product_attention(query, key, value)
    pixels = hx.reshape(hx.transpose(mixed, perm=(0, 2, 1, 3)), shape=(1, 4, 6, 8))
    y = hx.transpose(layer(hx.transpose(pixels, perm=(0, 3, 1, 2))), perm=(0, 2, 3, 1))
    windows = hx.reshape(y, shape=(2, 2, 2, 3, y.shape[-1]))
    return hx.reshape(hx.transpose(windows, perm=(0, 2, 1, 3, 4)), shape=(4, 6, y.shape[-1])) + whole(6, 1)


def image(channels: int = 4, size: int = 6, name: str = "x") -> hx.Tensor:
    return hx.input(name, (1, channels, size, size), "fp16")


def rows(name: str = "t") -> hx.Tensor:
    return hx.input(name, (2, 6, 8), "fp16")


def tokens(name: str = "t") -> hx.Tensor:
    return hx.input(name, (1, 5, 4), "fp16")


def residual(x: hx.Tensor) -> hx.Tensor:
    """The inner part of a block: a product whose result joins what it came from, and a product behind."""
    return hx.linear(x + hx.linear(hx.abs(x), whole(8, 8)), whole(3, 8))


def conv(x: hx.Tensor, out: int = 4, k: int = 3, bias: bool = False) -> hx.Tensor:
    return hx.conv(x, whole(out, x.shape[1], k, k), whole(out) if bias else None, pad=k // 2)


def per_channel(channels: int = 4) -> Any:
    return whole(channels, 1, 1)


def stored(*shape: int, scale: Any = 0.5, zero: Any = None, axis: int = 0) -> hx.Tensor:
    """Weights that are stored in 8 bits."""
    q = _values.integers(-3, 4, shape).astype(np.int8)
    return hx.dequantize(hx.const(q), np.float32(scale), zero, axis=axis, dtype="fp16")


def both(first: hx.Tensor, then: Callable[[hx.Tensor], hx.Tensor]) -> list[hx.Tensor]:
    """What is read twice: by what follows it and by the caller."""
    return [then(first), first]


def quantised(name: str = "q") -> hx.Tensor:
    return hx.dequantize(hx.input(name, (1, 4, 6, 6), "int8"), np.float32(0.5), dtype="fp16")


def _quantize(x: hx.Tensor) -> hx.Tensor:
    return hx.quantize(x, np.float32(0.5), dtype="int8")


def _two(then: Callable[[hx.Tensor], hx.Tensor], out: int = 4) -> hx.Tensor:
    x = image()
    return then(hx.concat(conv(x, bias=True), conv(x, out), axis=1))


FIRES: Mapping[str, Mapping[str, Make]] = {
    "share_keys": {
        "product": lambda: hx.matmul(heads("q", 6, 2), repeated(heads("k", 2, 2), 3), transpose_y=True),
        "transposed": lambda: heads("q", 4) @ hx.transpose(repeated(heads("k", 2), 2), perm=(0, 1, 3, 2)),
        "one_head": lambda: hx.matmul(heads("q", 4), repeated(heads("k", 1), 4), transpose_y=True),
    },
    "replace_matmul_with_conv": {
        "matmul": lambda: rows() @ whole(8, 3),
        "linear": lambda: hx.linear(rows(), whole(3, 8)),
        "transposed": lambda: hx.matmul(hx.input("t", (8, 6), "fp16"), whole(3, 8), transpose_x=True, transpose_y=True),
        "quantised": lambda: hx.linear(rows(), stored(3, 8)),
    },
    "collapse_transpose": {
        "pair": lambda: hx.transpose(hx.relu(hx.transpose(hx.transpose(image(), perm=(0, 2, 3, 1)), perm=(0, 3, 1, 2))), perm=(0, 1, 3, 2)),
        "of_two": lambda: hx.transpose(rows(), perm=(0, 2, 1)) + hx.transpose(rows("u"), perm=(0, 2, 1)),
        "product": lambda: rows() @ hx.transpose(rows("u"), perm=(0, 2, 1)),
        "reshapes": lambda: hx.reshape(hx.reshape(rows(), shape=(12, 8)), shape=(96,)),
    },
    "channels_first": {
        "norm_between_products": lambda: hx.linear(hx.layer_norm(hx.linear(tokens(), whole(8, 4)), whole(8), whole(8), epsilon=0.0), whole(3, 8)),
        "residual": lambda: residual(hx.linear(tokens(), whole(8, 4))),
        "a_row_of_constants": lambda: hx.linear(hx.linear(tokens(), whole(8, 4)) + whole(1, 5, 8), whole(3, 8)),
        "concatenation": lambda: hx.linear(hx.concat(hx.linear(tokens(), whole(8, 4)), hx.linear(tokens("u"), whole(8, 4)), axis=-1), whole(3, 16)),
    },
    "join_moves": {
        "heads": lambda: hx.transpose(hx.reshape(hx.transpose(hx.input("x", (1, 8, 1, 5), "fp16"), perm=(0, 2, 3, 1)), shape=(1, 5, 2, 4)), perm=(0, 2, 1, 3)) @ hx.input("y", (1, 2, 4, 3), "fp16"),
        "back": lambda: hx.transpose(hx.reshape(hx.transpose(hx.relu(hx.input("x", (1, 2, 4, 5), "fp16")), perm=(0, 3, 1, 2)), shape=(1, 5, 8)), perm=(0, 2, 1)),
    },
    "rows_as_batch": {
        "windows": lambda: of_windows(lambda x: hx.conv(x, whole(6, 8, 1, 1), whole(6))),
        "groups": lambda: of_windows(lambda x: hx.conv(x, whole(6, 4, 1, 1), groups=2)),
    },
    "keep_images": {
        "convolution": lambda: by_pixels(lambda x: hx.conv(x, whole(4, 4, 1, 1), whole(4))),
        "residual": lambda: by_pixels(lambda x: x + hx.maximum(hx.conv(x, whole(4, 2, 1, 1), groups=2), whole(36))),
        "other_tokens": lambda: by_pixels(lambda x: hx.abs(x) * hx.input("u", (1, 4, 1, 36), "fp16") * hx.abs(x)),
        "as_many_channels_as_pixels": lambda: by_pixels(
            lambda x: hx.conv(hx.maximum(hx.conv(x, whole(36, 4, 1, 1), whole(36)), whole(36)), whole(4, 36, 1, 1))
        ),
        "joined": lambda: by_pixels(lambda x: hx.conv(hx.concat(x, hx.abs(x), axis=1), whole(4, 8, 1, 1))),
    },
    "mirror_by_product": {
        "channels": lambda: paired(hx.abs(image()), -1, axis=1),
        "rows_of_two_images": lambda: paired(hx.abs(hx.input("x", (2, 4, 3, 6), "fp16")), -1, axis=2),
    },
    "collapse_quant_dequant": {
        "scale": lambda: hx.relu(hx.conv(image(), stored(4, 4, 3, 3), whole(4), pad=1)),
        "scales": lambda: hx.conv(image(), stored(4, 4, 3, 3, scale=[0.5, 1, 2, 0.25]), pad=1),
        "table": lambda: hx.conv(image(), hx.gather(whole(16), _values.integers(0, 16, (4, 4, 1, 1)))),
    },
    "deduplicate_standalone_dequant_gocs_across_concat": {
        "one_scale": lambda: hx.concat(quantised(), quantised("r"), axis=1),
    },
    "scaled_ew_or_ew_with_const_in_to_goc": {
        "bias": lambda: conv(image()) + per_channel(),
        "scale": lambda: per_channel() * conv(image()),
        "number": lambda: 2.0 - hx.max_pool(image(), kernel_sizes=2, strides=2),
        "division": lambda: conv(image()) / np.array([[[2]], [[4]], [[0.5]], [[1]]], np.float16),
        "batch_norm": lambda: hx.batch_norm(conv(image()), whole(4), np.ones(4, np.float16), whole(4), whole(4), epsilon=0.0),
        "rows": lambda: rows() @ whole(8, 3) + whole(3),
    },
    "fold_scale": {
        "chain": lambda: hx.add(image() * per_channel(), per_channel()) * 2.0,
        "slot": lambda: conv(image(), bias=True) * per_channel(),
    },
    "hoist_goc_or_activation_for_conv_fusion": {
        "bias": lambda: conv(image()) + per_channel(),
        "past_a_transpose": lambda: hx.transpose(conv(image()), perm=(0, 2, 3, 1)) + whole(4),
        "past_a_reshape": lambda: hx.relu(hx.reshape(conv(image()), shape=(1, 4, 36))),
        "pool": lambda: hx.max_pool(image(), kernel_sizes=2, strides=2) * per_channel(),
        "concat": lambda: _two(lambda y: hx.relu(y)),
        "concat_scaled": lambda: _two(lambda y: y * 2.0),
    },
    "fold_weights_with_scale": {
        "exact": lambda: conv(image()) * per_channel() + per_channel(),
    },
    "merge_fusable_activation_pairs": {
        "relu_of_relu6": lambda: hx.relu(hx.relu6(conv(image()))),
        "limits": lambda: hx.clip(hx.clip(image(), alpha=-3, beta=5), alpha=-1, beta=9),
        "twice": lambda: hx.abs(hx.abs(image())),
    },
    "simple_activation": {
        "after_a_bias": lambda: hx.relu(conv(image(), bias=True)),
        "before_a_scale": lambda: hx.clip(hx.relu(conv(image())) * per_channel(), alpha=-9, beta=9),
        "of_a_sum": lambda: hx.relu(image() + image(name="y")),
        "of_a_pool": lambda: hx.relu(hx.max_pool(image(), kernel_sizes=3)),
        "gelu": lambda: hx.gelu(rows() @ whole(8, 3) + whole(3)),
    },
    "ne_transpose_fusion": {
        "conv": lambda: hx.transpose(hx.relu(conv(image())), perm=(0, 2, 3, 1)),
    },
    "fuse_output_quant": {
        "conv": lambda: _quantize(hx.relu(conv(image(), bias=True))),
    },
}  # fmt: skip

LEAVES: Mapping[str, Mapping[str, Make]] = {
    "share_keys": {
        "heads_of_their_own": lambda: hx.matmul(heads("q", 4), heads("k", 4), transpose_y=True),
        "heads_in_turns": lambda: hx.matmul(heads("q", 4), hx.concat(heads("k", 2), heads("u", 2), axis=1), transpose_y=True),
        "one_query": lambda: hx.matmul(heads("q", 1), repeated(heads("k", 2), 2), transpose_y=True),
    },
    "replace_matmul_with_conv": {
        "two_tensors": lambda: rows() @ hx.input("u", (2, 8, 3), "fp16"),
        "above_the_working_set": lambda: hx.input("t", (2, 1024), "fp16") @ np.ones((1024, 1025), np.float16),
        "a_batch_of_weights": lambda: rows() @ whole(2, 8, 3),
    },
    "collapse_transpose": {
        "one": lambda: hx.transpose(image(), perm=(0, 2, 3, 1)),
        "two_orders": lambda: hx.transpose(hx.input("a", (2, 3, 3), "fp16"), perm=(0, 2, 1)) + hx.transpose(hx.input("b", (3, 2, 3), "fp16"), perm=(1, 0, 2)),
        "heads": lambda: hx.transpose(image(), perm=(0, 2, 1, 3)) @ hx.input("y", (1, 6, 6, 2), "fp16"),
    },
    "channels_first": {
        "no_moves": lambda: hx.layer_norm(rows() + rows("u")),
        "more_moves_than_before": lambda: hx.softmax(hx.transpose(tokens(), perm=(0, 2, 1)) + hx.input("u", (1, 4, 5), "fp16")),
        "a_norm_over_two_axes": lambda: hx.linear(hx.layer_norm(hx.linear(tokens(), whole(8, 4)), axes=(-2, -1)), whole(3, 8)),
    },
    "join_moves": {
        "what_does_not_divide": lambda: hx.transpose(hx.reshape(hx.transpose(hx.input("x", (4, 6), "fp16"), perm=(1, 0)), shape=(8, 3)), perm=(1, 0)),
        "read_in_between": lambda: both(hx.transpose(image(), perm=(0, 2, 3, 1)), lambda t: hx.reshape(t, shape=(1, 36, 4))),
    },
    "rows_as_batch": {
        "neighbours": lambda: of_windows(lambda x: hx.conv(x, whole(6, 8, 1, 3), pad=(0, 0, 1, 1))),
        "rows": lambda: of_windows(lambda x: hx.conv(x, whole(6, 8, 3, 1), pad=(1, 1, 0, 0))),
        "another_reader": lambda: of_windows(lambda x: hx.concat(x, hx.conv(x, whole(6, 8, 1, 1)), axis=1)),
        "of_an_image": lambda: hx.abs(hx.transpose(hx.conv(image(), whole(6, 4, 1, 1)), perm=(0, 2, 3, 1))),
    },
    "keep_images": {
        "neighbours": lambda: by_pixels(lambda x: hx.conv(x, whole(4, 4, 1, 3), pad=(0, 0, 1, 1))),
        "as_many_moves": lambda: hx.abs(hx.reshape(hx.conv(image(), whole(4, 4, 3, 3)), shape=(1, 4, 1, 16))),
        "along_pixels": lambda: by_pixels(lambda x: hx.softmax(x, axis=3)),
    },
    "mirror_by_product": {
        "columns": lambda: paired(hx.abs(image()), -1, axis=3),
        "another_factor": lambda: paired(hx.abs(image()), -2, axis=1),
        "another_tensor": lambda: hx.softmax(hx.concat(hx.abs(image()), -hx.abs(image(name="u")), axis=1), axis=2),
    },
    "collapse_quant_dequant": {
        "of_tensors": lambda: hx.relu(quantised()),
        "in_fp16": lambda: _quantize(quantised()),
    },
    "deduplicate_standalone_dequant_gocs_across_concat": {
        "two_scales": lambda: hx.concat(quantised(), hx.dequantize(hx.input("r", (1, 4, 6, 6), "int8"), np.float32(0.25), dtype="fp16"), axis=1),
        "second_user": lambda: both(quantised(), lambda q: hx.concat(q, quantised("r"), axis=1)),
        "one_is_none": lambda: hx.concat(quantised(), image(), axis=1),
    },
    "scaled_ew_or_ew_with_const_in_to_goc": {
        "two_tensors": lambda: conv(image()) + conv(image(name="y")),
        "of_a_row": lambda: image() + whole(6),
        "that_grows": lambda: hx.input("x", (1, 4, 1, 1), "fp16") + whole(1, 1, 6, 6),
        "inexact_division": lambda: image() / 3.0,
        "constant_divided": lambda: 2.0 / image(),
        "a_minimum": lambda: hx.minimum(image(), 2.0),
    },
    "fold_scale": {
        "second_user": lambda: both(image() * per_channel(), lambda y: y + per_channel()),
        "activation_between": lambda: hx.relu(image() * per_channel()) + per_channel(),
    },
    "hoist_goc_or_activation_for_conv_fusion": {
        "second_user": lambda: both(conv(image()), lambda y: y + per_channel()),
        "moved_twice": lambda: both(hx.transpose(conv(image()), perm=(0, 2, 3, 1)), hx.relu),
        "of_an_input": lambda: image() + per_channel(),
        "concat_of_an_input": lambda: hx.relu(hx.concat(conv(image()), image(name="y"), axis=1)),
        "concat_per_channel": lambda: _two(lambda y: y * per_channel(8)),
        "mixed_channels": lambda: hx.reshape(conv(image()), shape=(1, 2, 72)) + whole(2, 1),
    },
    "fold_weights_with_scale": {
        "of_a_pool": lambda: hx.max_pool(image(), kernel_sizes=2) * per_channel(),
        "after_an_activation": lambda: hx.relu(conv(image())) * per_channel(),
    },
    "merge_fusable_activation_pairs": {
        "second_user": lambda: both(hx.relu6(image()), hx.relu),
        "two_kinds": lambda: hx.tanh(hx.relu(image())),
    },
    "simple_activation": {
        "second_user": lambda: both(conv(image()), hx.relu),
        "of_an_input": lambda: hx.relu(image()),
        "of_a_move": lambda: hx.relu(hx.transpose(image(), perm=(0, 2, 3, 1))),
    },
    "ne_transpose_fusion": {
        "second_user": lambda: both(conv(image()), lambda y: hx.transpose(y, perm=(0, 2, 3, 1))),
        "of_an_input": lambda: hx.transpose(image(), perm=(0, 2, 3, 1)),
    },
    "fuse_output_quant": {
        "second_user": lambda: both(conv(image()), _quantize),
        "of_an_input": lambda: _quantize(image()),
    },
}  # fmt: skip
