"""onnxruntime's fused ops (domain com.microsoft): activations with a bias, products, convolutions, and sums with a
normalisation."""

from typing import Any

from hexane.errors import Error
from hexane.graph import Value
from hexane.importers.onnx.foreign import MICROSOFT
from hexane.importers.onnx.node import Builder, OnnxNode, Result, axis_of
from hexane.importers.onnx.registry import domain_op
from hexane.importers.onnx.standard import given, standard

WINDOWS = {
    "auto_pad": "NOTSET",
    "dilations": tuple[int, ...],
    "kernel_shape": tuple[int, ...],
    "pads": tuple[int, ...],
    "strides": tuple[int, ...],
}
CONVOLUTION = {**WINDOWS, "group": 1}
ACTIVATION = {"activation": str, "activation_params": tuple[float, ...]}
# The attributes of each activation, in the order of its parameters. The bounds of Clip are inputs.
PARAMETERS: dict[str, tuple[str, ...]] = {
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "HardSwish": (),
    "LeakyRelu": ("alpha",),
    "Relu": (),
    "Selu": ("alpha", "gamma"),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "Tanh": (),
    "ThresholdedRelu": ("alpha",),
}
_OWN = {"Gelu": "gelu", "Silu": "silu", "Swish": "silu"}  # activations without parameters that some opsets lack


@domain_op(MICROSOFT, "Gelu", "BiasGelu", inputs=(1, 2), attributes={})
def gelu(b: Builder, n: OnnxNode) -> Result:
    return b.gelu(_biased(b, n, n.value(0), 1))


@domain_op(MICROSOFT, "FastGelu", inputs=(1, 2), attributes={})
def fast_gelu(b: Builder, n: OnnxNode) -> Result:
    return b.gelu_tanh(_biased(b, n, n.value(0), 1))


@domain_op(MICROSOFT, "GemmFastGelu", inputs=(2, 3), attributes={})
def gemm_fast_gelu(b: Builder, n: OnnxNode) -> Result:
    return b.gelu_tanh(_biased(b, n, b.matmul(n.value(0), n.value(1)), 2))


@domain_op(MICROSOFT, "QuickGelu", inputs=(1, 1), attributes={"alpha": 1.702})
def quick_gelu(b: Builder, n: OnnxNode) -> Result:
    x, alpha = n.value(0), n.attrs["alpha"]
    return b.silu(x) if alpha == 1 else b.mul(x, b.sigmoid(b.mul(x, alpha)))


@domain_op(MICROSOFT, "BiasAdd", inputs=(3, 3), attributes={})
def bias_add(b: Builder, n: OnnxNode) -> Result:
    return b.add(_biased(b, n, n.value(0), 1), n.value(2))


@domain_op(MICROSOFT, "BiasSplitGelu", inputs=(2, 2), attributes={})
def bias_split_gelu(b: Builder, n: OnnxNode) -> Result:
    """Returns the first half of the channels times gelu of the second half."""
    left, right = b.split(_biased(b, n, n.value(0), 1), axis=-1, num_splits=2)
    return b.mul(left, b.gelu(right))


def _biased(b: Builder, n: OnnxNode, x: Value, index: int) -> Value:
    """Adds an optional input, which is a vector along the last axis."""
    bias = n.optional(index)
    if bias is None:
        return x
    if bias.shape != x.shape[-1:]:
        raise Error(f"got a bias of shape {bias.shape}, need {x.shape[-1:]}")
    total: Value = b.add(x, bias)
    return total


def activated(b: Builder, n: OnnxNode, x: Value, parameters: tuple[float, ...] | None = None) -> Value:
    """Applies the activation that the node names, if any."""
    name = n.attrs.get("activation") or ""
    values = tuple(n.attrs.get("activation_params") or ()) if parameters is None else parameters
    if not name:
        return x
    if name == "Clip" and len(values) == 2:
        clipped: Value = b.clip(x, alpha=float(values[0]), beta=float(values[1]))
        return clipped
    if name in _OWN and not values:
        result: Value = b.apply(_OWN[name], x)
        return result
    names = PARAMETERS.get(name)
    if names is None or len(values) > len(names):
        raise Error(f"activation: got {name!r} with {len(values)} parameters, need one of "
                    f"{', '.join(sorted({'Clip', *PARAMETERS, *_OWN}))}")  # fmt: skip
    return standard(b, n, name, x, **dict(zip(names, values, strict=False)))


@domain_op(
    MICROSOFT, "FusedMatMul", "TransposeMatMul", "FusedMatMulActivation", inputs=(2, 2),
    attributes={
        "alpha": 1.0, "transA": 0, "transB": 0, "transBatchA": 0, "transBatchB": 0, "activation": str,
        "activation_alpha": float, "activation_beta": float, "activation_gamma": float, "activation_axis": int,
    },
    ignores=("activation_axis",),
)  # fmt: skip
def fused_matmul(b: Builder, n: OnnxNode) -> Result:
    """Multiplies. transBatchA moves A's first axis after its batch axes; transA then swaps A's last two axes."""
    operands = []
    for i, side in enumerate("AB"):
        x = n.value(i)
        rank = len(x.shape)
        batch, matrix = n.attrs[f"transBatch{side}"], n.attrs[f"trans{side}"]
        if rank > 1 and (batch or matrix):
            perm = [*range(1, rank - 1), 0, rank - 1] if batch else list(range(rank))
            x = b.transpose(x, perm=[*perm[:-2], perm[-1], perm[-2]] if matrix else perm)
        operands.append(x)
    out = standard(b, n, "MatMul", *operands)
    if n.attrs["alpha"] != 1:
        out = b.mul(out, n.attrs["alpha"])
    return activated(b, n, out, _numbered(n))


