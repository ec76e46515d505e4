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
