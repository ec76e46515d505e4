"""Matrix products and what is made of them."""

import hexane as hx
from random_graphs.convolution import per_channel
from random_graphs.graph import DIMS, RandomGraph, Unfit, broadcasts


def matmul(g: RandomGraph) -> None:
    x = g.of_rank(2, 5)
    tx, ty = g.coin(0.2), g.coin(0.3)
    k = x.shape[-2 if tx else -1]
    if g.coin(0.4):
        y = g.tensor(lambda t: 2 <= len(t.shape) <= 5 and t.shape[-1 if ty else -2] == k)
    else:
        n = g.pick(DIMS)
        batch = tuple(d if g.coin() else 1 for d in x.shape[:-2]) if g.coin(0.3) else ()
        y = g.weight((*batch, n, k) if ty else (*batch, k, n))
    if g.coin(0.3):  # an attention-like transpose before it
        y = hx.transpose(y, perm=(*range(len(y.shape) - 2), len(y.shape) - 1, len(y.shape) - 2))
        ty = not ty
    bias = g.weight((y.shape[-2] if ty else y.shape[-1],)) if g.coin(0.3) else None
    result = hx.matmul(x, y, bias, transpose_x=tx, transpose_y=ty)
    while g.coin(0.3):
        result = per_channel(g, result, len(result.shape) - 1)
    g.keep(result)


def linear(g: RandomGraph) -> None:
    x = g.of_rank(1, 4)
    out = g.pick((1, 3, 7, 16, 33))
    weight = g.weight((out, x.shape[-1]))
    y = hx.linear(x, weight, g.weight((out,)) if g.coin() else None)
    if g.coin(0.5):
        y = g.pick((hx.relu,) if g.exact else (hx.relu, hx.gelu, hx.tanh, hx.silu))(y)
    g.keep(y)


def attention(g: RandomGraph) -> None:
    if g.exact:
        raise Unfit
    q = g.of_rank(2, 4)
    k = g.tensor(
        lambda t: len(t.shape) == len(q.shape) and t.shape[-1] == q.shape[-1] and broadcasts(t.shape[:-2], q.shape[:-2])
    )
    v = k if g.coin() else g.weight((*k.shape[:-1], 5))
    mask = g.weight((q.shape[-2], k.shape[-2])) if g.coin(0.3) else None
    if 0 in q.shape:
        raise Unfit
    g.keep(hx.scaled_dot_product_attention(q, k, v, mask, causal=g.coin(0.3)))


def rotary(g: RandomGraph) -> None:
    x = g.tensor(lambda t: len(t.shape) >= 2 and t.shape[-1] % 2 == 0)
    shape = (x.shape[-2], x.shape[-1] // 2)
    g.keep(hx.rotary_embedding(x, g.weight(shape), g.weight(shape), interleaved=g.coin()))


STEPS = (matmul, matmul, linear, attention, rotary)
