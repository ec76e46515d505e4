"""Image inputs: a port of pixels from 0 to 255, and the program's first ops on them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hexane.dtypes import FP32
from hexane.errors import Error
from hexane.graph import Graph, TensorType, Value, constant, unique
from hexane.importers.coreml.description import COLORS
from hexane.ops import OPS, apply

CHANNELS = {"rgb": 3, "bgr": 3, "gray": 1}
FORM = "rgb,scale=1/255,bias=-0.5:-0.5:-0.5"
_NUMBER_OF = {"rgb": 20, "bgr": 30, "gray": 10}
assert all(number in COLORS for number in _NUMBER_OF.values())


@dataclass(frozen=True, slots=True)
class Image:
    """The preprocessing of an image: pixels * scale + bias. scale and bias are one number for all channels, or one per
    channel in the color's order."""

    color: str = "rgb"
    scale: tuple[float, ...] = (1.0,)
    bias: tuple[float, ...] = (0.0,)

    @property
    def color_space(self) -> int:
        """Core ML's number for the color space."""
        return _NUMBER_OF[self.color]


def parse_image(text: str) -> Image:
    """Parses a text such as "rgb,scale=1/255,bias=-0.5:-0.5:-0.5". Raises Error for any other form."""
    color, *parts = text.split(",")
    fields: dict[str, tuple[float, ...]] = {}
    for part in parts:
        name, _, value = part.partition("=")
        try:
            numbers = tuple(_number(one) for one in value.split(":"))
        except (ValueError, ZeroDivisionError):
            numbers = ()
        if name not in ("scale", "bias") or name in fields or not numbers or not np.isfinite(numbers).all():
            raise Error(f"[emit] image: got {part!r}, need scale and bias as in {FORM!r}")
        fields[name] = numbers
    if color not in CHANNELS:
        raise Error(f"[emit] image: got the color {color!r}, need one of {', '.join(CHANNELS)}, as in {FORM!r}")
    return Image(color, **fields)


def _number(text: str) -> float:
    above, slash, below = text.partition("/")
    return float(above) / float(below) if slash else float(above)


def with_images(graph: Graph, images: Mapping[str, Image]) -> Graph:
    """graph (%x: fp16[1, 3, 8, 8])  ->  graph (%x: fp32[1, 3, 8, 8]) with cast(add(mul(%x, scale), bias)) : fp16

    Scale and bias are applied in fp32, also for networks in another dtype. Raises Error for an unknown input, and for
    one without the shape of an image.
    """
    known = {str(v.node.attrs["name"]): v for v in graph.inputs}
    ports: dict[Value, Value] = {}
    inside: dict[Value, Value] = {}
    for name, image in images.items():
        if name not in known:
            raise Error(f"[emit] image {name!r}: got no such input, need one of {', '.join(known)}")
        old, count = known[name], CHANNELS[image.color]
        if len(old.shape) != 4 or old.shape[:2] != (1, count):
            raise Error(f"[emit] image {name!r}: got the input {old.type}, need (1, {count}, height, width)")
        for what, numbers in (("scale", image.scale), ("bias", image.bias)):
            if len(numbers) not in (1, count):
                raise Error(f"[emit] image {name!r}: {what}: got {len(numbers)} numbers, need 1 or {count}")
        port = unique("input", name, TensorType(FP32, old.shape), sources=old.node.sources)
        ports[old] = port
        scaled = _applied("mul", port, image.scale, 1.0)
        scaled = _applied("add", scaled, image.bias, 0.0)
        inside[old] = (
            scaled if scaled.dtype is old.dtype else apply(OPS["cast"], [scaled], {"dtype": old.dtype}, (name,))[0]
        )
    if not ports:
        return graph
    changed = graph.rewrite(lambda *_: None, became=dict(inside))
    outputs = tuple(p._replace(value=inside.get(p.value, p.value)) for p in changed.outputs)
    return replace(changed, inputs=tuple(ports.get(v, v) for v in graph.inputs), outputs=outputs)


def _applied(op: str, value: Value, numbers: tuple[float, ...], neutral: float) -> Value:
    if all(number == neutral for number in numbers):
        return value
    shape = () if len(numbers) == 1 else (1, -1, 1, 1)
    operand = constant(np.array(numbers, np.float32).reshape(shape), value.node.sources)
    return apply(OPS[op], [value, operand], {}, value.node.sources)[0]
