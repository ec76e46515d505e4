"""Random graphs of the ops that small devices run, on one image, in both layouts: for plans of the C99 runtime."""

import numpy as np

import hexane as hx
from hexane.build import FUNCTIONS
from hexane.emit.plan_view import supported
from hexane.graph import Array, Graph
from hexane.ops import OPS
from random_graphs import convolution, movement, products, quantized
from random_graphs.choices import Seeded
from random_graphs.elementwise import within
from random_graphs.graph import RandomGraph, Unfit, broadcasts

KINDS = ("fp32", "quantized")
ACTIVATIONS = tuple(name for name in supported()[1] if name in FUNCTIONS and len(OPS[name].inputs) == 1)
REDUCTIONS = ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min")


def unary(g: RandomGraph) -> None:
    name = g.pick(ACTIVATIONS)
    x = within(g, g.tensor(), OPS[name].cases[0])
    g.keep(FUNCTIONS[name](x, **({"alpha": -1.0, "beta": 2.0} if name == "clip" else {})))


def binary(g: RandomGraph) -> None:
    x = g.tensor()
    y = g.tensor(lambda t: broadcasts(t.shape, x.shape))
    g.keep(g.pick((hx.add, hx.add, hx.sub, hx.mul, hx.maximum, hx.minimum))(x, y))


def norm(g: RandomGraph) -> None:
    x = g.of_rank(2, 4)
    axes = tuple(range(-g.integer(1, len(x.shape)), 0))
    gamma = g.weight(x.shape[axes[0] :]) if g.coin() else None
    if g.coin():
        g.keep(hx.rms_norm(x, gamma, axes=axes))
    else:
        g.keep(hx.layer_norm(x, gamma, None, axes=axes))


def reduce(g: RandomGraph) -> None:
    x = g.of_rank(2, 4)
    axes = [i for i in range(1, len(x.shape)) if g.coin()] or [1]
    g.keep(FUNCTIONS[g.pick(REDUCTIONS)](x, axes=axes, keep_dims=g.coin(0.8)))


def softmax(g: RandomGraph) -> None:
    x = g.of_rank(2, 4)
    g.keep(hx.softmax(x, axis=g.integer(1, len(x.shape))))


def layout(g: RandomGraph) -> None:
    """Channels last, or first again."""
    x = g.of_rank(4, 4)
    g.keep(hx.transpose(x, perm=g.pick(((0, 2, 3, 1), (0, 3, 1, 2)))))


def last(g: RandomGraph) -> None:
    """A convolution with channels last."""
    x = g.of_rank(4, 4)
    if x.shape[-1] > 32:
        raise Unfit
    weight = g.weight((g.pick((3, 4, 8)), x.shape[-1], 3, 3))
    g.keep(hx.conv(x, weight, pad=1, layout="nhwc"))


OWN = (unary, unary, binary, norm, reduce, softmax, layout, last)
MOVES = (movement.concat, movement.transpose, movement.crop, movement.reshape, movement.pad, movement.split)
IMAGES = (convolution.conv, convolution.conv, convolution.pool_op, convolution.conv_transpose)
STEPS = (*OWN, *OWN, *MOVES, *IMAGES, products.linear, products.matmul)


def device_graph(seed: int, kind: str, steps: int = 5) -> tuple[Graph, dict[str, Array]]:
    """A graph and its inputs: the same for the same arguments."""
    g = RandomGraph(Seeded(seed, KINDS.index(kind), 99), kind, steps=steps, limit=1 << 14)
    g.input((1, g.pick((3, 8, 16)), g.pick((8, 12, 16)), g.pick((8, 16, 24))))
    g.take_steps((*STEPS, *3 * quantized.STEPS) if kind == "quantized" else STEPS)
    return g.finish()


def mambaout(size: int = 32, widths: tuple[int, ...] = (6, 12), blocks: int = 2) -> tuple[Graph, dict[str, Array]]:
    """A network of gated convolutions with channels last, and an image."""
    rng = np.random.default_rng(3)

    def weight(*shape: int) -> Array:
        return (rng.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)

    def gated(x: hx.Tensor, width: int) -> hx.Tensor:
        inner = 8 * width // 3
        both = hx.linear(hx.layer_norm(x, weight(width), weight(width), axes=(3,)), weight(2 * inner, width))
        gate, kept, mixed = hx.split(both, axis=3, split_sizes=(inner, inner - width, width))
        mixed = hx.conv(mixed, weight(width, 1, 7, 7), weight(width), pad=3, groups=width, layout="nhwc")
        return hx.add(hx.linear(hx.mul(hx.gelu(gate), hx.concat([kept, mixed], axis=3)), weight(width, inner)), x)

    y = hx.input("image", (1, size, size, 3))
    for width in widths:
        y = hx.conv(y, weight(width, y.shape[3], 3, 3), pad=1, strides=(2, 2), layout="nhwc")
        for _ in range(blocks):
            y = gated(y, width)
    graph = hx.graph(hx.linear(hx.reduce_mean(y, axes=(1, 2)), weight(10, widths[-1])))
    return graph, {"image": rng.standard_normal((1, size, size, 3)).astype(np.float32)}
