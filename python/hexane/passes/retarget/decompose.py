"""Forms that rewrite single ops as others: functions, comparisons, divisions, and expansions from the op records."""

from math import fsum, isinf, pi

import numpy as np

from hexane.graph import Array, Node, Value
from hexane.lowering.affine import normalisation
from hexane.ops import OPS, simpler
from hexane.ops.compose import WriteOutError
from hexane.ops.records.linear import scale_first
from hexane.passes.retarget.axes import reduced_axes
from hexane.passes.retarget.writer import Form, Rewritten, Writer
from hexane.targets import Family
from hexane.validate.small_constants import TINY, held_norm, loses_digits, two_factors


def expand(b: Writer, node: Node) -> Rewritten | None:
    """rms_norm(%x)  ->  its record's expansion"""
    op = OPS[node.op]
    if op.expand is None:
        return None
    try:
        result = op.expand(b, *node.inputs, **node.attrs)
    except WriteOutError:
        return None
    values = (result,) if isinstance(result, Value) else tuple(result)
    if values == node.values:
        return None
    return Rewritten(values, f"written as {b.asked or 'its operand'}")


def attention(b: Writer, node: Node) -> Rewritten | None:
    """scaled_dot_product_attention(%q, ...)  ->  matmul(softmax(matmul(%q * 0.125, %k)), %v)"""
    return Rewritten((scale_first(b, *node.inputs, **node.attrs),), f"written as {b.asked or 'its operand'}")  # type: ignore[arg-type]


# ---- sine and cosine ----

# 2 pi is the sum of these numbers, which have one or two significant bits, and a rest. The product of each number and a
# number of turns is exact up to 680 turns in fp16, and up to millions of turns in fp32.
TURN = (6.0, 1 / 4, 1 / 32, 1 / 512)
HALF_PI = 1.5703125  # pi / 2 in 8 bits.
# The odd polynomial for sin(r) on [-pi / 2, pi / 2] with the least maximum error, 3.4e-9.
SINE = (0.9999999765897253, -0.16666647634538662, 0.008332899821630681, -0.00019800897656402103, 2.5904882846863104e-06)
TRIGONOMETRY = (
    "computed as a polynomial of the argument modulo 2 pi: rounding to fp16 between the ops causes errors of up to"
    " 0.0025, and larger errors for arguments beyond 4000"
)


def sine(b: Writer, node: Node) -> Rewritten | None:
    """sin(%x)  ->  r * p(r * r), r = %x reduced to [-pi / 2, pi / 2] by whole turns and a reflection"""
    (x,) = node.inputs
    if x is None or x.dtype.kind != "float":
        return None
    r = _turned(b, x)
    # sin(r) = sin(pi - r): selects the argument nearer to 0, for negative r likewise.
    r = b.minimum(r, b.add(b.sub(2 * HALF_PI, r), pi - 2 * HALF_PI))
    r = b.maximum(r, b.sub(b.sub(-2 * HALF_PI, r), pi - 2 * HALF_PI))
    return Rewritten((_sine(b, r),), "written as a polynomial", TRIGONOMETRY)


def cosine(b: Writer, node: Node) -> Rewritten | None:
    """cos(%x)  ->  sin(pi / 2 - |r|), r = %x reduced to [-pi, pi] by whole turns"""
    (x,) = node.inputs
    if x is None or x.dtype.kind != "float":
        return None
    r = b.add(b.sub(HALF_PI, b.abs(_turned(b, x))), pi / 2 - HALF_PI)
    r = b.maximum(r, b.sub(b.sub(-2 * HALF_PI, r), pi - 2 * HALF_PI))
    return Rewritten((_sine(b, r),), "written as a polynomial", TRIGONOMETRY)


def _turned(b: Writer, x: Value) -> Value:
    """Returns x minus whole turns: in [-pi, pi], or up to pi / 2 outside if fp16 rounds the number of turns."""
    turns = b.mul(x, 1 / (2 * pi))
    # Equals round(turns) exactly. M1 and M5 drop a product that directly follows a rounding (ANEForge 0.4.0, measured).
    turns = b.sub(turns, b.sub(turns, b.round(turns)))
    for part in (*TURN, 2 * pi - fsum(TURN)):
        x = b.sub(x, b.mul(turns, part))
    return x


