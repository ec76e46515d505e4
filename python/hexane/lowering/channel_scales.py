"""Computes per-channel scales and shifts, such as constant batch norms, and folds them into weights."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from hexane import _core
from hexane.graph import Array, Node, Value, constant
from hexane.lowering.halves import half
from hexane.lowering.kept_constants import kept_constant
from hexane.ops import OPS
from hexane.ops.predicates import channel_axis, only_along

_FP32_EPSILON = 2.0**-23
_FP16_EPSILON = 2.0**-11  # Relative error of rounding to normal numbers of fp16.
_LARGEST, _TINY = (float(number) for number in (np.finfo(np.float16).max, np.finfo(np.float16).tiny))
_DEAD = 2.0**-19  # With a smaller gamma, results within 32 standard deviations are subnormal in fp16.


class Affine(NamedTuple):
    """The function y * scale + shift, per channel, in fp64. live: the channels whose digits matter, None for all."""

    scale: Array
    shift: Array
    live: Array | None = None

    def then(self, later: "Affine") -> "Affine":
        """Returns the function that applies this function first, and then `later`."""
        lives = [a.live for a in (self, later) if a.live is not None]
        live = np.logical_and.reduce(lives) if lives else None
        return Affine(self.scale * later.scale, self.shift * later.scale + later.shift, live)


def folds_in_halves(node: Node, counts: Mapping[Value, int]) -> bool:
    """True if the node can be folded into the weights of a product without losing digits in fp16. counts: the number of
    readers per value."""
    for i, product in enumerate(node.inputs[:2]):
        maker = float_product(product)
        if product is None or maker is None or counts[product] != 1 or maker.types != node.types:
            continue
        affine = affine_of(node, node.inputs, i, channel_axis(maker))
        if affine is not None and scaled_operands(maker, affine, True) is not None:
            return True
    return False


def float_product(value: Value | None) -> Node | None:
    """Returns the product that computes the value, if the product's weights are floats, else None."""
    op = None if value is None else OPS.get(value.node.op)
    if value is None or op is None or op.product is None:
        return None
    weight = value.node.inputs[1]
    return value.node if weight is not None and weight.dtype.kind == "float" else None


def affine_of(node: Node, inputs: tuple[Value | None, ...], i: int, axis: int) -> Affine | None:
    """Returns the scale and shift that the node applies to each channel of its input i, or None if scale or shift
    varies within a channel."""
    shape = node.types[0].shape
    ones, zeros = np.ones(shape[axis]), np.zeros(shape[axis])
    if node.op == "batch_norm":
        return normalisation(node, inputs[1:]) if i == 0 and node.attrs["axis"] == axis else None
    other = inputs[1 - i]
    numbers = _numbers(other) if other is not None and only_along(other, axis, shape) else None
    if numbers is None or (numbers.size == 1 and node.op in ("mul", "real_div")):
        return None  # a single number may be the scale of a quantised tensor, which has to stay in place
    with np.errstate(all="ignore"):
        match node.op, i:
            case "add", _:
                return Affine(ones, numbers)
            case "sub", _:
                return Affine(ones, -numbers) if i == 0 else Affine(-ones, numbers)
            case "mul", _:
                return Affine(numbers, zeros)
            case "real_div", 0:
                return Affine(1 / numbers, zeros)
    return None


def normalisation(node: Node, params: Sequence[Value | None]) -> Affine | None:
    """Returns a batch_norm's scale and shift per channel, or None if a parameter (mean, variance, gamma, beta) is not
    constant."""
    mean, variance, gamma, beta = (None if v is None else _numbers(v) for v in params)
    if any(v is not None and _numbers(v) is None for v in params):
        return None
    assert mean is not None
    assert variance is not None
    with np.errstate(all="ignore"):
        scale = (1 if gamma is None else gamma) / np.sqrt(variance + node.attrs["epsilon"])
        live = None if gamma is None else np.abs(gamma) > _DEAD
        live = None if live is None or not live.any() else live  # if all gammas are small, all channels are live
        return Affine(scale, (0 if beta is None else beta) - mean * scale, live)


def _numbers(value: Value) -> Array | None:
    if value.node.op != "const":
        return None
    assert value.node.data is not None
    return value.node.data.astype(np.float64).reshape(-1)


