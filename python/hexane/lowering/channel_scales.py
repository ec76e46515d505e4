"""Folds scales and shifts per channel, such as constant batch norms, into weights."""

from collections.abc import Mapping

import numpy as np

from hexane import _core
from hexane.graph import Array, Node, Value, constant
from hexane.lowering.affine import Affine, affine_of, float_product, numbers_of
from hexane.lowering.halves import half
from hexane.lowering.kept_constants import kept_constant
from hexane.ops import OPS
from hexane.ops.predicates import channel_axis

_FP32_EPSILON = 2.0**-23
_FP16_EPSILON = 2.0**-11  # Relative error of rounding to normal numbers of fp16.
_LARGEST, _TINY = (float(number) for number in (np.finfo(np.float16).max, np.finfo(np.float16).tiny))


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
    offset = np.zeros_like(affine.shift) if bias is None else numbers_of(bias)
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
