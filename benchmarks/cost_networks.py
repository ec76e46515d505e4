"""Estimates of whole networks next to their published latencies, for docs/cost.md: `python benchmarks/cost_networks.py`.

The networks have their published shapes. All weights of a layer are one number, because a latency does not depend on
them. Gaps in a source (the length of MiniLM's input) are filled here, and listed in docs/cost.md.
"""

import warnings
from collections.abc import Callable
from itertools import count

import numpy as np

import hexane as hx
from hexane.graph import Graph

NUMBERS = count(1)  # seeds of weights: no two layers share weights


def weights(*shape: int) -> np.ndarray:
    return np.full(shape, next(NUMBERS) / 4096, np.float16)


def conv(x: hx.Tensor, channels: int, kernel: int, stride: int = 1) -> hx.Tensor:
    weight = weights(channels, x.shape[1], kernel, kernel)
    return hx.conv(x, weight, weights(channels), strides=(stride, stride), pad=kernel // 2)


def resnet(blocks: tuple[int, ...], bottleneck: bool) -> Graph:
    x = hx.relu(conv(hx.input("image", (1, 3, 224, 224), "fp16"), 64, 7, 2))
    x = hx.max_pool(x, kernel_sizes=(3, 3), strides=(2, 2), pad=1)
    for stage, number in enumerate(blocks):
        width = 64 << stage
        for block in range(number):
            stride = 2 if stage and not block else 1
            out = width * 4 if bottleneck else width
            if bottleneck:
                y = conv(hx.relu(conv(hx.relu(conv(x, width, 1)), width, 3, stride)), out, 1)
            else:
                y = conv(hx.relu(conv(x, width, 3, stride)), width, 3)
            x = hx.relu(hx.add(y, x if x.shape == y.shape else conv(x, out, 1, stride)))
    x = hx.reshape(hx.reduce_mean(x, axes=(2, 3), keep_dims=True), shape=(1, x.shape[1]))
    return hx.graph(hx.matmul(x, weights(x.shape[1], 1000)))


def linear(x: hx.Tensor, width: int) -> hx.Tensor:
    return hx.add(hx.matmul(x, weights(x.shape[-1], width)), weights(width))


def norm(x: hx.Tensor) -> hx.Tensor:
    return hx.layer_norm(x, weights(x.shape[-1]), weights(x.shape[-1]), axes=(-1,), epsilon=1e-5)


def encode(x: hx.Tensor, layers: int, heads: int) -> hx.Tensor:
    """Transformer layers on x (1, length, width), with a hidden width of 4 x width."""
    _, length, width = x.shape
    for _ in range(layers):
        y = norm(x)
        q, k, v = (
            hx.transpose(hx.reshape(linear(y, width), shape=(1, length, heads, width // heads)), perm=(0, 2, 1, 3))
            for _ in "qkv"
        )
        scores = hx.mul(hx.matmul(q, k, transpose_y=True), np.float16((width // heads) ** -0.5))
        mixed = hx.transpose(hx.matmul(hx.softmax(scores, axis=-1), v), perm=(0, 2, 1, 3))
        x = hx.add(x, linear(hx.reshape(mixed, shape=(1, length, width)), width))
        x = hx.add(x, linear(hx.gelu(linear(norm(x), 4 * width)), width))
    return norm(x)


def transformer(length: int, width: int, layers: int, heads: int, given: int = 0) -> Graph:
    """given: the width of the input, if a product first projects it to `width`."""
    x = hx.input("x", (1, length, given or width), "fp16")
    return hx.graph(encode(linear(x, width) if given else x, layers, heads))


def whisper(width: int, layers: int, heads: int) -> Graph:
    x = hx.input("mel", (1, 80, 1, 3000), "fp16")
    x = hx.gelu(hx.conv(x, weights(width, 80, 1, 3), pad=(0, 1)))
    x = hx.gelu(hx.conv(x, weights(width, width, 1, 3), strides=(1, 2), pad=(0, 1)))
    x = hx.transpose(hx.reshape(x, shape=(1, width, 1500)), perm=(0, 2, 1))
    return hx.graph(encode(x, layers, heads))


def chain(depth: int, extent: int) -> Graph:
    x = hx.input("x", (1, 512, extent, extent), "fp16")
    for _ in range(depth):
        x = hx.conv(x, weights(512, 512, 1, 1))
    return hx.graph(x)


# Milliseconds by chip. For a chain of convolutions a rate is published: its time is operations / rate.
NETWORKS: dict[str, tuple[Callable[[], Graph], dict[str, float]]] = {
    "ResNet-18": (lambda: resnet((2, 2, 2, 2), bottleneck=False), {"M5 Pro": 0.33, "M2 Pro": 1.06}),
    "ResNet-50": (lambda: resnet((3, 4, 6, 3), bottleneck=True), {"M5 Pro": 0.773}),
    "MiniLM-L6": (lambda: transformer(128, 384, 6, 12), {"M5 Pro": 0.53, "M2 Pro": 1.75}),
    "ViT-B/16": (lambda: transformer(197, 768, 12, 12, given=768), {"M5 Pro": 18.3, "M2 Pro": 21.3}),
    "Whisper tiny, encoder": (lambda: whisper(384, 4, 6), {"M5 Pro": 5.7}),
    "Whisper base, encoder": (lambda: whisper(512, 6, 8), {"M5 Pro": 12.2}),
    "Whisper small, encoder": (lambda: whisper(768, 12, 12), {"M5 Pro": 40.3}),
    "128 convolutions 1x1, 512 channels, 8x8": (
        lambda: chain(128, 8),
        {chip: 2 * 512**2 * 64 * 128 / rate / 1e9 for chip, rate in (("M3 Pro", 9.98), ("M4 Pro", 12.57), ("M4 Max", 10.93), ("M5", 12.3))},
    ),
}  # fmt: skip

BENCHMARKS = ("128 convolutions 1x1, 512 channels, 8x8",)  # a made-up network


def main() -> None:
    warnings.simplefilter("ignore")
    print(f"{'network':<42}{'chip':<8}{'published ms':>13}{'estimate':>10}{'p10..p90':>16}{'factor':>8}  mostly")
    for name, (build, published) in NETWORKS.items():
        graph = build()
        for chip, known in published.items():
            found = hx.estimate(graph, chip)
            ms, low, high = (us / 1000 for us in (found.latency_us, found.p10_us, found.p90_us))
            held = " " if low <= known <= high else "!"
            print(
                f"{name:<42}{chip:<8}{known:>13.3f}{ms:>10.3f}{f'{low:.2f}..{high:.2f}{held}':>16}"
                f"{known / ms:>8.2f}  {found.dominant}, {found.kind}, {found.submissions} calls"
            )


if __name__ == "__main__":
    main()
