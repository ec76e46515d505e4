"""Writes a segment of the engine as a netplist: a unit, or a few, for each layer.

Layers come from `lower`, before fusion: the compiler that reads the netplist fuses by itself. Tensors with fewer than
four axes get axes of extent 1 in front.
"""

from collections.abc import Callable, Mapping
from math import log2, prod
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.graph.names import free_name
from hexane.netplist.units import DTYPES, Dims, NetConstant, Netplist, NetPort, Unit
from hexane.ops.recording import check, recorded

NAMES = {known: name for name, known in DTYPES.items()}
AXES = ("Batch", "Channel", "Height", "Width")
ALIGNMENT = 64
ELEMENTWISE = {"add": "Add", "sub": "Sub", "mul": "Mult", "max": "Max", "min": "Min"}
NEURONS = {
    "relu": "ReLU",
    "sigmoid_high_precision": "SigmoidHighPrecision",
    "gelu": "GELU",
    "tanh": "Tanh",
    "sqrt": "Sqrt",
    "rsqrt": "Rsqrt",
    "exp2": "Exp2",
    "inv": "Inv",
    "sin": "Sin",
    "cos": "Cos",
    "floor": "Floor",
    "ceil": "Ceil",
    "round_nearest": "RoundNearest",
}
REDUCTIONS = {"sum": "Sum", "avg": "Avg", "max": "Max", "min": "Min"}
SHUFFLES = {
    "pixel_shuffle": ("PixelShuffle", "upscale_factor"),
    "pixel_unshuffle": ("PixelUnshuffle", "downscale_factor"),
    "space_to_channel": ("SpaceToChannel", "block_size"),
}


def write_netplist(layers: Graph, name: str = "network") -> Netplist:
    """The netplist of a graph of layers, whose ports have the dtypes of DTYPES.

    Raises Error for a layer that no unit is known for, and for tensors of more than four axes.
    """
    w = _Writer()
    ports = tuple(NetPort(v.node.attrs["name"], _kind(v), w.dims(v)) for v in layers.inputs)
    taken = {p.name for p in ports} | {p.name for p in layers.outputs}
    for value, port in zip(layers.inputs, ports, strict=True):
        w.names[value] = port.name
    w.taken = taken
    for node in layers.nodes:
        if node.op in ("input", "const"):
            continue
        written = UNITS.get(node.op.removeprefix("anec.")) if node.op.startswith("anec.") else None
        if written is None:
            raise Error(f"[netplist] {node.where}: got the layer {node.op}, which no unit of a netplist is known for")
        view = recorded(node)
        w.names[node.values[0]] = written(w, view, *node.inputs)
        check(view, "unit")
    outputs = tuple(NetPort(p.name, _kind(p.value), bottom=w.name(p.value)) for p in layers.outputs)
    return Netplist(name, ports, tuple(w.units), tuple(w.constants), outputs, bytes(w.weights))


def _kind(value: Value) -> str:
    kind = NAMES.get(value.dtype.name)
    if kind is None:
        raise Error(f"[netplist] {value.node.where}: got {value.type}, need one of: {', '.join(NAMES)}")
    return kind


def _bits(value: float) -> int:
    return int(np.array(value, np.float16).view(np.uint16))


