"""Random chains of what models write out in several ops, and of what passes move past or fold into its neighbours:
norms, GELU, SiLU, attention, pads, batch norms, transposes and reshapes."""

import math
from collections.abc import Callable

import numpy as np

import hexane as hx
from hexane.graph import Graph

EXTENTS = (1, 1, 2, 3, 4, 5, 8, 16, 17, 33)
LARGE = (1000, 4096, 16384, 16385, 20000)
MOST = 1 << 19  # elements of a tensor

Tensor = hx.Tensor


class WrittenOut:
    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.inputs = 0

    def pick(self, values: tuple[int, ...]) -> int:
        return values[int(self.rng.integers(len(values)))]

    def coin(self) -> bool:
        return bool(self.rng.integers(2))

    def numbers(self, *shape: int) -> Tensor:
        return hx.const((self.rng.standard_normal(shape) / 4).astype(np.float32))

    def input(self, *shape: int) -> Tensor:
        self.inputs += 1
        return hx.input(f"x{self.inputs}", shape)

    def shape(self) -> tuple[int, ...]:
        """Of 1 to 5 axes, one of them large now and then."""
        rank = self.pick((1, 2, 3, 3, 4, 4, 4, 5))
        shape = [self.pick(EXTENTS) for _ in range(rank)]
        if rank < 5 and self.pick((0, 0, 0, 1)):
            shape = [self.pick((1, 2, 3)) for _ in shape]
            shape[int(self.rng.integers(rank))] = self.pick(LARGE)
        return tuple(shape)

    def graph(self) -> Graph:
        x = hx.relu(self.input(*self.shape()))
        outputs = []
        for _ in range(int(self.rng.integers(1, 6))):
            form = FORMS[int(self.rng.integers(len(FORMS)))]
            try:
                y = form(self, x)
            except (hx.Error, ValueError, IndexError):  # the shape is none for it
                continue
            if math.prod(y.shape) <= MOST:
                outputs += [x] * int(self.rng.integers(5) == 0)
                x = y
        return hx.graph({f"y{i}": y for i, y in enumerate([x, *outputs])})


def gelu(g: WrittenOut, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + hx.erf(x / math.sqrt(2)))


def gelu_tanh(g: WrittenOut, x: Tensor) -> Tensor:
    return 0.5 * x * (1.0 + hx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))


def silu(g: WrittenOut, x: Tensor) -> Tensor:
    return x * hx.sigmoid(x)


def norm(g: WrittenOut, x: Tensor) -> Tensor:
    """Of the mean as well, or of the squares only, over some of the last axes."""
    axes = tuple(range(int(g.rng.integers(len(x.shape))), len(x.shape)))
    shape = tuple(x.shape[a] for a in axes)
    if g.coin():
        x = x - hx.reduce_mean(x, axes=axes, keep_dims=True)
    y = x / hx.sqrt(hx.reduce_mean(x * x, axes=axes, keep_dims=True) + 1e-3)
    y = y * g.numbers(*shape) if g.coin() else y
    return y + g.numbers(*shape) if g.coin() else y


def limits(g: WrittenOut, x: Tensor) -> Tensor:
    x = hx.clip(x, alpha=-1.0, beta=4.0) if g.coin() else x
    return hx.clip(x, alpha=0.0, beta=6.0 if g.coin() else math.inf)


def attention(g: WrittenOut, x: Tensor) -> Tensor:
    *lead, rows, columns = x.shape
    keys = g.input(*lead, rows if g.coin() else g.pick(EXTENTS), columns)
    values = keys if g.coin() else g.input(*keys.shape)
    rank = len(x.shape)
    if math.prod(lead) * rows * keys.shape[-2] > MOST:
        raise ValueError("too large")
    scores = x @ hx.transpose(keys, perm=(*range(rank - 2), rank - 1, rank - 2)) * 0.25
    mask = int(g.rng.integers(4))
    if mask == 0:
        scores = scores + g.numbers(*scores.shape[-2:])
    elif mask == 1:
        scores = scores + g.input(*scores.shape)
    elif mask == 2:
        scores = hx.select(hx.const(g.rng.random(scores.shape[-2:]) > 0.3), scores, hx.const(np.float32(-1e4)))
    return hx.softmax(scores) @ values


def padded(g: WrittenOut, x: Tensor) -> Tensor:
    """A pad in front of a convolution or pool, a batch norm behind."""
    images = range(2, len(x.shape))
    sides = ([g.pick((0, 1, 2, 9)) if i in images else 0 for i in range(len(x.shape))] for _ in range(2))
    y = hx.pad(x, begin=next(sides), end=next(sides))
    if g.coin():
        return hx.avg_pool(y, kernel_sizes=3, strides=g.pick((1, 2, 5)))
    kernel, out = [g.pick((1, 2, 3, 5, 7, 13, 17)) for _ in images], g.pick((1, 4, 8))
    y = hx.conv(y, g.numbers(out, x.shape[1], *kernel), strides=g.pick((1, 2, 4, 5, 8)))
    return hx.batch_norm(y, g.numbers(out), hx.abs(g.numbers(out)), None, None) if g.coin() else y


def transposed(g: WrittenOut, x: Tensor) -> Tensor:
    return hx.transpose(x, perm=tuple(g.rng.permutation(len(x.shape)).tolist()))


def reshaped(g: WrittenOut, x: Tensor) -> Tensor:
    size, shape = math.prod(x.shape), []
    for _ in range(int(g.rng.integers(5))):
        factor = g.pick(tuple(d for d in EXTENTS if size % d == 0))
        shape.append(factor)
        size //= factor
    return hx.reshape(x, shape=tuple(g.rng.permutation([*shape, size]).tolist()))


def rotated(g: WrittenOut, x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    first, second = hx.split(x, num_splits=2, axis=-1)
    turned = hx.concat(-second, first, axis=-1)
    return x * g.numbers(x.shape[-2], 2 * half) + turned * g.numbers(x.shape[-2], 2 * half)


def scaled(g: WrittenOut, x: Tensor) -> Tensor:
    other = g.numbers(*[d if g.coin() else 1 for d in x.shape])
    return x * other if g.coin() else x + other


def product(g: WrittenOut, x: Tensor) -> Tensor:
    return x @ g.numbers(x.shape[-1], g.pick((1, 4, 16)))


def joined(g: WrittenOut, x: Tensor) -> Tensor:
    return hx.concat(x, hx.tanh(x), axis=int(g.rng.integers(len(x.shape))))


def quantised(g: WrittenOut, x: Tensor) -> Tensor:
    scale, zero = hx.const(np.float32(0.05)), hx.const(np.int8(0))
    return hx.dequantize(hx.quantize(x, scale, zero), scale, zero)


FORMS: tuple[Callable[[WrittenOut, Tensor], Tensor], ...] = (
    gelu, gelu_tanh, silu, norm, norm, limits, attention, attention, padded, padded, transposed, transposed, reshaped, reshaped,
    rotated, scaled, product, joined, quantised,
)  # fmt: skip
