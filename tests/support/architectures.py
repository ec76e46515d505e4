"""Well-known networks, small: few layers and pixels, the structure of each as published, weights seeded and scaled by
fan-in.

`ARCHITECTURES[name]()` is a Graph whose numbers stay near 1 from layer to layer, so that fp16 holds them.
"""

from collections.abc import Callable
from math import prod

import numpy as np

import hexane as hx
from hexane.graph import Array, Graph

Tensor = hx.Tensor


class Layers:
    """Layers with weights of one seeded generator."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def normal(self, *shape: int, scale: float) -> Array:
        return self.rng.standard_normal(shape, np.float32) * np.float32(scale)

    def around(self, middle: float, channels: int) -> Array:
        return self.rng.uniform(middle - 0.2, middle + 0.2, channels).astype(np.float32)

    def conv(self, x: Tensor, out: int, size: int = 3, stride: int = 1, groups: int = 1, bias: bool = True) -> Tensor:
        """A convolution that keeps height and width, or divides them by its stride."""
        inner = x.shape[1] // groups
        kernel = (size,) * (len(x.shape) - 2)
        weight = self.normal(out, inner, *kernel, scale=(inner * prod(kernel)) ** -0.5)
        shift = self.normal(out, scale=0.1) if bias else None
        return hx.conv(x, weight, shift, pad=size // 2, strides=stride, groups=groups)

    def batch_norm(self, x: Tensor) -> Tensor:
        channels = x.shape[1]
        numbers = (self.around(middle, channels) for middle in (0, 1, 1, 0))  # mean, variance, gamma, beta
        return hx.batch_norm(x, *numbers)

    def conv_norm(self, x: Tensor, out: int, size: int = 3, stride: int = 1, groups: int = 1) -> Tensor:
        return self.batch_norm(self.conv(x, out, size, stride, groups, bias=False))

    def linear(self, x: Tensor, out: int, bias: bool = True) -> Tensor:
        inner = x.shape[-1]
        return hx.linear(x, self.normal(out, inner, scale=inner**-0.5), self.normal(out, scale=0.1) if bias else None)

    def layer_norm(self, x: Tensor) -> Tensor:
        width = x.shape[-1]
        return hx.layer_norm(x, self.around(1, width), self.around(0, width), epsilon=1e-5)

    def attention(self, x: Tensor, heads: int, mask: Array | None = None) -> Tensor:
        """Self-attention over x (batch, tokens, width), written out; mask is added to the scores."""
        batch, tokens, width = x.shape
        split = (batch, tokens, heads, width // heads)
        query, key, value = (
            hx.transpose(hx.reshape(self.linear(x, width), shape=split), perm=(0, 2, 1, 3)) for _ in range(3)
        )
        scores = query @ hx.transpose(key, perm=(0, 1, 3, 2)) * (width // heads) ** -0.5
        mixed = hx.softmax(scores if mask is None else scores + mask) @ value
        return self.linear(hx.reshape(hx.transpose(mixed, perm=(0, 2, 1, 3)), shape=x.shape), width)

    def mlp(self, x: Tensor, activation: Callable[[Tensor], Tensor] = hx.gelu) -> Tensor:
        return self.linear(activation(self.linear(x, 4 * x.shape[-1])), x.shape[-1])

    def pre_norm_block(self, x: Tensor, heads: int, mask: Array | None = None) -> Tensor:
        x = x + self.attention(self.layer_norm(x), heads, mask)
        return x + self.mlp(self.layer_norm(x))

    def classifier(self, x: Tensor, classes: int = 10) -> Tensor:
        """Logits from an image, by the mean of its pixels."""
        return self.linear(pixel_mean(x), classes)


def pixel_mean(x: Tensor) -> Tensor:
    return hx.reduce_mean(x, axes=(2, 3), keep_dims=False)


def image(size: int = 32) -> Tensor:
    return hx.input("image", (1, 3, size, size))


# ---- convolutional networks ----


def squeeze_excite(b: Layers, x: Tensor, inner: int, gate: Callable[[Tensor], Tensor], active: Callable[[Tensor], Tensor]) -> Tensor:  # fmt: skip
    y = hx.reduce_mean(x, axes=(2, 3), keep_dims=True)
    return x * gate(b.conv(active(b.conv(y, inner, 1)), x.shape[1], 1))


def inverted_residual(b: Layers, x: Tensor, wide: int, out: int, size: int, stride: int, excite: Callable[[Tensor], Tensor] | None, active: Callable[[Tensor], Tensor]) -> Tensor:  # fmt: skip
    """Wider by a 1x1 convolution, depthwise, weighted by channel, narrow again; a residual where the shape stays."""
    y = active(b.conv_norm(x, wide, 1))
    y = active(b.conv_norm(y, wide, size, stride, groups=wide))
    y = excite(y) if excite is not None else y
    y = b.conv_norm(y, out, 1)
    return x + y if y.shape == x.shape else y


def mobilenet_v3() -> Graph:
    b = Layers(1)
    x = hx.hard_swish(b.conv_norm(image(), 16, 3, 2))
    for wide, out, size, stride, excites, active in (
        (16, 16, 3, 2, True, hx.relu), (72, 24, 3, 2, False, hx.relu), (88, 24, 3, 1, False, hx.relu), (96, 40, 5, 2, True, hx.hard_swish),
    ):  # fmt: skip
        excite = (lambda y, inner=wide // 4: squeeze_excite(b, y, inner, hard_sigmoid, hx.relu)) if excites else None
        x = inverted_residual(b, x, wide, out, size, stride, excite, active)
    x = hx.hard_swish(b.conv_norm(x, 96, 1))
    return hx.graph(b.linear(hx.hard_swish(b.linear(pixel_mean(x), 64)), 10))


def hard_sigmoid(x: Tensor) -> Tensor:
    return hx.clip(x + 3.0, alpha=0.0, beta=6.0) / 6.0


def efficientnet() -> Graph:
    b = Layers(2)
    x = hx.silu(b.conv_norm(image(), 32, 3, 2))
    for ratio, out, size, stride in ((1, 16, 3, 1), (6, 24, 3, 2), (6, 24, 3, 1), (6, 40, 5, 2)):
        excite = lambda y, inner=x.shape[1] // 4: squeeze_excite(b, y, inner, hx.sigmoid, hx.silu)  # noqa: E731
        x = inverted_residual(b, x, ratio * x.shape[1], out, size, stride, excite, hx.silu)
    return hx.graph(b.classifier(hx.silu(b.conv_norm(x, 128, 1))))


def shufflenet_v2() -> Graph:
    b = Layers(3)
    x = hx.max_pool(hx.relu(b.conv_norm(image(), 24, 3, 2)), kernel_sizes=3, strides=2, pad=1)
    for stride in (2, 1, 1):
        half = 24 if stride == 2 else x.shape[1] // 2
        if stride == 2:
            left = hx.relu(b.conv_norm(b.conv_norm(x, x.shape[1], 3, 2, groups=x.shape[1]), half, 1))
            right = x
        else:
            left, right = hx.split(x, num_splits=2, axis=1)
        right = b.conv_norm(hx.relu(b.conv_norm(right, half, 1)), half, 3, stride, groups=half)
        x = hx.concat(left, hx.relu(b.conv_norm(right, half, 1)), axis=1)
        n, channels, height, width = x.shape
        x = hx.transpose(hx.reshape(x, shape=(n, 2, channels // 2, height, width)), perm=(0, 2, 1, 3, 4))
        x = hx.reshape(x, shape=(n, channels, height, width))
    return hx.graph(b.classifier(hx.relu(b.conv_norm(x, 64, 1))))


def squeezenet() -> Graph:
    b = Layers(4)
    x = hx.relu(b.conv(image(), 32, 3, 2))
    for narrow, wide, pools in ((16, 32, True), (16, 32, False), (24, 48, True)):
        if pools:
            x = hx.max_pool(x, kernel_sizes=3, strides=2, ceil_mode=True)
        y = hx.relu(b.conv(x, narrow, 1))
        x = hx.concat(hx.relu(b.conv(y, wide, 1)), hx.relu(b.conv(y, wide, 3)), axis=1)
    return hx.graph(pixel_mean(hx.relu(b.conv(x, 10, 1))))


def densenet() -> Graph:
    b = Layers(5)
    x = hx.relu(b.conv_norm(image(), 16, 7, 2))
    x = hx.max_pool(x, kernel_sizes=3, strides=2, pad=1)
    for layers in (3, 2):
        if layers == 2:
            x = hx.avg_pool(b.conv(hx.relu(b.batch_norm(x)), x.shape[1] // 2, 1, bias=False), kernel_sizes=2, strides=2)
        for _ in range(layers):
            y = b.conv(hx.relu(b.batch_norm(x)), 32, 1, bias=False)
            x = hx.concat(x, b.conv(hx.relu(b.batch_norm(y)), 8, 3, bias=False), axis=1)
    return hx.graph(b.classifier(hx.relu(b.batch_norm(x))))


def convnext() -> Graph:
    """Blocks in channels first around linear layers in channels last."""
    b = Layers(6)
    last, first = (0, 2, 3, 1), (0, 3, 1, 2)
    x = patches(b, image(), 24, 4)
    x = hx.transpose(b.layer_norm(hx.transpose(x, perm=last)), perm=first)
    for _ in range(2):
        y = b.mlp(b.layer_norm(hx.transpose(b.conv(x, 24, 7, groups=24), perm=last)))
        x = x + hx.transpose(y * b.around(0.5, 24), perm=first)
    x = patches(b, hx.transpose(b.layer_norm(hx.transpose(x, perm=last)), perm=first), 48, 2)
    return hx.graph(b.linear(b.layer_norm(pixel_mean(x)), 10))


def patches(b: Layers, x: Tensor, out: int, size: int) -> Tensor:
    """A convolution of windows that do not overlap."""
    inner = x.shape[1]
    weight = b.normal(out, inner, size, size, scale=(inner * size * size) ** -0.5)
    return hx.conv(x, weight, b.normal(out, scale=0.1), strides=size)


# ---- transformers ----


def vit() -> Graph:
    b = Layers(7)
    width = 48
    x = hx.transpose(hx.reshape(patches(b, image(), width, 8), shape=(1, width, 16)), perm=(0, 2, 1))
    x = hx.concat(hx.const(b.normal(1, 1, width, scale=0.5)), x, axis=1) + b.normal(1, 17, width, scale=0.5)
    for _ in range(2):
        x = b.pre_norm_block(x, heads=3)
    return hx.graph(b.linear(b.layer_norm(x)[:, 0], 10))


def swin() -> Graph:
    """Attention in windows of 4 x 4 with a bias for each relative place, then in windows moved by 2, whose parts from
    opposite edges do not see each other; four neighbours are merged into one."""
    b = Layers(8)
    size, width, window = 8, 32, 4
    x = hx.transpose(patches(b, image(), width, 4), perm=(0, 2, 3, 1))
    for shift in (0, window // 2):
        y = roll(b.layer_norm(x), -shift)
        y = from_windows(b.attention(to_windows(y, window), 2, window_mask(b, 2, size, window, shift)), size, window)
        x = x + roll(y, shift)
        x = x + b.mlp(b.layer_norm(x))
    merged = hx.concat(x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2], axis=3)
    x = b.linear(b.layer_norm(merged), 2 * width, bias=False)
    return hx.graph(b.linear(hx.reduce_mean(b.layer_norm(x), axes=(1, 2), keep_dims=False), 10))


def roll(x: Tensor, by: int) -> Tensor:
    """x (1, height, width, channels) moved around by rows and columns."""
    if by:
        x = hx.concat(x[:, -by:], x[:, :-by], axis=1)
        x = hx.concat(x[:, :, -by:], x[:, :, :-by], axis=2)
    return x


def to_windows(x: Tensor, window: int) -> Tensor:
    _, size, _, width = x.shape
    across = size // window
    x = hx.reshape(x, shape=(across, window, across, window, width))
    return hx.reshape(hx.transpose(x, perm=(0, 2, 1, 3, 4)), shape=(across * across, window * window, width))


def from_windows(x: Tensor, size: int, window: int) -> Tensor:
    width, across = x.shape[-1], size // window
    x = hx.reshape(x, shape=(across, across, window, window, width))
    return hx.reshape(hx.transpose(x, perm=(0, 2, 1, 3, 4)), shape=(1, size, size, width))


def window_mask(b: Layers, heads: int, size: int, window: int, shift: int) -> Array:
    """What is added to the scores, (windows, heads, pixels, pixels)."""
    place = np.stack(np.meshgrid(np.arange(window), np.arange(window), indexing="ij")).reshape(2, -1)
    away = place[:, :, None] - place[:, None] + window - 1
    bias = b.normal(heads, 2 * window - 1, 2 * window - 1, scale=0.3)[:, away[0], away[1]]
    region = np.zeros(size, int)
    if shift:
        region[-window:], region[-shift:] = 1, 2
    regions = (region[:, None] * 3 + region).reshape(size // window, window, size // window, window)
    regions = regions.transpose(0, 2, 1, 3).reshape(-1, 1, window * window)
    apart = regions[..., None] != regions[..., None, :]
    return (bias - 100.0 * apart).astype(np.float32)


def bert() -> Graph:
    """Token ids, kinds of tokens and which of them count; the layers normalise behind each sum."""
    b = Layers(9)
    tokens, width = 12, 32
    ids, kinds = hx.input("ids", (1, tokens), "int32"), hx.input("kinds", (1, tokens), "int32")
    counts = hx.input("counts", (1, tokens))
    x = hx.gather(b.normal(100, width, scale=1), ids) + hx.gather(b.normal(2, width, scale=0.5), kinds)
    x = b.layer_norm(x + b.normal(1, tokens, width, scale=0.5))
    mask = hx.reshape((1.0 - counts) * -1e4, shape=(1, 1, 1, tokens))
    for _ in range(2):
        x = b.layer_norm(x + b.attention(x, 2, mask))
        x = b.layer_norm(x + b.mlp(x))
    return hx.graph({"hidden": x, "pooled": hx.tanh(b.linear(x[:, 0], width))})


def gpt2() -> Graph:
    """A causal mask, the GELU of tanh, and logits from the table of tokens."""
    b = Layers(10)
    tokens, width, vocab = 10, 32, 90
    table = b.normal(vocab, width, scale=width**-0.5)
    x = hx.gather(table, hx.input("ids", (1, tokens), "int32")) + b.normal(1, tokens, width, scale=0.5)
    mask = np.triu(np.full((tokens, tokens), -1e4, np.float32), 1)
    for _ in range(2):
        x = x + b.attention(b.layer_norm(x), 2, mask)
        x = x + b.mlp(b.layer_norm(x), gelu_tanh)
    return hx.graph(hx.linear(b.layer_norm(x), table))


def gelu_tanh(x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + hx.tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def whisper_encoder() -> Graph:
    """Two convolutions along time, of which the second halves it, and places as sines."""
    b = Layers(11)
    mels, frames, width = 20, 24, 32
    x = hx.gelu(b.conv(hx.input("mel", (1, mels, frames)), width, 3))
    x = hx.transpose(hx.gelu(b.conv(x, width, 3, 2)), perm=(0, 2, 1))
    angle = np.arange(frames // 2)[:, None] * 10000.0 ** (-np.arange(width // 2) / (width // 2 - 1))
    x = x + np.concatenate([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
    for _ in range(2):
        x = b.pre_norm_block(x, heads=2)
    return hx.graph(b.layer_norm(x))


ARCHITECTURES: dict[str, Callable[[], Graph]] = {
    "mobilenet_v3": mobilenet_v3,
    "efficientnet": efficientnet,
    "shufflenet_v2": shufflenet_v2,
    "squeezenet": squeezenet,
    "densenet": densenet,
    "convnext": convnext,
    "vit": vit,
    "swin": swin,
    "bert": bert,
    "gpt2": gpt2,
    "whisper_encoder": whisper_encoder,
}