class _Writer:
    """The units written so far, the names of values, and the weights."""

    def __init__(self) -> None:
        self.units: list[Unit] = []
        self.constants: list[NetConstant] = []
        self.weights = bytearray()
        self.names: dict[Value, str] = {}
        self.taken: set[str] = set()

    def dims(self, value: Value) -> Dims:
        n, c, h, w = self.four(value)
        return n, c, 1, h, w

    def four(self, value: Value) -> tuple[int, int, int, int]:
        if len(value.shape) > 4:
            raise Error(f"[netplist] {value.node.where}: got {value.type}, need at most four axes")
        n, c, h, w = (1,) * (4 - len(value.shape)) + value.shape
        return n, c, h, w

    def axis(self, value: Value, axis: int) -> str:
        return AXES[axis % len(value.shape) + 4 - len(value.shape)]

    def name(self, value: Value) -> str:
        """The name of the unit, input or constant that has the value."""
        if value not in self.names:
            if value.node.op != "const":
                raise Error(f"[netplist] {value.node.where}: got a {value.node.op}, need inputs and constants alone")
            self.names[value] = self.constant(np.asarray(value.node.data), self.dims(value), _kind(value))
        return self.names[value]

    def place(self, data: np.ndarray[Any, Any]) -> int:
        """The offset of these bytes in the weights."""
        self.weights += bytes(-len(self.weights) % ALIGNMENT)
        offset = len(self.weights)
        self.weights += data.tobytes()
        return offset

    def constant(self, data: np.ndarray[Any, Any], dims: Dims, kind: str) -> str:
        name = self.fresh("const")
        self.constants.append(NetConstant(name, kind, self.place(data), dims))
        return name

    def fresh(self, wanted: str) -> str:
        name = free_name(wanted, self.taken)
        self.taken.add(name)
        return name

    def unit(self, type: str, channels: int, *bottoms: str, groups: int = 1, **params: Any) -> str:
        name = self.fresh(type.lower())
        self.units.append(Unit(name, type, bottoms, params, "Float16", channels, groups))
        return name

    def swapped(self, value: str, channels: int, a: str, b: str) -> str:
        """Adds a unit that exchanges two axes of the value. channels: the number of channels of the result."""
        pairs = [{"TransposeSourceDimension": s, "TransposeDestinationDimension": d} for s, d in ((a, b), (b, a))]
        return self.unit("Transpose", channels, value, TransposeDimensions=pairs)

    def spread(self, value: str, have: tuple[int, ...], need: tuple[int, ...]) -> str:
        """The value broadcast to a shape."""
        info = [{"Dimension": a, "Size": n} for a, own, n in zip(AXES, have, need, strict=True) if own != n]
        return self.unit("Broadcast", need[1], value, BroadcastInfo=info) if info else value


def _elementwise(type: str) -> Callable[..., str]:
    def written(w: _Writer, node: Node, x: Value, y: Value) -> str:
        _plain(node)
        need = w.four(node.values[0])
        if type in ("Add", "Mult") and (number := _number(y)) is not None and w.four(x) == need:
            gain = (
                {"ScaleScalar": _bits(1), "BiasScalar": number}
                if type == "Add"
                else {"ScaleScalar": number, "BiasScalar": 0}
            )
            return w.unit("GOC", need[1], w.name(x), **gain)
        x_name, y_name = (w.spread(w.name(v), w.four(v), need) for v in (x, y))
        return w.unit("ElementWise", need[1], x_name, y_name, Type=type)

    return written


def _number(value: Value) -> int | None:
    return _bits(np.asarray(value.node.data).item()) if value.node.op == "const" and prod(value.shape) == 1 else None


def _division(w: _Writer, node: Node, x: Value, y: Value) -> str:
    """x / y as x * (1 / y), which is how the engine divides."""
    _plain(node)
    need = w.four(node.values[0])
    inverse = w.unit("Neuron", w.four(y)[1], w.name(y), Type="Inv")
    x_name, y_name = w.spread(w.name(x), w.four(x), need), w.spread(inverse, w.four(y), need)
    return w.unit("ElementWise", need[1], x_name, y_name, Type="Mult")


def _plain(node: Node) -> None:
    if node.attrs.get("epilogue"):
        raise Error(f"[netplist] {node.where}: got a fused layer, need one before fusion")


def _neuron(w: _Writer, node: Node, x: Value) -> str:
    _plain(node)
    mode, alpha, beta = (node.attrs[key] for key in ("mode", "alpha", "beta"))
    name, channels = w.name(x), w.four(x)[1]
    match mode:
        case "abs":
            return w.unit("ElementWise", channels, name, Type="Abs")
        case "elu":
            return w.unit("Neuron", channels, name, Type="ELU", EluAlpha=_bits(alpha))
        case "leaky_relu":
            return w.unit("Neuron", channels, name, Type="LeakyReLU", ReluSlope=_bits(alpha), ReluOffset=0)
        case "clamped_relu":
            return w.unit("Neuron", channels, name, Type="ClampedReLU", ReluMin=_bits(alpha), ReluMax=_bits(beta))
        case "swish":
            sigmoid = w.unit("Neuron", channels, name, Type="SigmoidHighPrecision")
            return w.unit("ElementWise", channels, name, sigmoid, Type="Mult")
        case "sqr":
            return w.unit("ElementWise", channels, name, name, Type="Mult")
        case "exp":
            scaled = w.unit("GOC", channels, name, ScaleScalar=_bits(log2(np.e)), BiasScalar=0)
            return w.unit("Neuron", channels, scaled, Type="Exp2")
    if mode not in NEURONS:
        raise Error(f"[netplist] {node.where}: got the activation {mode}, which no netplist is known to have")
    return w.unit("Neuron", channels, name, Type=NEURONS[mode])


