"""Convolutions, pools, norms, products, reductions and losses, in PyTorch: by definition where torch has another form."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

T = torch.Tensor
Ints = Sequence[int]


# ---- windows ----


def first(x: T, layout: str) -> T:
    return x.movedim(-1, 1) if layout == "nhwc" else x


def as_layout(x: T, layout: str) -> T:
    return x.movedim(1, -1) if layout == "nhwc" else x


def padded(x: T, pad: Ints, value: float = 0.0) -> T:
    """pad: (before, after) of each spatial axis."""
    pairs = [pad[i : i + 2] for i in range(0, len(pad), 2)]
    return F.pad(x, [n for pair in reversed(pairs) for n in pair], value=value)


def outs_of(extents: Ints, kernel: Ints, strides: Ints, dilations: Ints, pad: Ints, ceil_mode: bool) -> list[int]:
    found = []
    for i, (n, k, s, d) in enumerate(zip(extents, kernel, strides, dilations, strict=True)):
        room = n + pad[2 * i] + pad[2 * i + 1] - d * (k - 1) - 1
        out = room // s + 1
        if ceil_mode and room % s and out * s < n + pad[2 * i]:  # a window starts in the image or in front of it
            out += 1
        found.append(out)
    return found


def windows(x: T, kernel: Ints, strides: Ints, dilations: Ints, pad: Ints, ceil_mode: bool = False, value: float = 0.0) -> T:  # fmt: skip
    """(N, C, spatial..) -> (N, C, windows.., taps)."""
    rank = len(kernel)
    outs = outs_of(x.shape[2:], kernel, strides, dilations, pad, ceil_mode)
    x = padded(x, pad, value)
    past = [max((o - 1) * s + d * (k - 1) + 1 - n, 0)
            for o, s, d, k, n in zip(outs, strides, dilations, kernel, x.shape[2:], strict=True)]  # fmt: skip
    x = padded(x, [n for more in past for n in (0, more)], value)
    for i in range(rank):
        at = np.arange(outs[i])[:, None] * strides[i] + np.arange(kernel[i]) * dilations[i]
        x = x.index_select(2 + i, torch.from_numpy(at.reshape(-1)))
    x = x.reshape(*x.shape[:2], *(n for pair in zip(outs, kernel, strict=True) for n in pair))
    x = x.permute(0, 1, *(2 + 2 * i for i in range(rank)), *(3 + 2 * i for i in range(rank)))
    return x.reshape(*x.shape[: 2 + rank], prod(kernel))


def conv(x: T, weight: T, bias: T | None, strides: Ints, dilations: Ints, pad: Ints, groups: int, layout: str) -> T:
    run: Any = (F.conv1d, F.conv2d, F.conv3d)[weight.ndim - 3]
    y = run(padded(first(x, layout), pad), weight, bias, tuple(strides), 0, tuple(dilations), groups)
    return as_layout(y, layout)


def conv_transpose(
    x: T, weight: T, bias: T | None, strides: Ints, dilations: Ints, pad: Ints, output_padding: Ints, groups: int, layout: str
) -> T:  # fmt: skip
    run: Any = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[weight.ndim - 3]
    whole = run(first(x, layout), weight, None, tuple(strides), 0, 0, groups, tuple(dilations))
    ends = [more - pad[2 * i + 1] for i, more in enumerate(output_padding)]
    y = padded(whole, [n for i, end in enumerate(ends) for n in (-pad[2 * i], end)])
    return as_layout(y if bias is None else y + bias.reshape(-1, *(1 for _ in output_padding)), layout)


def max_pool(x: T, kernel_sizes: Ints, layout: str = "nchw", **attrs: Any) -> T:
    """The first of equal elements counts."""
    taps = windows(first(x, layout), kernel_sizes, value=-np.inf, **attrs)
    at = torch.from_numpy(taps.detach().numpy().argmax(-1))
    return as_layout(taps.gather(-1, at[..., None])[..., 0], layout)


def avg_pool(
    x: T, kernel_sizes: Ints, ceil_mode: bool, exclude_padding: bool, layout: str, pad: Ints, **attrs: Any
) -> T:
    x = first(x, layout)
    ones = torch.ones((1, 1, *x.shape[2:]), dtype=x.dtype)
    if not exclude_padding:  # the padding counts, what lies past it does not
        ones = padded(ones, pad, 1.0)
    more = {"strides": attrs["strides"], "dilations": attrs["dilations"]}
    outs = outs_of(x.shape[2:], kernel_sizes, **more, pad=pad, ceil_mode=ceil_mode)
    total = windows(x, kernel_sizes, **more, pad=pad, ceil_mode=ceil_mode).sum(-1)
    inner = pad if exclude_padding else [0] * len(pad)
    reach = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in
             zip(outs, more["strides"], more["dilations"], kernel_sizes, strict=True)]  # fmt: skip
    ends = [n for r, i, e in zip(reach, inner[::2], ones.shape[2:], strict=True) for n in (i, r - i - e)]
    counts = windows(padded(ones, ends), kernel_sizes, **more, pad=[0] * len(pad)).sum(-1)
    return as_layout(total / torch.clamp(counts, min=1), layout)


def lp_pool(x: T, p: int, kernel_sizes: Ints, **attrs: Any) -> T:
    return torch.linalg.vector_norm(windows(x, kernel_sizes, **attrs), ord=p, dim=-1)


def im2col(x: T, kernel_sizes: Ints, **attrs: Any) -> T:
    found = windows(x, kernel_sizes, **attrs)
    found = found.reshape(*x.shape[:2], -1, prod(kernel_sizes))
    return found.transpose(2, 3).reshape(x.shape[0], x.shape[1] * prod(kernel_sizes), -1)


def sliding_windows(x: T, axis: int, size: int, stride: int) -> T:
    return x.unfold(axis, size, stride).movedim(-1, axis + 1)


# ---- norms ----


def along(v: T, rank: int, axis: int) -> T:
    return v.reshape([-1 if i == axis else 1 for i in range(rank)])


def normalised(x: T, axes: Ints, epsilon: float) -> T:
    mean = x.mean(tuple(axes), keepdim=True)
    return (x - mean) / torch.sqrt(x.var(tuple(axes), keepdim=True, correction=0) + epsilon)


def affine(x: T, gamma: T | None, beta: T | None) -> T:
    x = x if gamma is None else x * gamma
    return x if beta is None else x + beta


def layer_norm(x: T, gamma: T | None, beta: T | None, axes: Ints, epsilon: float) -> T:
    return affine(normalised(x, axes, epsilon), gamma, beta)


def rms_norm(x: T, gamma: T | None, axes: Ints, epsilon: float) -> T:
    return affine(x / torch.sqrt(x.square().mean(tuple(axes), keepdim=True) + epsilon), gamma, None)


def batch_norm(x: T, mean: T, variance: T, gamma: T | None, beta: T | None, epsilon: float, axis: int) -> T:
    mean, variance, gamma, beta = (None if v is None else along(v, x.ndim, axis) for v in (mean, variance, gamma, beta))
    return affine((x - mean) / torch.sqrt(variance + epsilon), gamma, beta)


def batch_norm_training(
    x: T, mean: T, variance: T, gamma: T | None, beta: T | None, epsilon: float, momentum: float, axis: int
) -> tuple[T, T, T]:
    moved = x.movedim(axis, 1)
    mean, variance = mean.clone(), variance.clone()
    own = moved.transpose(0, 1).reshape(moved.shape[1], -1)
    y = F.batch_norm(moved, None, None, gamma, beta, True, momentum, epsilon).movedim(1, axis)
    return y, (1 - momentum) * mean + momentum * own.mean(1), (1 - momentum) * variance + momentum * own.var(1)


def instance_norm(x: T, gamma: T | None, beta: T | None, epsilon: float, layout: str) -> T:
    x = first(x, layout)
    parts = (None if v is None else along(v, x.ndim, 1) for v in (gamma, beta))
    return as_layout(affine(normalised(x, range(2, x.ndim), epsilon), *parts), layout)


def local_response_norm(x: T, alpha: float, beta: float, k: float, size: int, axis: int) -> T:
    squares = F.pad(x.square().movedim(axis, -1), ((size - 1) // 2, size // 2))
    total = squares.unfold(-1, size, 1).sum(-1).movedim(-1, axis)
    return x / (k + alpha / size * total) ** beta


def lp_norm(x: T, p: int, axis: int) -> T:
    total = torch.linalg.vector_norm(x, ord=p, dim=axis, keepdim=True)
    return torch.where(total == 0, torch.zeros_like(x), x / torch.where(total == 0, torch.ones_like(total), total))


def mean_variance_norm(x: T, axes: Ints, epsilon: float) -> T:
    centred = x - x.mean(tuple(axes), keepdim=True)
    return centred / (torch.sqrt(centred.square().mean(tuple(axes), keepdim=True)) + epsilon)


# ---- products ----


def matmul(x: T, y: T, bias: T | None, transpose_x: bool, transpose_y: bool) -> T:
    z = (x.mT if transpose_x else x) @ (y.mT if transpose_y else y)
    return z if bias is None else z + bias


def attention(q: T, k: T, v: T, mask: Any, scale: float, causal: bool, zero_hidden: bool, hidden: float) -> T:
    scores = q @ k.mT * (scale or q.shape[-1] ** -0.5)
    if causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), hidden)
    if mask is not None:
        scores = torch.where(mask, scores, hidden) if mask.dtype == torch.bool else scores + mask
    shares = torch.softmax(scores, -1)
    return (torch.nan_to_num(shares, 0.0) if zero_hidden else shares) @ v


def rotary_embedding(x: T, cos: T, sin: T, interleaved: bool) -> T:
    one, two = (x[..., ::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
    turned = (one * cos - two * sin, one * sin + two * cos)
    return torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)


def band_part(x: T, lower: int, upper: int) -> T:
    rows, columns = x.shape[-2:]
    away = np.arange(columns) - np.arange(rows)[:, None]
    stays = ((away >= -lower) | (lower < 0)) & ((away <= upper) | (upper < 0))
    return x * torch.from_numpy(stays.astype(np.float64))


# ---- reductions ----


def reduction(run: Callable[[T], T]) -> Callable[..., T]:
    """run: over the last axis, which all reduced axes are joined to."""

    def reduced(x: T, axes: Ints, keep_dims: bool) -> T:
        rest = [i for i in range(x.ndim) if i not in axes]
        y = run(x.permute(*rest, *axes).reshape(*(x.shape[i] for i in rest), prod(x.shape[i] for i in axes)))
        return y.reshape([1 if i in axes else d for i, d in enumerate(x.shape)]) if keep_dims else y

    return reduced


def running(run: Callable[[T, int], T], neutral: float) -> Callable[..., T]:
    def ran(x: T, axis: int, exclusive: bool, reverse: bool) -> T:
        x = x.flip(axis) if reverse else x
        if exclusive:
            start = torch.full_like(x.narrow(axis, 0, min(1, x.shape[axis])), neutral)
            x = torch.cat([start, x.narrow(axis, 0, max(x.shape[axis] - 1, 0))], axis)
        y = run(x, axis)
        return y.flip(axis) if reverse else y

    return ran


# ---- losses ----


def cross_entropy(logits: T, labels: T, ignored: int, label_smoothing: float, reduction: str) -> T:
    rows = logits.reshape(-1, logits.shape[-1])
    options: dict[str, Any] = {"ignore_index": ignored, "label_smoothing": label_smoothing, "reduction": reduction}
    found = F.cross_entropy(rows, labels.reshape(-1).long(), **options)
    return found.reshape(labels.shape) if reduction == "none" else found


FORMS: dict[str, Callable[..., Any]] = {
    "conv": conv, "conv_transpose": conv_transpose, "max_pool": max_pool, "avg_pool": avg_pool, "lp_pool": lp_pool,
    "im2col": im2col, "sliding_windows": sliding_windows, "layer_norm": layer_norm, "rms_norm": rms_norm,
    "batch_norm": batch_norm, "batch_norm_training": batch_norm_training, "instance_norm": instance_norm,
    "group_norm": lambda x, gamma, beta, num_groups, epsilon: F.group_norm(x, num_groups, gamma, beta, epsilon),
    "local_response_norm": local_response_norm, "lp_norm": lp_norm, "mean_variance_norm": mean_variance_norm,
    "l2_norm": lambda x, axes, epsilon: x / torch.sqrt(x.square().sum(tuple(axes), keepdim=True) + epsilon),
    "matmul": matmul, "linear": F.linear, "scaled_dot_product_attention": attention, "rotary_embedding": rotary_embedding,
    "trilu": lambda x, k, upper: torch.triu(x, k) if upper else torch.tril(x, k), "band_part": band_part,
    "einsum": lambda *values, equation: torch.einsum(equation, *values),
    "cross_entropy": cross_entropy, "mse": lambda x, y, reduction: F.mse_loss(x, y, reduction=reduction),
    "squared_norm": lambda x, when: x.square().sum() if when is None or when[0] else x.new_zeros(()),
    "softmax": lambda x, axis: torch.softmax(x, axis), "log_softmax": lambda x, axis: torch.log_softmax(x, axis),
    "cumsum": running(torch.cumsum, 0.0), "cumprod": running(torch.cumprod, 1.0),
    "reduce_sum": reduction(lambda x: x.sum(-1)), "reduce_mean": reduction(lambda x: x.mean(-1)),
    "reduce_max": reduction(lambda x: x.amax(-1)), "reduce_min": reduction(lambda x: x.amin(-1)),
    "reduce_prod": reduction(lambda x: x.prod(-1)), "reduce_sum_square": reduction(lambda x: x.square().sum(-1)),
    "reduce_l1_norm": reduction(lambda x: x.abs().sum(-1)),
    "reduce_l2_norm": reduction(lambda x: torch.linalg.vector_norm(x, dim=-1)),
    "reduce_log_sum": reduction(lambda x: x.sum(-1).log()), "reduce_log_sum_exp": reduction(lambda x: x.logsumexp(-1)),
}  # fmt: skip
