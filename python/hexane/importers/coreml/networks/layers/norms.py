"""Normalisation, scales, biases and reductions. In the layers on images, the channels are axis -3."""

from typing import Any

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.coreml.networks.registry import LayerContext, reads

SPATIAL = (-2, -1)
ALL = (-3, -2, -1)


@reads("batchnorm")
def batchnorm(n: LayerContext, p: Any, x: Value) -> Value:
    count, epsilon = int(p.channels), p.epsilon or 1e-5
    gamma, beta = (n.b.const(n.weight(getattr(p, f), count, what=f)) for f in ("gamma", "beta"))
    if p.computeMeanVar and p.instanceNormalization:
        return n.images(x, lambda v: n.b.instance_norm(v, gamma, beta, epsilon=epsilon))
    if p.computeMeanVar:
        axes = tuple(a for a in range(len(x.shape)) if a != len(x.shape) - 3)
        gains = (n.b.reshape(v, shape=(count, 1, 1)) for v in (gamma, beta))
        normal = _normalised(n, x, axes, epsilon)
        scale, offset = gains
        return n.b.add(n.b.mul(normal, scale), offset)
    mean, variance = (n.b.const(n.weight(getattr(p, f), count, what=f)) for f in ("mean", "variance"))
    return n.images(x, lambda v: n.b.batch_norm(v, mean, variance, gamma, beta, epsilon=epsilon))


def _normalised(n: LayerContext, x: Value, axes: tuple[int, ...], epsilon: float | None) -> Value:
    b = n.b
    centred = b.sub(x, b.reduce_mean(x, axes=axes, keep_dims=True))
    if epsilon is None:
        return centred
    variance = b.reduce_mean(b.square(centred), axes=axes, keep_dims=True)
    return b.real_div(centred, b.sqrt(b.add(variance, epsilon)))


@reads("mvn")
def mvn(n: LayerContext, p: Any, x: Value) -> Value:
    epsilon = (p.epsilon or 1e-6) if p.normalizeVariance else None
    return _normalised(n, x, ALL if p.acrossChannels else SPATIAL, epsilon)


@reads("l2normalize")
def l2_normalize(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.l2_norm(x, axes=ALL, epsilon=p.epsilon or 1e-6)


@reads("lrn")
def lrn(n: LayerContext, p: Any, x: Value) -> Value:
    attrs = {"size": int(p.localSize), "alpha": p.alpha, "beta": p.beta, "k": p.k or 1.0}
    if not attrs["size"]:
        raise Error("localSize: got 0, need a positive number")
    return n.images(x, lambda v: n.mil("local_response_norm", x=v, **attrs))


@reads("softmax")
def softmax(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.softmax(x, axis=-3)


@reads("softmaxND")
def softmax_nd(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.softmax(x, axis=p.axis)


@reads("layerNormalization")
def layer_norm(n: LayerContext, p: Any, x: Value) -> Value:
    shape = [int(d) for d in p.normalizedShape]
    if not shape or list(x.shape[-len(shape) :]) != shape:
        raise Error(f"normalizedShape: got {shape}, need the last axes of x {x.shape}")
    gamma, beta = (n.b.const(n.weight(getattr(p, f), *shape, what=f)) for f in ("gamma", "beta"))
    return n.b.layer_norm(x, gamma, beta, axes=tuple(range(-len(shape), 0)), epsilon=p.eps)


def _spread(n: LayerContext, weights: Any, shape: Any, what: str) -> Value:
    """Returns a constant that broadcasts over x, from weights of shape [1], [C], [1, H, W] or [C, H, W]."""
    extents = [int(d) for d in shape]
    array = n.weight(weights, *extents, what=what)
    return n.b.const(array.reshape(-1, 1, 1) if len(extents) == 1 else array)


@reads("scale")
def scale(n: LayerContext, p: Any, x: Value) -> Value:
    y = n.b.mul(x, _spread(n, p.scale, p.shapeScale, "scale"))
    return n.b.add(y, _spread(n, p.bias, p.shapeBias, "bias")) if p.hasBias else y


@reads("bias")
def bias(n: LayerContext, p: Any, x: Value) -> Value:
    return n.b.add(x, _spread(n, p.bias, p.shape, "bias"))


REDUCTIONS = (
    "reduce_sum", "reduce_mean", "reduce_prod", "", "reduce_sum_square", "reduce_l1_norm", "reduce_l2_norm",
    "reduce_max", "reduce_min", "reduce_argmax",
)  # fmt: skip
AXES = (ALL, SPATIAL, (-3,), (-2,), (-1,))


@reads("reduce")
def reduce(n: LayerContext, p: Any, x: Value) -> Value:
    if not 0 <= p.mode < len(REDUCTIONS) or not 0 <= p.axis < len(AXES):
        raise Error(f"got the mode {p.mode} over {p.axis}, need one of Core ML's")
    axes = AXES[p.axis]
    if p.mode == 3:  # log(x + epsilon) before the sum
        return n.b.reduce_sum(n.b.log(n.b.add(x, p.epsilon or 1e-6)), axes=axes, keep_dims=True)
    if p.mode == 9:
        if len(axes) > 1:
            raise Error("axis: got several for ARGMAX, need one")
        return n.b.cast(n.b.reduce_argmax(x, axis=axes[0], keep_dims=True), dtype="fp32")
    return n.b.apply(REDUCTIONS[p.mode], x, axes=axes, keep_dims=True)


ND = {
    "reduceL1": "reduce_l1_norm", "reduceL2": "reduce_l2_norm", "reduceMax": "reduce_max", "reduceMin": "reduce_min",
    "reduceSum": "reduce_sum", "reduceProd": "reduce_prod", "reduceMean": "reduce_mean",
    "reduceLogSum": "reduce_log_sum", "reduceSumSquare": "reduce_sum_square", "reduceLogSumExp": "reduce_log_sum_exp",
}  # fmt: skip


def _reduction(op: str) -> Any:
    def read(n: LayerContext, p: Any, x: Value) -> Value:
        axes = tuple(range(len(x.shape))) if p.reduceAll else tuple(map(int, p.axes))
        y = n.b.apply(op, x, axes=axes, keep_dims=p.keepDims)
        return y if y.shape else n.b.reshape(y, shape=(1,))  # Core ML has no tensors of rank 0

    return read


for _layer, _op in ND.items():
    reads(_layer)(_reduction(_op))


@reads("argMax", "argMin")
def argmax(n: LayerContext, p: Any, x: Value) -> Value:
    op = "reduce_argmax" if p.DESCRIPTOR.name == "ArgMax" else "reduce_argmin"
    keep = not p.removeDim or len(x.shape) == 1
    return n.b.cast(n.b.apply(op, x, axis=p.axis, keep_dims=keep), dtype="fp32")