def _pads(pad: tuple[int, ...]) -> dict[str, int]:
    """The padding parameters: begin and end of height and width, and 0 for the depth."""
    return dict(zip(("PadTop", "PadBot", "PadLeft", "PadRight", "PadFront", "PadBack"), (*pad, 0, 0), strict=True))


def _conv(w: _Writer, node: Node, x: Value, weight: Value, lut: Value | None, *operands: Value | None) -> str:
    """The bias, which is the offset in the layer's epilogue, becomes an addition after the convolution."""
    a = node.attrs
    if weight.node.op != "const" or weight.dtype.name != "fp16" or lut is not None or max(a["dilation_rates"]) > 1:
        raise Error(
            f"[netplist] {node.where}: got {weight.type} of {weight.node.op}, need constants in fp16 without dilation"
        )
    height, width = a["kernel_sizes"]
    result = w.unit(
        "Conv",
        weight.shape[0],
        w.name(x),
        groups=a["groups"],
        Type="Conv",
        KernelMode="Dense",
        KernelType="Float16",
        KernelIndex=0,
        KernelOffset=w.place(np.asarray(weight.node.data)),
        KernelGroupReuse=False,
        KernelMutable=False,
        KernelWidth=width,
        KernelHeight=height,
        KernelDepth=1,
        **_pads(a["explicit_padding"]),
        PaddingMode="Zero",
        Step=[a["strides"][1], a["strides"][0], 1],
    )
    for slot in a["epilogue"]:
        values = dict(slot.attributes)
        if slot.op != "gain_offset" or values.get("gain", -1) >= 0:
            raise Error(
                f"[netplist] {node.where}: got the slot {slot.op}, need an offset alone: a convolution before fusion"
            )
        offset = node.inputs[values["offset"]]
        assert offset is not None
        have, need = (1, prod(offset.shape), 1, 1), w.four(node.values[0])
        bias = w.constant(np.asarray(offset.node.data), (have[0], have[1], 1, 1, 1), _kind(offset))
        result = w.unit("ElementWise", need[1], result, w.spread(bias, have, need), Type="Add")
    return result


def _linear(w: _Writer, node: Node, x: Value, weight: Value, lut: Value | None) -> str:
    """Exchanges channels and width, writes a 1x1 convolution, and exchanges them back."""
    _plain(node)
    if weight.node.op != "const" or weight.dtype.name != "fp16" or lut is not None:
        raise Error(f"[netplist] {node.where}: got {weight.type} of {weight.node.op}, need constants in fp16")
    channels, width = w.four(x)[1], weight.shape[0]
    swapped = w.swapped(w.name(x), weight.shape[1], "Channel", "Width")
    place = w.place(np.asarray(weight.node.data))
    kernel = {"KernelWidth": 1, "KernelHeight": 1, "KernelDepth": 1, "KernelIndex": 0, "KernelOffset": place}
    product = w.unit(
        "Conv", width, swapped, Type="Conv", KernelMode="Dense", KernelType="Float16", Step=[1, 1, 1], **kernel
    )
    return w.swapped(product, channels, "Channel", "Width")


def _matmul(w: _Writer, node: Node, x: Value, y: Value) -> str:
    """Exchanges channels and height: the engine takes matrix rows along the channels, and the matrices of a batch along
    the height."""
    _plain(node)
    a, need = node.attrs, w.four(node.values[0])
    sides = []
    for value, turn in ((x, a["transpose_lhs"]), (y, a["transpose_rhs"])):
        shape, name = w.four(value), w.name(value)
        if turn:
            name, shape = w.swapped(name, shape[1], "Height", "Width"), (*shape[:2], shape[3], shape[2])
        name = w.spread(name, shape, (*need[:2], *shape[2:]))
        sides.append(w.swapped(name, shape[2], "Channel", "Height"))
    product = w.unit("MatrixMultiplication", need[2], *sides)
    return w.swapped(product, need[1], "Channel", "Height")


def _attention(w: _Writer, node: Node, query: Value, key: Value, value: Value, mask: Value | None) -> str:
    """The engine takes positions along the channels and heads along the height. The scale is a constant."""
    need = w.four(node.values[0])
    sides = []
    for v in (query, key, value, mask):
        if v is not None:
            shape = w.four(v)
            sides.append(w.swapped(w.name(v), shape[2], "Channel", "Height"))
    scale = w.constant(np.array(node.attrs["scale"], np.float16), (1, 1, 1, 1, 1), "Float16")
    result = w.unit("SDPA", need[2], *sides[:3], scale, *sides[3:], SubtractMax=True)
    return w.swapped(result, need[1], "Channel", "Height")