def _sine(b: Writer, r: Value) -> Value:
    """Returns p(r * r) * r. A large argument may be reduced by a wrong number of turns: the clip keeps its powers
    small."""
    r = b.clip(r, alpha=-pi, beta=pi)
    square = b.mul(r, r)
    *lower, last = SINE
    total = b.mul(square, last)
    for c in reversed(lower[1:]):
        total = b.mul(b.add(total, c), square)
    return b.mul(b.add(total, lower[0]), r)


# ---- comparisons and logic ----


def argmin(b: Writer, node: Node) -> Rewritten | None:
    """reduce_argmin(%x)  ->  reduce_argmax(-%x); for integers reduce_argmax(-1 - %x), for unsigned ones of max - %x"""
    x = simpler.reversed_order(b, _x(node))
    return Rewritten((b.reduce_argmax(x, **node.attrs),), f"written as {x.node.op}, reduce_argmax")


def logical_and(b: Writer, node: Node) -> Rewritten | None:
    """logical_and(%x, %y)  ->  select(%x, %y, False)"""
    x, y = node.inputs
    return _selected(b, node, x, y, b.const(np.array(False)))


def logical_or(b: Writer, node: Node) -> Rewritten | None:
    """logical_or(%x, %y)  ->  select(%x, True, %y)"""
    x, y = node.inputs
    return _selected(b, node, x, b.const(np.array(True)), y)


def _selected(b: Writer, node: Node, *inputs: Value | None) -> Rewritten:
    return Rewritten((b.select(*inputs),), "written as select")


def logical_xor(b: Writer, node: Node) -> Rewritten | None:
    """logical_xor(%x, %y)  ->  not_equal(%x, %y)"""
    return Rewritten((b.not_equal(*node.inputs),), "written as not_equal")


# ---- norms ----


SCALED = "scaled by its largest number before it is squared"


def rms_norm(b: Writer, node: Node) -> Rewritten | None:
    """rms_norm(%x)  ->  its formula on rows scaled to at most 128, with one factor per row

    The layer_norm of the pair (x, -x) gives the same result, but is not used: the pair is twice as large, and all norm
    layers are slow. On M5 Pro a layer_norm of [256, 1024] took 296 us, and even an l2_norm 133 us (measured).
    """
    return Rewritten((simpler.rms_norm(b, _x(node), node.inputs[1], **node.attrs),), f"written as {b.asked}: {SCALED}")


def layer_norm(b: Writer, node: Node) -> Rewritten | None:
    """layer_norm(%x)  ->  its formula on differences scaled to at most 128, with one factor per row"""
    return Rewritten((simpler.layer_norm(b, *node.inputs, **node.attrs),), f"written as {b.asked}: {SCALED}")  # type: ignore[arg-type]


def l2_norm(b: Writer, node: Node) -> Rewritten | None:
    """l2_norm(%x)  ->  its formula on rows scaled so that fp16 can add their squares, with one factor per row"""
    return Rewritten((simpler.l2_norm(b, _x(node), **node.attrs),), f"written as {b.asked}: {SCALED}")


def mean_variance_norm(b: Writer, node: Node) -> Rewritten | None:
    """mean_variance_norm(%x)  ->  its formula on differences scaled to at most 128, with one factor per row"""
    return Rewritten((simpler.mean_variance_norm(b, _x(node), **node.attrs),), f"written as {b.asked}: {SCALED}")


def group_norm(b: Writer, node: Node) -> Rewritten | None:
    """group_norm(%x)  ->  its formula from statistics per channel, so that no group becomes one row too wide for a chip

    A norm layer over large groups is estimated to be slower: for [1, 320, 64, 64] in 32 groups on M5, 1.2 ms against
    0.7 ms for the formula's ops. Small tensors keep the layer.
    """
    x = _x(node)
    if x.type.size <= simpler.SMALL_NORM:
        return None
    y = simpler.group_norm(b, x, *node.inputs[1:], **node.attrs)  # type: ignore[arg-type]
    return Rewritten((y,), f"written with statistics of each channel: {SCALED}")


# ---- activations ----


def _x(node: Node) -> Value:
    assert node.inputs[0] is not None
    return node.inputs[0]


