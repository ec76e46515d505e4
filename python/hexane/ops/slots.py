"""The operations of an engine's layer on its accumulators before it stores them: a chain of typed slots in a fixed
order.

The per-channel scale of quantised weights comes first. The seven slots of a layer follow (guide ch22, listing 22.3): a
remap of pixels, a broadcast, an activation, gain and offset, an activation, a transpose, a quantisation. Each slot
occurs at most once:

    (gain_offset(gain=-1, offset=2, axis=1), post_activation(mode=relu, alpha=0.0, beta=0.0))

A number such as `offset=2` is the index of a node's input, -1 for none. The node's `rounds` are the points of the chain
where the value is rounded to the layer's dtype. Elsewhere the value has the accumulator's precision.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from hexane.dtypes import DTYPES, FP32
from hexane.errors import Error
from hexane.graph import EpilogueSlot, TensorType, tensor_type
from hexane.ops.neurons import NEURONS

Array = Any
SLOTS = ("texture", "broadcast", "pre_activation", "gain_offset", "post_activation", "transpose", "quant")
CHAIN = ("kernel_scale", *SLOTS)
POINTS = ("accumulate", "kernel_scale", "pre_activation", "gain_offset", "post_activation", "output")
FIELDS: Mapping[str, tuple[str, ...]] = {
    "kernel_scale": ("scale", "axis"),
    "texture": ("height", "width"),
    "broadcast": ("shape",),
    "pre_activation": ("mode", "alpha", "beta"),
    "gain_offset": ("gain", "offset", "axis"),
    "post_activation": ("mode", "alpha", "beta"),
    "transpose": ("perm",),
    "quant": ("dtype", "scale", "zero", "axis"),
}
OPERANDS: Mapping[str, tuple[str, ...]] = {
    "kernel_scale": ("scale",),
    "gain_offset": ("gain", "offset"),
    "quant": ("scale", "zero"),
}


def slot(kind: str, **values: Any) -> EpilogueSlot:
    return EpilogueSlot(kind, tuple((name, values[name]) for name in FIELDS[kind]))


def activation(kind: str, mode: str, alpha: float = 0.0, beta: float = 0.0) -> EpilogueSlot:
    return slot(kind, mode=mode, alpha=float(alpha), beta=float(beta))


def operands_of(s: EpilogueSlot) -> tuple[int, ...]:
    """Returns the indices of the node's inputs that a slot reads."""
    values = dict(s.attributes)
    return tuple(values[name] for name in OPERANDS.get(s.op, ()) if values[name] >= 0)


def moved(s: EpilogueSlot, place: Mapping[int, int]) -> EpilogueSlot:
    """Returns the slot with other input indices. place: from an old index to the new one."""
    names = OPERANDS.get(s.op, ())
    return EpilogueSlot(s.op, tuple((k, place.get(v, v) if k in names else v) for k, v in s.attributes))


# ---- types ----


def chain_type(start: TensorType, slots: Sequence[EpilogueSlot], operands: Sequence[Any], first: int) -> TensorType:
    """Returns the type of a chain's result. operands: the types of the node's inputs from index `first` on.

    Raises Error for a slot that is unknown, repeated or out of order, and for operands of wrong types.
    """
    kind, last = start, -1
    read: list[int] = []
    for s in slots:
        if s.op not in CHAIN or tuple(k for k, _ in s.attributes) != FIELDS[s.op] or s.operand is not None:
            raise Error(f"epilogue: got {s}, need one of {', '.join(CHAIN)} with its values")
        place = CHAIN.index(s.op)
        if place <= last:
            raise Error(f"epilogue: got {s.op} after {CHAIN[last]}, need each once, in the order {', '.join(CHAIN)}")
        last = place
        read += operands_of(s)
        if any(not first <= i < first + len(operands) for i in operands_of(s)):
            raise Error(f"epilogue: got {s}, need operands among the inputs {first} to {first + len(operands) - 1}")
        kind = _TYPES[s.op](kind, dict(s.attributes), lambda i: operands[i - first])
    if sorted(read) != list(range(first, first + len(operands))):
        raise Error(f"epilogue: got slots that read the inputs {read}, need each from {first} on once")
    return kind


Operand = Callable[[int], TensorType]


def _per_channel(name: str, kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    axis = values["axis"]
    if not 0 <= axis < max(kind.rank, 1):
        raise Error(f"epilogue: {name}: got the axis {axis}, need one of {kind}")
    for field in OPERANDS[name]:
        if values[field] >= 0:
            given = operand(values[field])
            if given.shape not in ((), kind.shape[axis : axis + 1]) or given.dtype.kind != "float":
                raise Error(f"epilogue: {name}: got {given}, need one float or {kind.shape[axis : axis + 1]}")
    return kind


def _texture(kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    if kind.rank != 4 or values["height"] < 1 or values["width"] < 1:
        raise Error(f"epilogue: texture: got {kind}, need an image and factors from 1 on")
    n, c, h, w = kind.shape
    return tensor_type(kind.dtype, (n, c, h * values["height"], w * values["width"]))


def _broadcast(kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    shape = tuple(values["shape"])
    if len(shape) != kind.rank or any(a not in (1, b) for a, b in zip(kind.shape, shape, strict=True)):
        raise Error(f"epilogue: broadcast: got {kind} to {shape}, need axes of extent 1 where they differ")
    return tensor_type(kind.dtype, shape)


def _activation(kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    if values["mode"] not in NEURONS:
        raise Error(f"epilogue: got the activation {values['mode']!r}, need one of {', '.join(NEURONS)}")
    return kind


def _transpose(kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    perm = tuple(values["perm"])
    if sorted(perm) != list(range(kind.rank)):
        raise Error(f"epilogue: transpose: got {perm} for {kind}, need each axis once")
    return tensor_type(kind.dtype, tuple(kind.shape[p] for p in perm))


def _quant(kind: TensorType, values: Mapping[str, Any], operand: Operand) -> TensorType:
    to = DTYPES.get(values["dtype"])
    if to is None or to.kind not in ("int", "uint") or values["scale"] < 0:
        raise Error(f"epilogue: quant: got {values['dtype']}, need a scale and a dtype of integers")
    for name, need in (("scale", FP32), ("zero", to)):
        if values[name] >= 0 and operand(values[name]).dtype is not need:
            raise Error(f"epilogue: quant: got the {name} {operand(values[name])}, need {need}")
    return tensor_type(to, kind.shape)


_TYPES: Mapping[str, Callable[[TensorType, Mapping[str, Any], Operand], TensorType]] = {
    "kernel_scale": lambda *args: _per_channel("kernel_scale", *args),
    "texture": _texture,
    "broadcast": _broadcast,
    "pre_activation": _activation,
    "gain_offset": lambda *args: _per_channel("gain_offset", *args),
    "post_activation": _activation,
    "transpose": _transpose,
    "quant": _quant,
}

# ---- expansion to other ops ----


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

# ---- reference in NumPy ----


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