def _pool(w: _Writer, node: Node, x: Value) -> str:
    a = node.attrs
    _plain(node)
    if a["kind"] not in ("max", "avg") or max(a["dilations"]) > 1 or a["ceil_mode"] or len(x.shape) != 4:
        raise Error(
            f"[netplist] {node.where}: got a pool that no netplist is known to have, need max or avg of two axes"
        )
    rest = {"AverageCountExcludePadding": a["exclude_padding"]} if a["kind"] == "avg" else {}
    return w.unit(
        "Pooling",
        w.four(x)[1],
        w.name(x),
        Type=a["kind"].capitalize(),
        KernelWidth=a["kernel_sizes"][1],
        KernelHeight=a["kernel_sizes"][0],
        KernelDepth=1,
        Step=[a["strides"][1], a["strides"][0], 1],
        PaddingMode="Negative" if a["kind"] == "max" else "Zero",
        **_pads(a["pad"]),
        **rest,
    )


def _reduction(w: _Writer, node: Node, x: Value) -> str:
    a = node.attrs
    _plain(node)
    if a["kind"] not in REDUCTIONS or a["operand"] != "none" or not a["keep_dims"]:
        raise Error(f"[netplist] {node.where}: got a reduction by {a['kind']}, need one of: {', '.join(REDUCTIONS)}")
    need = w.four(node.values[0])
    return w.unit(
        "Reduction", need[1], w.name(x), Dimension=[w.axis(x, i) for i in a["axes"]], Type=REDUCTIONS[a["kind"]]
    )


def _transpose(w: _Writer, node: Node, x: Value) -> str:
    perm = node.attrs["perm"]
    pairs = [
        {"TransposeSourceDimension": w.axis(x, source), "TransposeDestinationDimension": w.axis(x, i)}
        for i, source in enumerate(perm)
        if i != source
    ]
    return w.unit("Transpose", w.four(node.values[0])[1], w.name(x), TransposeDimensions=pairs)


def _reshape(w: _Writer, node: Node, x: Value) -> str:
    n, c, h, width = w.four(node.values[0])
    return w.unit("Reshape", c, w.name(x), ReshapedBatch=n, ReshapedChannel=c, ReshapedHeight=h, ReshapedWidth=width)


def _view(w: _Writer, node: Node, x: Value) -> str:
    a = node.attrs
    params = {"Dimension": w.axis(x, a["axis"]), "Offset": a["offset"], "Size": a["size"], "Step": a["step"]}
    return w.unit("InputView", w.four(node.values[0])[1], w.name(x), **params)


def _tile(w: _Writer, node: Node, x: Value) -> str:
    factors = {w.axis(x, i): n for i, n in enumerate(node.attrs["reps"]) if n != 1}
    return w.unit("Tile", w.four(node.values[0])[1], w.name(x), **factors)


def _shuffle(type: str, attr: str) -> Callable[..., str]:
    def written(w: _Writer, node: Node, x: Value) -> str:
        factor = node.attrs[attr]
        return w.unit(type, w.four(node.values[0])[1], w.name(x), FactorX=factor, FactorY=factor, FactorZ=1)

    return written


UNITS: Mapping[str, Callable[..., str]] = {
    **{name: _elementwise(type) for name, type in ELEMENTWISE.items()},
    **{name: _shuffle(*given) for name, given in SHUFFLES.items()},
    "div": _division,
    "neuron": _neuron,
    "convolution": _conv,
    "linear": _linear,
    "matmul": _matmul,
    "sdpa": _attention,
    "pool": _pool,
    "reduction": _reduction,
    "softmax": lambda w, node, x: w.unit("Softmax", w.four(x)[1], w.name(x), Dimension=w.axis(x, node.attrs["axis"])),
    "transpose": _transpose,
    "reshape": _reshape,
    "flatten": _reshape,
    "broadcast": lambda w, node, x: w.spread(w.name(x), w.four(x), w.four(node.values[0])),
    "concat": lambda w, node, *xs: w.unit(
        "Concat", w.four(node.values[0])[1], *map(w.name, xs), Dimension=w.axis(node.values[0], node.attrs["axis"])
    ),
    "input_view": _view,
    "tile": _tile,
}
