"""What the slots of a layer compute: as ops of users, and in NumPy."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES
from hexane.graph import EpilogueSlot
from hexane.ops.neurons import NEURONS

Array = Any


def run_chain(
    b: Any, y: Any, slots: Sequence[EpilogueSlot], inputs: Sequence[Any], rounds: Sequence[str], store: Any
) -> Any:
    """Returns the chain as ops of users, in the accumulator's precision. The result has the dtype `store`, unless it is
    quantised."""
    wide = y.dtype

    def point(name: str, y: Any) -> Any:
        return b.cast(b.cast(y, dtype=store), dtype=wide) if name in rounds and store is not wide else y

    y = point("accumulate", y)
    for s in slots:
        v = dict(s.attributes)
        if s.op == "quant":
            y = y if "output" not in rounds else point("output", y)
            zero = None if v["zero"] < 0 else inputs[v["zero"]]
            return b.quantize(y, inputs[v["scale"]], zero, axis=v["axis"], dtype=DTYPES[v["dtype"]])
        y = point(s.op, _EMIT[s.op](b, y, v, inputs))
    return y if store is wide else b.cast(y, dtype=store)


def _along(b: Any, y: Any, v: Mapping[str, Any], name: str, inputs: Sequence[Any]) -> Any:
    """Returns an operand in the accumulator's dtype, reshaped to broadcast along the slot's axis."""
    given = inputs[v[name]]
    given = given if given.dtype is y.dtype else b.cast(given, dtype=y.dtype)
    return b.reshape(given, shape=(-1, *[1] * (len(y.shape) - 1 - v["axis"]))) if given.shape else given


def _emit_affine(b: Any, y: Any, v: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    y = y if v["gain"] < 0 else b.mul(y, _along(b, y, v, "gain", inputs))
    return y if v["offset"] < 0 else b.add(y, _along(b, y, v, "offset", inputs))


def _emit_texture(b: Any, y: Any, v: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    n, c, h, w = y.shape
    y = b.broadcast_to(b.reshape(y, shape=(n, c, h, 1, w, 1)), shape=(n, c, h, v["height"], w, v["width"]))
    return b.reshape(y, shape=(n, c, h * v["height"], w * v["width"]))


def _emit_activation(b: Any, y: Any, v: Mapping[str, Any], inputs: Sequence[Any]) -> Any:
    neuron = NEURONS[v["mode"]]
    return b.apply(neuron.op, y, **neuron.attrs(v["alpha"], v["beta"]))


_EMIT: Mapping[str, Callable[[Any, Any, Mapping[str, Any], Sequence[Any]], Any]] = {
    "kernel_scale": lambda b, y, v, inputs: b.mul(y, _along(b, y, v, "scale", inputs)),
    "texture": _emit_texture,
    "broadcast": lambda b, y, v, inputs: b.broadcast_to(y, shape=v["shape"]),
    "pre_activation": _emit_activation,
    "gain_offset": _emit_affine,
    "post_activation": _emit_activation,
    "transpose": lambda b, y, v, inputs: b.transpose(y, perm=v["perm"]),
}


def chain_ref(
    y: Array,
    slots: Sequence[EpilogueSlot],
    inputs: Sequence[Array | None],
    rounds: Sequence[str],
    store: np.dtype[Any],
    function: Callable[..., Array],
) -> Array:
    """Computes the chain in fp64. function(mode, y, alpha, beta): computes an activation."""

    def point(name: str, y: Array) -> Array:
        return y.astype(store).astype(np.float64) if name in rounds else y

    def along(name: str) -> Array:
        given = np.asarray(inputs[v[name]], np.float64)
        return given.reshape([-1 if i == v["axis"] else 1 for i in range(y.ndim)]) if given.ndim else given

    y = point("accumulate", y)
    for s in slots:
        v = dict(s.attributes)
        match s.op:
            case "kernel_scale":
                y = y * along("scale")
            case "texture":
                y = y.repeat(v["height"], 2).repeat(v["width"], 3)
            case "broadcast":
                y = np.broadcast_to(y, v["shape"])
            case "gain_offset":
                y = y if v["gain"] < 0 else y * along("gain")
                y = y if v["offset"] < 0 else y + along("offset")
            case "transpose":
                y = np.transpose(y, v["perm"])
            case "quant":
                y, to = point("output", y), np.iinfo(v["dtype"])
                zero = 0 if v["zero"] < 0 else along("zero")
                return np.nan_to_num(np.clip(np.rint(np.float32(y) / along("scale")) + zero, to.min, to.max))
            case _:
                y = function(v["mode"], y, v["alpha"], v["beta"])
        y = point(s.op, y)
    return y
