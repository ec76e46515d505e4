"""Normalisation over batches, layers, groups and channels."""

from hexane.dtypes import DTYPES
from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import onnx_op
from hexane.importers.onnx.tensors import element_type
from hexane.ops.compose import cast
from hexane.ops.shape_rules import broadcast


@onnx_op("BatchNormalization", ignores=("momentum",))
def batch_normalization(b: Builder, n: OnnxNode) -> Result:
    x, gamma, beta, mean, variance = (n.value(i) for i in range(5))
    if not n.attrs.get("spatial", 1):
        raise Error("spatial: got 0, need statistics per channel")
    if n.attrs.get("training_mode", 0):
        return _batch_statistics(b, n)
    if any(n.wants(i) for i in range(1, 5)):
        raise Error("got training mode, need inference")
    wide = max((v.dtype for v in (x, gamma, mean)), key=lambda d: d.bits)
    operands = [cast(b, v, wide) for v in (x, mean, variance, gamma, beta)]
    return cast(b, b.batch_norm(*operands, epsilon=n.attrs["epsilon"]), x.dtype)


def _batch_statistics(b: Builder, n: OnnxNode) -> Result:
    """Normalises in training mode, by the mean and variance of the batch, and updates the running statistics."""
    x, gamma, beta, mean, variance = (n.value(i) for i in range(5))
    if len({v.dtype for v in (x, gamma, beta, mean, variance)}) != 1 or len(x.shape) < 2:
        raise Error("got training mode with several dtypes or without channels, need one dtype")
    axes = tuple(i for i in range(len(x.shape)) if i != 1)
    own = b.reduce_mean(x, axes=axes, keep_dims=False)
    spread = b.sub(x, b.reshape(own, shape=(-1, *[1] * (len(x.shape) - 2))))
    own_variance = b.reduce_mean(b.square(spread), axes=axes, keep_dims=False)
    momentum = n.attrs["momentum"]
    running = [b.add(b.mul(old, momentum), b.mul(new, 1 - momentum))
               for old, new in ((mean, own), (variance, own_variance))]  # fmt: skip
    return [b.batch_norm(x, own, own_variance, gamma, beta, epsilon=n.attrs["epsilon"]), *running]


@onnx_op("InstanceNormalization")
def instance_normalization(b: Builder, n: OnnxNode) -> Result:
    return b.instance_norm(n.value(0), n.value(1), n.value(2), epsilon=n.attrs["epsilon"])


@onnx_op("LayerNormalization")
def layer_normalization(b: Builder, n: OnnxNode) -> Result:
    """Normalises over the last axes. Scale and shift may broadcast. The optional mean and inverse deviation have the
    dtype that stash_type names, or fp32."""
    x, gamma, beta = n.value(0), n.value(1), n.optional(2)
    axes = tuple(range(axis_of(n.attrs["axis"], len(x.shape)), len(x.shape)))
    normal = tuple(x.shape[a] for a in axes)
    epsilon = n.attrs["epsilon"]
    if gamma.shape == normal and (beta is None or beta.shape == normal):
        out = b.layer_norm(x, gamma, beta, axes=axes, epsilon=epsilon)
    else:
        out = b.mul(b.layer_norm(x, axes=axes, epsilon=epsilon), _onto(gamma, x))
        out = out if beta is None else b.add(out, _onto(beta, x))
    if not n.wants(1) and not n.wants(2):
        return [out]
    stash = element_type(n.attrs["stash_type"])
    wide = cast(b, x, DTYPES["fp32"]) if x.dtype.bits < 32 else x
    mean = b.reduce_mean(wide, axes=axes)
    variance = b.reduce_mean(b.square(b.sub(wide, mean)), axes=axes)
    deviation = b.rsqrt(b.add(variance, epsilon))
    return [out, cast(b, mean, stash), cast(b, deviation, stash)]


@onnx_op("RMSNormalization", ignores=("stash_type",))
def rms_normalization(b: Builder, n: OnnxNode) -> Result:
    x, gamma = n.value(0), n.value(1)
    axes = tuple(range(axis_of(n.attrs["axis"], len(x.shape)), len(x.shape)))
    if gamma.shape == tuple(x.shape[a] for a in axes):
        return b.rms_norm(x, gamma, axes=axes, epsilon=n.attrs["epsilon"])
    return b.mul(b.rms_norm(x, axes=axes, epsilon=n.attrs["epsilon"]), _onto(gamma, x))


@onnx_op("GroupNormalization", ignores=("stash_type",))
def group_normalization(b: Builder, n: OnnxNode) -> Result:
    """Normalises groups of channels. Before opset 21 scale and bias have one number per group, later one per
    channel."""
    x, groups = n.value(0), n.attrs["num_groups"]
    scale, bias = (_spread(b, n.value(i), x, groups) if n.version < 21 else n.value(i) for i in (1, 2))
    return b.group_norm(x, scale, bias, num_groups=groups, epsilon=n.attrs["epsilon"])


def _spread(b: Builder, v: Value, x: Value, groups: int) -> Value:
    """Repeats one number per group to one per channel."""
    if groups < 1 or v.shape != (groups,) or len(x.shape) < 2 or x.shape[1] % groups:
        raise Error(
            f"got a scale or bias of shape {v.shape} for x {x.shape}, need one number for each of {groups} groups"
        )
    columns: Value = b.broadcast_to(b.reshape(v, shape=(groups, 1)), shape=(groups, x.shape[1] // groups))
    result: Value = b.reshape(columns, shape=(x.shape[1],))
    return result


@onnx_op("LRN")
def local_response(b: Builder, n: OnnxNode) -> Result:
    options = {"alpha": n.attrs["alpha"], "beta": n.attrs["beta"], "k": n.attrs["bias"], "size": n.attrs["size"]}
    if options["size"] < 1:
        raise Error(f"size: got {options['size']}, need a positive integer")
    return b.local_response_norm(n.value(0), **options)


def _onto(v: Value, x: Value) -> Value:
    """Returns v. Raises Error if v would broadcast x to a larger shape."""
    if broadcast(v.shape, x.shape) != x.shape:
        raise Error(f"got a scale or bias of shape {v.shape}, need one that broadcasts to {x.shape}")
    return v
