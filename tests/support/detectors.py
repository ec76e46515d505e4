"""Detectors as they are exported today, with narrow layers and random weights: backbone, pyramid, and heads whose boxes
are decoded in the network. And random graphs of the same parts."""

from collections.abc import Callable, Sequence

import numpy as np

import hexane as hx
from hexane.graph import Array, Graph

CLASSES = 20
BINS = 16  # of a side's distribution


class Parts:
    """What detectors are made of; weights are drawn in the order of the calls."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int) -> Array:
        """Scaled so that activations stay near 1."""
        return (self.rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def plain(self, x: hx.Tensor, out: int, size: int = 1, stride: int = 1, groups: int = 1) -> hx.Tensor:
        bias = self.rng.uniform(-0.5, 0.5, out).astype(np.float32)
        weight = self.weight(out, x.shape[1] // groups, size, size)
        return hx.conv(x, weight, bias, pad=size // 2, strides=stride, groups=groups)

    def conv(self, x: hx.Tensor, out: int, size: int = 1, stride: int = 1, groups: int = 1) -> hx.Tensor:
        return hx.silu(self.plain(x, out, size, stride, groups))

    def bottleneck(self, x: hx.Tensor) -> hx.Tensor:
        return x + self.conv(self.conv(x, x.shape[1], 3), x.shape[1], 3)

    def c3(self, x: hx.Tensor, out: int) -> hx.Tensor:
        """Of YOLOv5: two branches."""
        return self.conv(hx.concat([self.bottleneck(self.conv(x, out // 2)), self.conv(x, out // 2)], axis=1), out)

    def c2f(self, x: hx.Tensor, out: int, inner: Callable[[hx.Tensor], hx.Tensor] | None = None) -> hx.Tensor:
        """Of YOLOv8: halves of the channels, and what is made of the second one."""
        left, right = hx.split(self.conv(x, out), axis=1, num_splits=2)
        return self.conv(hx.concat([left, right, (inner or self.bottleneck)(right)], axis=1), out)

    def sppf(self, x: hx.Tensor, out: int) -> hx.Tensor:
        """Windows that grow."""
        found = [self.conv(x, out // 2)]
        for _ in range(3):
            found.append(hx.max_pool(found[-1], kernel_sizes=5, strides=1, pad=2))
        return self.conv(hx.concat(found, axis=1), out)

    def attention(self, x: hx.Tensor) -> hx.Tensor:
        """Between the pixels of an image, with the image itself added."""
        n, c, h, w = x.shape
        query, key, value = (hx.reshape(self.plain(x, c), shape=(n, c, h * w)) for _ in range(3))
        scores = hx.softmax(hx.transpose(query, perm=(0, 2, 1)) @ key * (1 / c**0.5), axis=-1)
        mixed = value @ hx.transpose(scores, perm=(0, 2, 1))
        return x + self.plain(hx.reshape(mixed, shape=x.shape), c)

    def partial_attention(self, x: hx.Tensor) -> hx.Tensor:
        """Of YOLOv10: of half of the channels."""
        left, right = hx.split(self.conv(x, x.shape[1]), axis=1, num_splits=2)
        right = self.attention(right)
        right = right + self.plain(self.conv(right, 2 * right.shape[1]), right.shape[1])
        return self.conv(hx.concat([left, right], axis=1), x.shape[1])

    def down(self, x: hx.Tensor, out: int) -> hx.Tensor:
        """Of YOLOv10: channels and pixels one after the other."""
        return self.plain(self.conv(x, out), out, 3, 2, groups=out)

    def pyramid(self, levels: Sequence[hx.Tensor], block: Callable[[hx.Tensor, int], hx.Tensor]) -> list[hx.Tensor]:
        """Down from the coarsest level, and up again."""
        tops = [levels[-1]]
        for finer in reversed(levels[:-1]):
            up = hx.upsample_nearest_neighbor(tops[0], scale_factor_height=2, scale_factor_width=2)
            tops.insert(0, block(hx.concat([up, finer], axis=1), finer.shape[1]))
        found = [tops[0]]
        for coarser in tops[1:]:
            down = self.conv(found[-1], coarser.shape[1], 3, 2)
            found.append(block(hx.concat([down, coarser], axis=1), coarser.shape[1]))
        return found

    def head(self, x: hx.Tensor, out: int) -> hx.Tensor:
        return self.plain(self.conv(x, x.shape[1], 3), out)

    def from_bins(self, levels: Sequence[hx.Tensor], size: int) -> hx.Tensor:
        """Boxes and scores (1, 4 + CLASSES, anchors) of YOLOv8: sides as means of distributions, around the anchors."""
        rows = [hx.concat([self.head(x, 4 * BINS), self.head(x, CLASSES)], axis=1) for x in levels]
        flat = hx.concat([hx.reshape(x, shape=(1, x.shape[1], -1)) for x in rows], axis=2)
        sides, scores = hx.split(flat, axis=1, split_sizes=(4 * BINS, CLASSES))
        anchors = sides.shape[2]
        shares = hx.softmax(hx.transpose(hx.reshape(sides, shape=(1, 4, BINS, anchors)), perm=(0, 2, 1, 3)), axis=1)
        bins = np.arange(BINS, dtype=np.float32).reshape(1, BINS, 1, 1)
        near, far = hx.split(hx.reshape(hx.conv(shares, bins), shape=(1, 4, anchors)), axis=1, num_splits=2)
        centres, strides = _anchors(levels, size)
        first, last = centres - near, centres + far
        boxes = hx.concat([(first + last) * 0.5, last - first], axis=1) * strides
        return hx.concat([boxes, hx.sigmoid(scores)], axis=1)

    def from_priors(self, levels: Sequence[hx.Tensor], size: int) -> hx.Tensor:
        """Boxes and scores (1, anchors, 5 + CLASSES) of YOLOv5: for three priors at each pixel."""
        found = []
        for x in levels:
            h, w = x.shape[2:]
            raw = hx.reshape(self.plain(x, 3 * (5 + CLASSES)), shape=(1, 3, 5 + CLASSES, h, w))
            y = hx.sigmoid(hx.transpose(raw, perm=(0, 1, 3, 4, 2)))
            grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), -1).astype(np.float32) - np.float32(0.5)
            priors = self.rng.uniform(8, size, (1, 3, 1, 1, 2)).astype(np.float32)
            xy = (y[..., :2] * 2 + grid.reshape(1, 1, h, w, 2)) * (size / h)
            wh = (y[..., 2:4] * 2) * (y[..., 2:4] * 2) * priors
            found.append(hx.reshape(hx.concat([xy, wh, y[..., 4:]], axis=4), shape=(1, -1, 5 + CLASSES)))
        return hx.concat(found, axis=1)

    def best(self, found: hx.Tensor, count: int) -> hx.Tensor:
        """The boxes with the highest scores (1, count, 6) of YOLOv10: no suppression behind it."""
        boxes, scores = hx.split(hx.transpose(found, perm=(0, 2, 1)), axis=2, split_sizes=(4, CLASSES))
        _, rows = hx.topk(hx.reduce_max(scores, axes=(2,), keep_dims=False), axis=1, k=count)
        rows = hx.reshape(rows, shape=(1, count, 1))
        boxes = hx.gather_along_axis(boxes, hx.broadcast_to(rows, shape=(1, count, 4)), axis=1)
        scores = hx.gather_along_axis(scores, hx.broadcast_to(rows, shape=(1, count, CLASSES)), axis=1)
        top, flat = hx.topk(hx.reshape(scores, shape=(1, -1)), axis=1, k=count)
        rows = hx.broadcast_to(hx.reshape(flat // CLASSES, shape=(1, count, 1)), shape=(1, count, 4))
        columns = [hx.reshape(x, shape=(1, count, 1)) for x in (top, hx.cast(flat % CLASSES, dtype="fp32"))]
        return hx.concat([hx.gather_along_axis(boxes, rows, axis=1), *columns], axis=2)

    def decoder(self, levels: Sequence[hx.Tensor], width: int, count: int) -> hx.Tensor:
        """Boxes and scores (1, count, 4 + CLASSES) of RT-DETR: the best pixels ask, and read the levels around their
        boxes."""
        flat = hx.concat([hx.reshape(x, shape=(1, width, -1)) for x in levels], axis=2)
        memory = hx.layer_norm(hx.linear(hx.transpose(flat, perm=(0, 2, 1)), self.weight(width, width)), axes=(2,))
        scores = hx.reduce_max(hx.linear(memory, self.weight(CLASSES, width)), axes=(2,), keep_dims=False)
        _, rows = hx.topk(scores, axis=1, k=count)
        rows = hx.broadcast_to(hx.reshape(rows, shape=(1, count, 1)), shape=(1, count, width))
        query = hx.gather_along_axis(memory, rows, axis=1)
        boxes = hx.sigmoid(hx.linear(query, self.weight(4, width)))
        weights = hx.softmax(query @ hx.transpose(query, perm=(0, 2, 1)) * (1 / width**0.5), axis=-1)
        query = hx.layer_norm(query + weights @ query, axes=(2,))
        read = []
        for x in levels:
            offsets = hx.tanh(hx.linear(query, self.weight(2, width)))
            grid = hx.reshape((boxes[:, :, :2] * 2 - 1) + offsets * boxes[:, :, 2:] * 0.5, shape=(1, count, 1, 2))
            seen = hx.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)
            read.append(hx.transpose(hx.reshape(seen, shape=(1, width, count)), perm=(0, 2, 1)))
        query = hx.layer_norm(query + hx.linear(hx.concat(read, axis=2), self.weight(width, 3 * width)), axes=(2,))
        return hx.concat([boxes, hx.sigmoid(hx.linear(query, self.weight(CLASSES, width)))], axis=2)


def _anchors(levels: Sequence[hx.Tensor], size: int) -> tuple[Array, Array]:
    """The centres of all pixels (1, 2, anchors) in pixels of their level, and their strides (1, 1, anchors)."""
    centres, strides = [], []
    for x in levels:
        h, w = x.shape[2:]
        grid = np.stack(np.meshgrid(np.arange(w), np.arange(h)), 0).reshape(2, -1) + 0.5
        centres.append(grid)
        strides.append(np.full((1, h * w), size / h))
    return tuple(np.concatenate(parts, 1).astype(np.float32)[None] for parts in (centres, strides))


def _levels(
    p: Parts, size: int, block: Callable[[hx.Tensor, int], hx.Tensor], down: Callable[[hx.Tensor, int], hx.Tensor]
) -> list[hx.Tensor]:
    """Images at strides of 8, 16 and 32."""
    x = p.conv(hx.input("images", (1, 3, size, size)) * (1 / 255), 4, 3, 2)
    found = []
    for width in (8, 8, 12, 16):
        x = block(down(x, width), width)
        found.append(x)
    return found[1:]


def yolov5(size: int) -> Graph:
    p = Parts(5)
    *fine, coarse = _levels(p, size, p.c3, lambda x, out: p.conv(x, out, 3, 2))
    return hx.graph({"output0": p.from_priors(p.pyramid([*fine, p.sppf(coarse, 16)], p.c3), size)})


def yolov8(size: int) -> Graph:
    p = Parts(8)
    *fine, coarse = _levels(p, size, p.c2f, lambda x, out: p.conv(x, out, 3, 2))
    return hx.graph({"output0": p.from_bins(p.pyramid([*fine, p.sppf(coarse, 16)], p.c2f), size)})


def yolov10(size: int) -> Graph:
    p = Parts(10)
    *fine, coarse = _levels(p, size, p.c2f, p.down)
    coarse = p.partial_attention(p.sppf(coarse, 16))
    return hx.graph({"output0": p.best(p.from_bins(p.pyramid([*fine, coarse], p.c2f), size), 20)})


def rt_detr(size: int) -> Graph:
    p = Parts(11)
    levels = [p.plain(x, 8) for x in _levels(p, size, p.c3, lambda x, out: p.conv(x, out, 3, 2))]
    levels[-1] = p.attention(levels[-1])
    return hx.graph({"output0": p.decoder(p.pyramid(levels, p.c3), 8, 20)})


DETECTORS: dict[str, Callable[[int], Graph]] = {
    "yolov5": yolov5, "yolov8": yolov8, "yolov10": yolov10, "rt_detr": rt_detr,
}  # fmt: skip


def random_detector(seed: int) -> Graph:
    """A few parts of detectors on images of a few sizes, one after the other, and heads that join several scales."""
    p = Parts(seed)

    def pick(*choices: int) -> int:
        return int(p.rng.choice(choices))

    def blocks(x: hx.Tensor, out: int) -> hx.Tensor:
        def slices(x: hx.Tensor) -> hx.Tensor:
            at = pick(*range(1, x.shape[1]))
            return hx.concat([p.conv(x[:, at:], out), x[:, :at]], axis=1)

        def halves(x: hx.Tensor) -> hx.Tensor:
            return hx.concat([x[:, :, i::2, j::2] for i in (0, 1) for j in (0, 1)], axis=1)

        def larger(x: hx.Tensor) -> hx.Tensor:
            up = hx.upsample_nearest_neighbor if pick(0, 1) else hx.upsample_bilinear
            return up(p.conv(x, out), scale_factor_height=2, scale_factor_width=2)

        even = all(n % 2 == 0 for n in x.shape[2:])
        ways = [p.c3, p.c2f, p.sppf, lambda x, _: slices(x), lambda x, _: p.conv(x, out, pick(1, 3, 5), pick(1, 2))]
        if even and x.shape[2] >= 8:
            ways.append(lambda x, _: halves(x))
        if max(x.shape[2:]) <= 32:
            ways.append(lambda x, _: larger(x))
        if x.shape[2] * x.shape[3] <= 256:
            ways.append(lambda x, _: p.attention(x))
        return ways[pick(*range(len(ways)))](x, out)

    x = hx.input("images", (1, 3, pick(16, 24, 40, 64), pick(8, 16, 24, 64)))
    levels = []
    for _ in range(pick(1, 2, 3, 4)):
        x = blocks(x, pick(4, 6, 8))
        levels.append(x)
    kind = pick(0, 1, 2, 3)
    if kind == 0:
        return hx.graph({f"level{i}": p.head(x, pick(1, 4, 7)) for i, x in enumerate(levels)})
    if kind == 1:
        return hx.graph({"output0": p.from_bins(levels, x.shape[2])})
    if kind == 2:
        return hx.graph({"output0": p.from_priors(levels, 64)})
    found = p.from_bins(levels, x.shape[2])
    return hx.graph({"output0": p.best(found, min(20, found.shape[2]))})
