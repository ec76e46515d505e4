"""Builds each graph twice, in Hexane and in ANEForge: each step adds the same op to both graphs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import aneforge as af
import numpy as np

import hexane as hx

Array = np.ndarray[Any, Any]


class Pair(NamedTuple):
    """A tensor in Hexane and in ANEForge. theirs: None if ANEForge refuses to build it."""

    ours: hx.Tensor
    theirs: Any


class Step(NamedTuple):
    op: str
    made: Pair
    before: tuple[Pair, ...]
    refused: str = ""  # ANEForge's message if it refused to build the graph


@dataclass
class Twice:
    """Builds Hexane's and ANEForge's graph, and records each step."""

    steps: list[Step] = field(default_factory=list)

    def input(self, *shape: int, name: str = "x") -> Pair:
        return Pair(hx.input(name, shape), af.input(shape))

    def step(self, op: str, ours: hx.Tensor, theirs: Callable[[], Any], *before: Pair) -> Pair:
        try:
            made, refused = theirs(), ""
        except ValueError as error:
            made, refused = None, str(error)
        self.steps.append(Step(op, Pair(ours, made), before, refused))
        return self.steps[-1].made

    def unary(self, op: str, x: Pair, **attrs: float) -> Pair:
        """Ops with the same name and one input in Hexane and ANEForge."""
        return self.step(op, getattr(hx, op)(x.ours, **attrs), lambda: getattr(x.theirs, op)(*attrs.values()), x)

    def binary(self, op: str, x: Pair, y: Pair) -> Pair:
        signs = {"add": "__add__", "sub": "__sub__", "mul": "__mul__", "real_div": "__truediv__", "pow": "__pow__"}
        theirs = getattr(x.theirs, signs[op]) if op in signs else None
        return self.step(
            op,
            getattr(hx, op)(x.ours, y.ours),
            lambda: theirs(y.theirs) if theirs else _binary(op, x.theirs, y.theirs),
            x,
            y,
        )

    def conv(
        self,
        x: Pair,
        out: int,
        kernel: int | tuple[int, int],
        stride: int = 1,
        pad: int = 0,
        dilation: int = 1,
        groups: int = 1,
    ) -> Pair:
        sizes = (kernel, kernel) if isinstance(kernel, int) else kernel
        w = weight(out, x.ours.shape[1] // groups, *sizes)
        ours = hx.conv(x.ours, w, strides=stride, pad=pad, dilations=dilation, groups=groups)
        return self.step("conv", ours, lambda: af.conv(x.theirs, w, stride, pad, dilation, groups), x)

    def conv_transpose(self, x: Pair, out: int, kernel: int, stride: int) -> Pair:
        w = weight(x.ours.shape[1], out, kernel, kernel)
        return self.step(
            "conv_transpose",
            hx.conv_transpose(x.ours, w, strides=stride),
            lambda: af.conv_transpose(x.theirs, w, stride),
            x,
        )

    def linear(self, x: Pair, out: int) -> Pair:
        w = weight(out, x.ours.shape[-1])
        return self.step("linear", hx.linear(x.ours, w), lambda: x.theirs.linear(w), x)

    def matmul(self, x: Pair, y: Pair) -> Pair:
        return self.step("matmul", x.ours @ y.ours, lambda: x.theirs @ y.theirs, x, y)

    def pool(self, kind: str, x: Pair, kernel: int, stride: int = 1, pad: int = 0) -> Pair:
        ours = getattr(hx, f"{kind}_pool")(x.ours, kernel_sizes=kernel, strides=stride, pad=pad)
        return self.step(f"{kind}_pool", ours, lambda: getattr(x.theirs, f"{kind}_pool")(kernel, stride, pad), x)

    def reduce(self, kind: str, x: Pair, *axes: int) -> Pair:
        names = {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin", "l1_norm": "l1_norm", "log_sum": "log_sum",
                 "sum_square": "sum_square", "log_sum_exp": "reduce_log_sum_exp"}  # fmt: skip
        ours = getattr(hx, f"reduce_{kind}")(x.ours, axes=axes)
        return self.step(f"reduce_{kind}", ours, lambda: getattr(x.theirs, names[kind])(list(axes)), x)

    def reshape(self, x: Pair, *shape: int) -> Pair:
        return self.step("reshape", hx.reshape(x.ours, shape=shape), lambda: x.theirs.reshape(*shape), x)

    def transpose(self, x: Pair, *perm: int) -> Pair:
        return self.step("transpose", hx.transpose(x.ours, perm=perm), lambda: x.theirs.transpose(list(perm)), x)

    def concat(self, xs: Sequence[Pair], axis: int) -> Pair:
        return self.step(
            "concat",
            hx.concat(*(x.ours for x in xs), axis=axis),
            lambda: af.concat([x.theirs for x in xs], axis),
            *xs,
        )

    def softmax(self, x: Pair, axis: int = -1) -> Pair:
        return self.step("softmax", hx.softmax(x.ours, axis=axis), lambda: x.theirs.softmax(axis), x)

    def slice(self, x: Pair, begin: Sequence[int], size: Sequence[int]) -> Pair:
        ours = hx.slice_by_size(x.ours, begin=tuple(begin), size=tuple(size))
        return self.step("slice_by_size", ours, lambda: x.theirs.slice_by_size(begin, size), x)

    def attention(self, q: Pair, k: Pair, v: Pair) -> Pair:
        ours = hx.scaled_dot_product_attention(q.ours, k.ours, v.ours)
        return self.step("sdpa", ours, lambda: af.sdpa(q.theirs, k.theirs, v.theirs), q, k, v)

    def norm(self, op: str, x: Pair) -> Pair:
        """layer_norm and rms_norm over the last axis of rows."""
        width = x.ours.shape[-1]
        params = [np.ones(width, np.float32), np.zeros(width, np.float32)][: 2 if op == "layer_norm" else 1]
        return self.step(op, getattr(hx, op)(x.ours, *params), lambda: getattr(x.theirs, op)(*params), x)

    def group_norm(self, x: Pair, groups: int) -> Pair:
        params = np.ones(x.ours.shape[1], np.float32), np.zeros(x.ours.shape[1], np.float32)
        ours = hx.group_norm(x.ours, *params, num_groups=groups)
        return self.step("group_norm", ours, lambda: x.theirs.group_norm(*params, groups), x)

    def other(self, op: str, x: Pair, ours: Callable[[hx.Tensor], hx.Tensor], theirs: Callable[[Any], Any]) -> Pair:
        """An op that Hexane and ANEForge write in different ways."""
        return self.step(op, ours(x.ours), lambda: theirs(x.theirs), x)


def _binary(op: str, x: Any, y: Any) -> Any:
    return getattr(af, op)(x, y) if op in ("maximum", "minimum") else getattr(x, op)(y)


def weight(*shape: int) -> Array:
    return np.broadcast_to(np.float32(0.5), shape)


GRAPHS: dict[str, Callable[[Twice], object]] = {}


def graph(build: Callable[[Twice], object]) -> Callable[[Twice], object]:
    GRAPHS[build.__name__] = build
    return build


@contextmanager
def built(name: str) -> Iterator[Twice]:
    b = Twice()
    GRAPHS[name](b)
    yield b


# ---- networks ----


@graph
def resnet18(b: Twice) -> Pair:
    x = b.unary("relu", b.conv(b.input(1, 3, 224, 224), 64, 7, 2, 3))
    x = b.pool("max", x, 3, 2, 1)
    for channels, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        y = b.conv(b.unary("relu", b.conv(x, channels, 3, stride, 1)), channels, 3, 1, 1)
        short = x if stride == 1 else b.conv(x, channels, 1, stride)
        x = b.unary("relu", b.binary("add", y, short))
    return b.linear(b.reshape(b.reduce("mean", x, 2, 3), 1, 512), 1000)


@graph
def mobilenet(b: Twice) -> Pair:
    x = b.unary("relu6", b.conv(b.input(1, 3, 96, 96), 16, 3, 2, 1))
    for channels in (16, 24, 32):
        wide = b.unary("relu6", b.conv(x, 6 * x.ours.shape[1], 1))
        deep = b.unary("relu6", b.conv(wide, wide.ours.shape[1], 3, 2, 1, groups=wide.ours.shape[1]))
        x = b.conv(deep, channels, 1)
    return b.linear(b.reshape(b.reduce("mean", x, 2, 3), 1, 32), 10)


@graph
def vgg_classifier(b: Twice) -> Pair:
    x = b.pool("max", b.unary("relu", b.conv(b.input(1, 256, 14, 14), 512, 3, 1, 1)), 2, 2)
    x = b.unary("relu", b.linear(b.reshape(x, 1, 25088), 64))
    return b.softmax(b.linear(x, 1000))


@graph
def unet(b: Twice) -> Pair:
    a = b.unary("silu", b.conv(b.input(1, 3, 64, 64), 32, 3, 1, 1))
    c = b.unary("silu", b.conv(b.pool("max", a, 2, 2), 64, 3, 1, 1))
    up = b.conv_transpose(c, 32, 2, 2)
    return b.conv(b.concat((up, a), 1), 2, 1)


@graph
def encoder_block(b: Twice) -> Pair:
    x = b.input(128, 256)
    h = b.norm("layer_norm", x)
    q, k, v = (b.transpose(b.reshape(b.linear(h, 256), 128, 4, 64), 1, 0, 2) for _ in range(3))
    mixed = b.matmul(b.softmax(b.matmul(q, b.transpose(k, 0, 2, 1))), v)
    x = b.binary("add", x, b.linear(b.reshape(b.transpose(mixed, 1, 0, 2), 128, 256), 256))
    y = b.linear(b.unary("gelu", b.linear(b.norm("layer_norm", x), 1024)), 256)
    return b.binary("add", x, y)


@graph
def decoder_block(b: Twice) -> Pair:
    x = b.input(64, 512)
    h = b.norm("rms_norm", x)
    q, k, v = (b.reshape(b.linear(h, 512), 1, 8, 64, 64) for _ in range(3))
    x = b.binary("add", x, b.linear(b.reshape(b.attention(q, k, v), 64, 512), 512))
    h = b.norm("rms_norm", x)
    y = b.linear(b.binary("mul", b.unary("silu", b.linear(h, 1376)), b.linear(h, 1376)), 512)
    return b.binary("add", x, y)


@graph
def language_head(b: Twice) -> Pair:
    """A vocabulary of 50,257 as the width, which fits from A16 on (limit 65,536)."""
    return b.softmax(b.linear(b.norm("rms_norm", b.input(1, 16)), 50257))


@graph
def group_norm_net(b: Twice) -> Pair:
    return b.unary("silu", b.group_norm(b.conv(b.input(1, 3, 32, 32), 32, 3, 1, 1), 8))


@graph
def group_norm_of_a_large_image(b: Twice) -> Pair:
    return b.group_norm(b.input(1, 8, 160, 128), 2)


@graph
def super_resolution(b: Twice) -> Pair:
    x = b.unary("relu", b.conv(b.input(1, 1, 48, 48), 64, 5, 1, 2))
    return b.other(
        "pixel_shuffle",
        b.conv(x, 9, 3, 1, 1),
        lambda t: hx.pixel_shuffle(t, upscale_factor=3),
        lambda t: af.pixel_shuffle(t, 3),
    )


# ---- windows ----


@graph
def kernels_up_to_13(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, 13, 1, 6)


@graph
def kernel_of_14(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, 14)


@graph
def kernel_of_16(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, 16, 16)


@graph
def high_kernel(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, (29, 3))


@graph
def kernel_higher_than_29(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, (30, 3))


@graph
def transposed_kernel_of_9(b: Twice) -> Pair:
    return b.conv_transpose(b.input(1, 8, 16, 16), 8, 9, 2)


@graph
def dilated(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, 3, 1, 2, 2)


@graph
def grouped_wide_kernel(b: Twice) -> Pair:
    return b.conv(b.input(1, 32, 64, 64), 32, 9, 1, 4, groups=32)


@graph
def dilated_wide_kernel(b: Twice) -> Pair:
    return b.conv(b.input(1, 8, 64, 64), 8, 9, dilation=2)


@graph
def pools(b: Twice) -> Pair:
    return b.pool("avg", b.pool("max", b.input(1, 8, 64, 64), 3, 2, 1), 2, 2)


@graph
def max_pool_of_stride_3(b: Twice) -> Pair:
    return b.pool("max", b.input(1, 8, 66, 66), 3, 3)


@graph
def avg_pool_of_stride_3(b: Twice) -> Pair:
    return b.pool("avg", b.input(1, 8, 66, 66), 3, 3)


@graph
def pool_of_30(b: Twice) -> Pair:
    return b.pool("avg", b.input(1, 8, 64, 64), 30)


# ---- extents ----


@graph
def width_16385(b: Twice) -> Pair:
    return b.unary("relu", b.input(1, 3, 8, 16385))


@graph
def width_65537(b: Twice) -> Pair:
    return b.unary("relu", b.input(1, 3, 8, 65537))


@graph
def channels_65536(b: Twice) -> Pair:
    return b.unary("relu", b.input(1, 65536, 2, 2))


@graph
def channels_65537(b: Twice) -> Pair:
    return b.unary("relu", b.input(1, 65537, 1, 1))


@graph
def batch_20000(b: Twice) -> Pair:
    return b.unary("relu", b.input(20000, 4, 2, 2))


@graph
def long_contraction(b: Twice) -> Pair:
    return b.linear(b.input(4, 16385), 8)


@graph
def transpose_of_10_million(b: Twice) -> Pair:
    return b.transpose(b.input(1, 64, 400, 400), 0, 2, 3, 1)


@graph
def transpose_of_17_million(b: Twice) -> Pair:
    return b.transpose(b.input(1, 65, 512, 512), 0, 2, 3, 1)


@graph
def transpose_of_a_long_axis(b: Twice) -> Pair:
    return b.transpose(b.input(20000, 64), 1, 0)


@graph
def five_axes(b: Twice) -> Pair:
    return b.unary("relu", b.input(1, 2, 3, 4, 5))


@graph
def matmul_of_five_axes(b: Twice) -> Pair:
    return b.matmul(b.input(1, 2, 2, 4, 16), b.input(1, 2, 2, 16, 4, name="y"))


# ---- ops that only newer families run ----


@graph
def waves(b: Twice) -> Pair:
    x = b.input(1, 8, 16, 16)
    return b.binary("mul", b.unary("sin", x), b.unary("cos", x))


@graph
def largest_five(b: Twice) -> Pair:
    return b.other("topk", b.input(4, 64), lambda t: hx.topk(t, k=5)[0], lambda t: af.topk(t, 5))


@graph
def largest_three(b: Twice) -> Pair:
    return b.other("topk", b.input(4, 64), lambda t: hx.topk(t, k=3)[0], lambda t: af.topk(t, 3))


@graph
def sorted_places(b: Twice) -> Pair:
    return b.other("argsort", b.input(4, 64), hx.argsort, lambda t: af.graph.sort(t, return_indices=True))


@graph
def argmax(b: Twice) -> Pair:
    return b.other("argmax", b.input(4, 64), lambda t: hx.reduce_argmax(t, axis=1), lambda t: t.argmax(1))


@graph
def argmax_of_4096(b: Twice) -> Pair:
    return b.other("argmax", b.input(4, 4096), lambda t: hx.reduce_argmax(t, axis=1), lambda t: t.argmax(1))


@graph
def warp(b: Twice) -> Pair:
    m = np.float32([[1, 0, 0, 0, 1, 0]])
    return b.other(
        "affine",
        b.input(1, 3, 32, 32),
        lambda t: hx.affine(t, m.reshape(1, 2, 3), output_height=32, output_width=32),
        lambda t: af.affine(t, m, 32, 32),
    )


@graph
def resizing(b: Twice) -> Pair:
    x = b.other(
        "upsample_nearest_neighbor",
        b.input(1, 8, 16, 16),
        lambda t: hx.upsample_nearest_neighbor(t, scale_factor_height=2, scale_factor_width=2),
        lambda t: t.upsample(2),
    )
    return b.other(
        "upsample_bilinear",
        x,
        lambda t: hx.upsample_bilinear(t, scale_factor_height=2, scale_factor_width=2),
        lambda t: af.upsample_bilinear(t, 2),
    )


@graph
def embedding(b: Twice) -> Pair:
    places = np.array([1, 5, 7])
    return b.other("gather", b.input(32, 64), lambda t: hx.gather(t, places), lambda t: af.gather(t, places))


@graph
def embedding_of_a_batch(b: Twice) -> Pair:
    places = np.array([1, 5])
    return b.other(
        "gather", b.input(2, 8, 4, 4), lambda t: hx.gather(t, places, axis=1), lambda t: af.gather(t, places, 1)
    )


@graph
def lrn_of_16(b: Twice) -> Pair:
    return b.other(
        "local_response_norm",
        b.input(1, 16, 8, 8),
        lambda t: hx.local_response_norm(t, size=5),
        lambda t: af.local_response_norm(t, 5),
    )


@graph
def attention_512(b: Twice) -> Pair:
    return b.attention(*(b.input(1, 8, 512, 64, name=n) for n in "qkv"))


# ---- the rest of the vocabulary ----


@graph
def activations(b: Twice) -> Pair:
    x = b.input(1, 8, 16, 16)
    for op in (
        "gelu",
        "silu",
        "sigmoid",
        "tanh",
        "exp",
        "sqrt",
        "abs",
        "square",
        "erf",
        "softplus",
        "softsign",
        "atan",
        "exp2",
        "floor",
        "ceil",
        "round",
        "sign",
        "log",
        "rsqrt",
        "inverse",
    ):
        x = b.unary(op, x)
    for op, attrs in (
        ("elu", {"alpha": 1.0}),
        ("leaky_relu", {"alpha": 0.1}),
        ("scaled_tanh", {"alpha": 1.0, "beta": 2.0}),
        ("sigmoid_hard", {"alpha": 0.2, "beta": 0.5}),
        ("clamped_relu", {"alpha": 0.1, "beta": 6.0}),
        ("linear_activation", {"alpha": 2.0, "beta": 1.0}),
        ("threshold", {"alpha": 0.5}),
        ("thresholded_relu", {"alpha": 0.5}),
    ):
        x = b.unary(op, x, **attrs)
    return b.other("clip", x, lambda t: hx.clip(t, alpha=-1.0, beta=1.0), lambda t: t.clip(-1.0, 1.0))


@graph
def comparisons(b: Twice) -> Pair:
    x, y = b.input(1, 8, 16, 16), b.input(1, 8, 16, 16, name="y")
    for op in ("less", "greater", "equal", "not_equal", "less_equal", "greater_equal"):
        truth = b.binary(op, x, y)
    truth = b.unary("logical_not", truth)
    return b.step(
        "select",
        hx.select(truth.ours, x.ours, y.ours),
        lambda: af.select(truth.theirs, x.theirs, y.theirs),
        truth,
        x,
        y,
    )


@graph
def arithmetic(b: Twice) -> Pair:
    x, y = b.input(1, 8, 16, 16), b.input(1, 8, 1, 1, name="y")
    for op in ("add", "sub", "mul", "real_div", "pow", "maximum", "minimum"):
        x = b.binary(op, x, y)
    return x


@graph
def reductions(b: Twice) -> Pair:
    x = b.input(1, 8, 16, 16)
    for kind in ("mean", "sum", "max", "min", "l1_norm", "log_sum", "sum_square", "log_sum_exp"):
        last = b.reduce(kind, x, 2, 3)
    return last


@graph
def running_sum(b: Twice) -> Pair:
    return b.other("cumsum", b.input(8, 64), lambda t: hx.cumsum(t, axis=-1), lambda t: t.cumsum(-1))


@graph
def norms(b: Twice) -> Pair:
    one, zero = np.ones(8, np.float32), np.zeros(8, np.float32)
    x = b.input(1, 8, 16, 16)
    x = b.other(
        "batch_norm",
        x,
        lambda t: hx.batch_norm(t, zero, one, one, zero),
        lambda t: af.batch_norm(t, one, zero, zero, one),
    )
    x = b.other("instance_norm", x, lambda t: hx.instance_norm(t, one, zero), lambda t: af.instance_norm(t, one, zero))
    return b.other("l2_norm", x, lambda t: hx.l2_norm(t, axes=(-1,)), lambda t: t.l2_norm(-1))


@graph
def moves(b: Twice) -> Pair:
    x = b.input(1, 8, 16, 16)
    x = b.slice(x, (0, 0, 2, 0), (1, 8, 8, 16))
    x = b.other("reverse", x, lambda t: hx.reverse(t, axes=(3,)), lambda t: t.reverse([3]))
    x = b.other("tile", x, lambda t: hx.tile(t, reps=(1, 1, 2, 1)), lambda t: t.tile((1, 1, 2, 1)))
    x = b.other(
        "pixel_unshuffle", x, lambda t: hx.pixel_unshuffle(t, downscale_factor=2), lambda t: af.pixel_unshuffle(t, 2)
    )
    x = b.other("depth_to_space", x, lambda t: hx.depth_to_space(t, block_size=2), lambda t: af.depth_to_space(t, 2))
    x = b.other("space_to_depth", x, lambda t: hx.space_to_depth(t, block_size=4), lambda t: af.space_to_depth(t, 4))
    x = b.other("squeeze", x, lambda t: hx.squeeze(t, axes=(0,)), lambda t: t.squeeze([0]))
    return b.other("expand_dims", x, lambda t: hx.expand_dims(t, axes=(0,)), lambda t: t.expand_dims([0]))


@graph
def slice_inside_a_row(b: Twice) -> Pair:
    return b.slice(b.input(1, 64), (0, 3), (1, 16))


@graph
def tile_by_5(b: Twice) -> Pair:
    return b.other("tile", b.input(1, 8, 4, 4), lambda t: hx.tile(t, reps=(1, 5, 1, 1)), lambda t: t.tile((1, 5, 1, 1)))


@graph
def shuffle_by_5(b: Twice) -> Pair:
    return b.other(
        "pixel_shuffle",
        b.input(1, 25, 4, 4),
        lambda t: hx.pixel_shuffle(t, upscale_factor=5),
        lambda t: af.pixel_shuffle(t, 5),
    )


@graph
def split_and_stack(b: Twice) -> Pair:
    x = b.input(1, 8, 16, 16)
    half = b.other("split", x, lambda t: hx.split(t, axis=1, num_splits=2)[0], lambda t: af.split(t, 2, 1)[0])
    return b.step(
        "stack", hx.stack(half.ours, half.ours, axis=0), lambda: af.stack([half.theirs, half.theirs], 0), half
    )


@graph
def einsum_of_images(b: Twice) -> Pair:
    w = np.full((1, 16, 4, 8), 0.5, np.float32)
    return b.other(
        "einsum",
        b.input(1, 8, 4, 16),
        lambda t: hx.einsum(t, w, equation="nchw,nwhu->nchu"),
        lambda t: af.graph.einsum_native("nchw,nwhu->nchu", t, w),
    )