def _numbered(n: OnnxNode) -> tuple[float, ...]:
    """Returns the parameters of an activation that are separate attributes."""
    names = ("activation_alpha", "activation_beta", "activation_gamma")
    return tuple(given(n, names).values())


@domain_op(
    MICROSOFT, "FusedGemm", inputs=(2, 3),
    attributes={
        "alpha": 1.0, "beta": 1.0, "transA": 0, "transB": 0, "activation": str,
        "activation_alpha": float, "activation_beta": float, "activation_gamma": float,
    },
)  # fmt: skip
def fused_gemm(b: Builder, n: OnnxNode) -> Result:
    options = given(n, ("alpha", "beta", "transA", "transB"))
    out = standard(b, n, "Gemm", n.value(0), n.value(1), n.optional(2), **options)
    return activated(b, n, out, _numbered(n))


@domain_op(MICROSOFT, "FusedConv", inputs=(2, 4), attributes={**CONVOLUTION, **ACTIVATION})
def fused_conv(b: Builder, n: OnnxNode) -> Result:
    """Returns the convolution, plus Z if it is given, with an activation."""
    out = standard(b, n, "Conv", n.value(0), n.value(1), n.optional(2), **given(n, list(CONVOLUTION)))
    if n.has(3):
        out = b.add(out, n.value(3))
    return activated(b, n, out)


@domain_op(MICROSOFT, "NhwcConv", "NhwcFusedConv", inputs=(2, 4), attributes={**CONVOLUTION, **ACTIVATION})
def nhwc_conv(b: Builder, n: OnnxNode) -> Result:
    """Returns a convolution of x with channels last. Z and the result also have channels last. The weight is (out, in /
    group, height, width) as in Conv."""
    x = channels_first(b, n.value(0))
    out = standard(b, n, "Conv", x, n.value(1), n.optional(2), **given(n, list(CONVOLUTION)))
    if n.has(3):
        out = b.add(out, channels_first(b, n.value(3)))
    return channels_last(b, activated(b, n, out))


@domain_op(MICROSOFT, "NhwcMaxPool", inputs=(1, 1), attributes={**WINDOWS, "ceil_mode": 0})
def nhwc_max_pool(b: Builder, n: OnnxNode) -> Result:
    options = given(n, [*WINDOWS, "ceil_mode"])
    return channels_last(b, standard(b, n, "MaxPool", channels_first(b, n.value(0)), **options))


def channels_first(b: Builder, x: Value) -> Value:
    rank = len(x.shape)
    result: Value = b.transpose(x, perm=(0, rank - 1, *range(1, rank - 1)))
    return result


def channels_last(b: Builder, x: Value) -> Value:
    result: Value = b.transpose(x, perm=(0, *range(2, len(x.shape)), 1))
    return result


_NORM: dict[str, Any] = {"epsilon": 1e-5, "axis": -1, "stash_type": 1}


@domain_op("", "SimplifiedLayerNormalization", inputs=(2, 2), attributes=_NORM, ignores=("stash_type",))
@domain_op(MICROSOFT, "SimplifiedLayerNormalization", inputs=(2, 2), attributes=_NORM, ignores=("stash_type",))
def simplified_layer_normalization(b: Builder, n: OnnxNode) -> Result:
    """Returns x / sqrt(mean(x^2) + epsilon) * scale, ONNX's RMSNormalization."""
    x, gamma, epsilon = n.value(0), n.value(1), n.attrs["epsilon"]
    axes = tuple(range(axis_of(n.attrs["axis"], len(x.shape)), len(x.shape)))
    if gamma.shape == tuple(x.shape[a] for a in axes):
        out = b.rms_norm(x, gamma, axes=axes, epsilon=epsilon)
    else:
        out = b.mul(b.rms_norm(x, axes=axes, epsilon=epsilon), gamma)
    if not n.wants(1):
        return [out]
    return [out, b.rsqrt(b.add(b.reduce_mean(b.square(x), axes=axes), epsilon))]


@domain_op("", "LayerNormalization", inputs=(2, 3), attributes=_NORM)
def layer_normalization(b: Builder, n: OnnxNode) -> Result:
    """onnxruntime's optimiser writes LayerNormalization into files of opsets before 17."""
    if n.wants(1) or n.wants(2):
        raise Error("got it with the output mean or deviation before opset 17, need the first output alone")
    options = given(n, list(_NORM))
    return standard(b, n, "LayerNormalization", n.value(0), n.value(1), n.optional(2), **options)


@domain_op(MICROSOFT, "SkipLayerNormalization", inputs=(3, 5), attributes={"epsilon": 1e-12})
def skip_layer_normalization(b: Builder, n: OnnxNode) -> Result:
    total = _summed(b, n, 4)
    out = b.layer_norm(total, n.value(2), n.optional(3), axes=(-1,), epsilon=n.attrs["epsilon"])
    return [out, None, None, total]


@domain_op(MICROSOFT, "SkipSimplifiedLayerNormalization", inputs=(3, 4), attributes={"epsilon": 1e-12})
def skip_simplified_layer_normalization(b: Builder, n: OnnxNode) -> Result:
    total = _summed(b, n, 3)
    return [b.rms_norm(total, n.value(2), axes=(-1,), epsilon=n.attrs["epsilon"]), None, None, total]


def _summed(b: Builder, n: OnnxNode, bias: int) -> Value:
    """Returns input + skip + bias. skip may lack the batch axis, or have a batch of 1."""
    x, skip = n.value(0), n.value(1)
    if skip.shape not in (x.shape, x.shape[1:], (1, *x.shape[1:])):
        raise Error(f"got a skip of shape {skip.shape}, need {x.shape} or {x.shape[1:]}")
    total: Value = b.add(_biased(b, n, x, bias), skip)
    return total