def hard_swish(b: Writer, node: Node) -> Rewritten | None:
    """hard_swish(%x)  ->  %x * sigmoid_hard(%x)"""
    return Rewritten((simpler.hard_swish(b, _x(node)),), "written as sigmoid_hard, mul")


def selu(b: Writer, node: Node) -> Rewritten | None:
    """selu(%x)  ->  beta * elu(%x)"""
    return Rewritten((simpler.selu(b, _x(node), **node.attrs),), "written as elu, mul")


def prelu(b: Writer, node: Node) -> Rewritten | None:
    """prelu(%x, %slope)  ->  select(%x < 0, %x * %slope, %x)"""
    return Rewritten((simpler.prelu(b, _x(node), node.inputs[1]),), "written as less, mul, select")


# ---- ops without a layer on chips before family A13 ----

LARGEST = float(np.finfo(np.float16).max)
SMALLEST_NORMAL = np.finfo(np.float16).smallest_normal


def reciprocal(b: Writer, node: Node) -> Rewritten | None:
    """real_div(%x, const)  ->  %x * (1 / const): chips before family A13 have no other division"""
    x, divisor = node.inputs
    if b.chip.family >= Family.A13 or divisor is None or divisor.node.op != "const" or divisor.dtype.kind != "float":
        return None
    assert divisor.node.data is not None
    with np.errstate(divide="ignore"):
        inverse = 1 / divisor.node.data.astype(np.float64)
    if not _held(inverse):
        return None
    hazard = "the chip rounds the reciprocal to fp16 first, so results may be a unit in the last place away"
    product = b.mul(x, b.const(inverse.astype(divisor.dtype.numpy)))
    return Rewritten((product,), "written as mul by the reciprocal", hazard)


def in_two_factors(b: Writer, node: Node) -> Rewritten | None:
    """%x * 2e-05  ->  (%x * 2^-14) * 0.32768, for a factor that loses digits in fp16"""
    if not loses_digits(node):
        return None
    x, factor = node.inputs
    assert x is not None
    assert factor is not None
    if node.op == "mul" and factor.node.op != "const":
        x, factor = factor, x
    if x.node.op == "const" or factor.node.data is None:
        return None
    numbers = factor.node.data
    power, rest = two_factors(1 / numbers.astype(np.float64) if node.op == "real_div" else numbers)
    kind = factor.dtype.numpy
    product = b.mul(b.mul(x, b.const(power.astype(kind))), b.const(rest.astype(kind)))
    return Rewritten((product,), "written as two factors")


def norm_by_factors(b: Writer, node: Node) -> Rewritten | None:
    """batch_norm(%x, const, variance=2e5, ..)  ->  batch_norm(%x, 0, 1, scale, shift): used if fp16 cannot hold the parameters but can hold scale and shift; a small scale becomes two factors"""  # noqa: E501
    affine = held_norm(node) if loses_digits(node) else None
    x, axis = node.inputs[0], node.attrs["axis"]
    if affine is None or x is None:
        return None
    scale, kind, how = affine.scale, x.dtype.numpy, "written with its scale and shift"
    small = (np.abs(scale) < TINY) & (True if affine.live is None else affine.live)
    if small.any():
        power, rest = two_factors(scale)
        power, scale = np.where(small, power, 1.0), np.where(small, rest, scale)
        trailing = [1] * (x.type.rank - axis - 1)
        x = b.mul(x, b.const(power.reshape(-1, *trailing).astype(kind)))
        how = "written with its scale, as two factors, and its shift"
    zeros, ones = np.zeros(scale.shape, kind), np.ones(scale.shape, kind)
    y = b.batch_norm(x, zeros, ones, scale.astype(kind), affine.shift.astype(kind), epsilon=0.0, axis=axis)
    return Rewritten((y,), how)


def _held(factors: Array) -> bool:
    """True if fp16 holds each number as 0 or as a normal number."""
    with np.errstate(over="ignore"):
        narrow = np.abs(factors).astype(np.float16)
    return bool((np.isfinite(narrow) & ((narrow >= SMALLEST_NORMAL) | (factors == 0))).all())