def scaled_operands(maker: Node, affine: Affine, in_halves: bool) -> list[Value] | None:
    """Returns operands with which the product computes its result * scale + shift, or None if digits would be lost."""
    x, weight, bias = maker.inputs
    assert x is not None
    assert weight is not None
    if weight.node.op != "const" or (bias is not None and bias.node.op != "const"):
        return None
    live = None if affine.live is None else affine.live.tobytes()
    key = (maker.op, bias and bias.node, tuple(maker.attrs.items()), in_halves)
    numbers = (affine.scale.tobytes(), affine.shift.tobytes(), live)
    constants = kept_constant(weight.node, (*key, *numbers), lambda: _scaled_weights(maker, affine, in_halves))
    return None if constants is None else [x, *constants]


def _scaled_weights(maker: Node, affine: Affine, in_halves: bool) -> tuple[Value, Value] | None:
    """Returns the weight and the bias of `scaled_operands`, or None if digits would be lost."""
    _, weight, bias = maker.inputs
    over_weight = OPS[maker.op].product
    assert weight is not None
    assert over_weight is not None
    wide = None if weight.node.op != "const" else weight.node.data
    offset = np.zeros_like(affine.shift) if bias is None else _numbers(bias)
    if wide is None or offset is None:
        return None
    new_bias = _constant(offset * affine.scale + affine.shift, weight)
    if (affine.scale == 1).all():
        new_weight: Value | None = weight
    else:
        new_weight = _constant(wide.astype(np.float64) * over_weight(affine.scale, weight.shape, **maker.attrs), weight)
    if new_weight is None or new_bias is None:
        return None
    if in_halves and not _kept_in_halves(maker, affine, new_weight, new_bias):
        return None
    return new_weight, new_bias


def _kept_in_halves(maker: Node, affine: Affine, new_weight: Value, new_bias: Value) -> bool:
    """True if, in each live channel, fp16 keeps as many digits of the new weights as of the old weights, and the bias
    fits fp16."""
    old, new, bias = maker.inputs[1].node.data, new_weight.node.data, new_bias.node.data  # type: ignore[union-attr]
    over_weight = OPS[maker.op].product
    assert old is not None
    assert new is not None
    assert bias is not None
    assert over_weight is not None
    live = np.ones(affine.scale.shape, np.bool_) if affine.live is None else affine.live
    if (np.abs(bias[live]) > _LARGEST).any() and not _beyond(maker.inputs[2]):
        return False
    if new is old:  # only a shift is folded
        return True
    size = np.abs(new)
    if not size.size or (size.max() <= _LARGEST and size[size > 0].min(initial=np.inf) >= _TINY):
        return True
    channel = over_weight(np.arange(live.size), old.shape, **maker.attrs)
    lost_new, lost_old = (_lost(numbers, channel, live.size) for numbers in (new, old))
    return bool((lost_new <= np.maximum(lost_old, _FP16_EPSILON))[live].all())


def _beyond(value: Value | None) -> bool:
    return value is not None and value.node.data is not None and bool((np.abs(value.node.data) > _LARGEST).any())


def _lost(numbers: Array, channel: Array, count: int) -> Array:
    """Returns the relative error of each channel's numbers when rounded to fp16. channel: the channel of each number,
    in a shape that broadcasts."""
    if numbers.dtype == np.float32:
        narrow = np.empty(numbers.shape, np.float32)
        _core.convert(half(numbers), narrow)
        error = np.subtract(numbers, narrow, dtype=np.float64)
    else:
        numbers = numbers.astype(np.float64)
        with np.errstate(over="ignore"):
            error = numbers - np.clip(numbers, -_LARGEST, _LARGEST).astype(np.float16)
    lost, size = (_sums_of_squares(one, channel, count) for one in (error, numbers))
    result: Array = np.sqrt(lost / np.where(size > 0, size, 1.0))
    return result


def _sums_of_squares(numbers: Array, channel: Array, count: int) -> Array:
    channel = channel.reshape((1,) * (numbers.ndim - channel.ndim) + channel.shape)
    along = [i for i, d in enumerate(channel.shape) if d != 1]
    if channel.size == count and len(along) < 2:
        others = tuple([i for i in range(numbers.ndim) if i not in along])
        sums: Array = np.square(numbers, dtype=np.float64).sum(axis=others)
        return sums.reshape(count)
    places = np.broadcast_to(channel, numbers.shape).ravel().astype(np.int64)
    wide = numbers.ravel().astype(np.float64)
    return np.bincount(places, wide * wide, count)


def _constant(wide: Array, like: Value) -> Value | None:
    """Returns the array in the value's dtype, or None if that overflows, underflows or is coarser than fp32."""
    with np.errstate(all="ignore"):
        narrow = wide.astype(like.dtype.numpy)
        fits = np.abs(narrow.astype(np.float64) - wide) <= _FP32_EPSILON * np.abs(wide)
    return constant(narrow, like.node.sources) if fits.all() else None