def broadcast(b: Writer, node: Node) -> Rewritten | None:
    """broadcast_to(%x : [N, C, 1, W])  ->  %x + zeros; along channels a convolution with ones"""
    (x,) = node.inputs
    assert x is not None
    shape = node.types[0].shape
    if b.chip.family >= Family.A13 or x.dtype.kind != "float" or x.type.rank != len(shape):
        return None
    how = "written as add of zeros"
    if x.type.rank == 4 and x.shape[1] == 1 != shape[1]:
        x = b.conv(x, b.const(np.ones((shape[1], 1, 1, 1), x.dtype.numpy)), None)
        how = "written as a convolution with ones, and add of zeros"
    if x.shape != shape:
        x = b.add(x, b.const(np.zeros(shape, x.dtype.numpy)))
    return Rewritten((x,), how)


def batch_norm(b: Writer, node: Node) -> Rewritten | None:
    """batch_norm(%x, consts)  ->  %x * scale + shift, with one scale and one shift per channel"""
    x, *params = node.inputs
    assert x is not None
    affine = None if b.chip.family >= Family.A13 else normalisation(node, params)
    if affine is None or not _held(affine.scale) or not (np.abs(affine.shift) <= LARGEST).all():
        return None
    trailing = [1] * (x.type.rank - node.attrs["axis"] - 1)
    scale, shift = (b.const(numbers.reshape(-1, *trailing).astype(x.dtype.numpy)) for numbers in affine[:2])
    return Rewritten((b.add(b.mul(x, scale), shift),), "written as mul, add")


def clip(b: Writer, node: Node) -> Rewritten | None:
    """clip(%x, alpha, beta)  ->  minimum(maximum(%x, alpha), beta)"""
    if b.chip.family >= Family.A13 or (isinf(node.attrs["alpha"]) and isinf(node.attrs["beta"])):
        return None
    return Rewritten((simpler.clip(b, _x(node), **node.attrs),), f"written as {b.asked}")


def sigmoid_hard(b: Writer, node: Node) -> Rewritten | None:
    """sigmoid_hard(%x, alpha, beta)  ->  clip(%x * alpha + beta, 0, 1)"""
    if b.chip.family >= Family.A13:
        return None
    return Rewritten((simpler.sigmoid_hard(b, _x(node), **node.attrs),), "written as mul, add, clip")


def mean_of_pixels(b: Writer, node: Node) -> Rewritten | None:
    """reduce_mean(%x : [N, C, H, W], axes=(2, 3))  ->  avg_pool with a window of the whole image"""
    return _pooled(b, node, "avg_pool")


def largest_of_pixels(b: Writer, node: Node) -> Rewritten | None:
    """reduce_max(%x : [N, C, H, W], axes=(2, 3))  ->  max_pool with a window of the whole image"""
    return _pooled(b, node, "max_pool")


def _pooled(b: Writer, node: Node, pool: str) -> Rewritten | None:
    (x,) = node.inputs
    assert x is not None
    axes = reduced_axes(node)
    if b.chip.family >= Family.A13 or x.type.rank != 4 or not {2, 3}.issuperset(axes):
        return None
    y = b.apply(pool, x, kernel_sizes=tuple([x.shape[i] if i in axes else 1 for i in (2, 3)]))
    return Rewritten((b.view(y, node.types[0].shape),), f"written as {pool}")


FORMS: dict[str, tuple[Form, ...]] = {
    "sin": (sine,),
    "cos": (cosine,),
    "reduce_argmin": (argmin,),
    "logical_and": (logical_and,),
    "logical_or": (logical_or,),
    "logical_xor": (logical_xor,),
    "rms_norm": (rms_norm,),
    "group_norm": (group_norm,),
    "scaled_dot_product_attention": (attention,),  # a fused attention would split the network into several programs
    "hard_swish": (hard_swish,),
    "selu": (selu,),
    "prelu": (prelu,),
    "real_div": (in_two_factors, reciprocal),
    "mul": (in_two_factors,),
    "broadcast_to": (broadcast,),
    "batch_norm": (norm_by_factors, batch_norm),
    "clip": (clip,),
    "sigmoid_hard": (sigmoid_hard,),
    "reduce_mean": (mean_of_pixels,),
    "reduce_max": (largest_of_pixels,),
}

# Forms for ops that cannot be tiled. Tiling is tried first.
FORMS_OF_WHOLE: dict[str, tuple[Form, ...]] = {
    "layer_norm": (layer_norm,),
    "l2_norm": (l2_norm,),
    "mean_variance_norm": (mean_variance_norm,),
}
