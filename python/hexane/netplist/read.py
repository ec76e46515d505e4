"""The computation of a netplist, as a graph of users' ops. Tensors are (batch, channels, height, width)."""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from hexane.dtypes import dtype
from hexane.errors import Error
from hexane.graph import Graph, Port, Value, constant, tensor_type
from hexane.graph import unique as leaf
from hexane.netplist.units import DTYPES, NetConstant, Netplist, Unit
from hexane.ops.rewriter import Rewriter

AXIS = {"Batch": 0, "Channel": 1, "Height": 2, "Width": 3}
NEURONS = {
    "ReLU": "relu",
    "SigmoidHighPrecision": "sigmoid",
    "GELU": "gelu",
    "Tanh": "tanh",
    "Sqrt": "sqrt",
    "Rsqrt": "rsqrt",
    "Exp2": "exp2",
    "Inv": "inverse",
    "Sin": "sin",
    "Cos": "cos",
    "Ceil": "ceil",
    "Floor": "floor",
    "RoundNearest": "round",
}
ELEMENTWISE = {
    "Add": "add",
    "Mult": "mul",
    "Sub": "sub",
    "Min": "minimum",
    "Max": "maximum",
    "GreaterThan": "greater",
    "LessThan": "less",
    "Equal": "equal",
    "NotEqual": "not_equal",
}
REDUCTIONS = {"Sum": "reduce_sum", "Avg": "reduce_mean", "Max": "reduce_max", "Min": "reduce_min"}


def as_graph(net: Netplist) -> Graph:
    """The graph that computes the netplist's outputs from its inputs. Inputs and constants keep their dtypes.

    Raises Error for a unit whose meaning no source gives, such as a random generator, for parameters whose meaning no
    source gives, and for tensors with a depth.
    """
    values: dict[str, Value] = {}
    for port in net.inputs:
        values[port.name] = leaf("input", port.name, tensor_type(dtype(DTYPES[port.type]), _four(port.dims, port.name)))
    for c in net.constants:
        values[c.name] = constant(_numbers(net, c))
    for unit in net.units:
        meaning = MEANINGS.get(unit.type)
        if meaning is None:
            raise Error(
                f"[netplist] {unit.name}: got a unit {unit.type}, need one whose meaning is known:"
                f" {', '.join(MEANINGS)}"
            )
        try:
            value = meaning(_Ops(net, unit), unit, *(values[b] for b in unit.bottoms))
        except Error as error:
            raise Error(f"[netplist] {unit.name}: {error}") from None
        if unit.channels not in (0, value.shape[1]):
            raise Error(f"[netplist] {unit.name}.OutputChannels: got {unit.channels}, need {value.shape[1]}")
        values[unit.name] = value
    inputs = tuple(values[p.name] for p in net.inputs)
    return Graph(inputs, tuple(Port(p.name, values[p.bottom]) for p in net.outputs))


def _four(dims: tuple[int, ...], where: str) -> tuple[int, ...]:
    n, c, d, h, w = dims
    if d != 1:
        raise Error(f"[netplist] {where}: got a depth of {d}, need 1")
    return n, c, h, w


def _numbers(net: Netplist, c: NetConstant) -> np.ndarray[Any, Any]:
    kind = np.dtype(dtype(DTYPES[c.type]).numpy)
    return np.frombuffer(net.weights, kind, prod(c.dims), c.offset).reshape(_four(c.dims, c.name)).copy()


class _Ops(Rewriter):
    """Builds users' ops that express a unit."""

    __slots__ = ("net", "unit")

    def __init__(self, net: Netplist, unit: Unit) -> None:
        super().__init__(unit.name)
        self.net = net
        self.unit = unit

    def scalar(self, key: str, default: float) -> float:
        """The number that a parameter stores as fp16 bits."""
        bits = self.unit.params.get(key)
        return default if bits is None else float(np.array(bits, np.uint16).view(np.float16))

    def number(self, value: float) -> Value:
        return constant(np.array(value, np.float16))

    def weights(self, shape: tuple[int, ...]) -> Value:
        """A constant of fp16 numbers, read at the unit's offset in the weights."""
        params, size = self.unit.params, 2 * prod(shape)
        offset = params.get("KernelOffset", 0)
        if params.get("KernelIndex", 0) != 0 or not 0 <= offset <= len(self.net.weights) - size:
            raise Error(
                f"KernelOffset: got {offset} for {size} bytes, need them within the weights, {len(self.net.weights)}"
                " bytes"
            )
        return constant(np.frombuffer(self.net.weights, np.float16, prod(shape), offset).reshape(shape).copy())


def _neuron(b: _Ops, u: Unit, x: Value) -> Value:
    match u.params["Type"]:
        case "ELU":
            return b.elu(x, alpha=b.scalar("EluAlpha", 1.0))
        case "LeakyReLU":
            if b.scalar("ReluOffset", 0.0):
                raise Error(f"ReluOffset: got {b.scalar('ReluOffset', 0.0)}, need 0: no source says what others do")
            return b.leaky_relu(x, alpha=b.scalar("ReluSlope", 0.0))
        case "ClampedReLU":
            return b.clip(x, alpha=b.scalar("ReluMin", 0.0), beta=b.scalar("ReluMax", 6.0))
        case "Log2":
            return b.mul(b.log(x), b.number(1 / np.log(2)))
        case kind:
            return b.apply(NEURONS[kind], x)


def _elementwise(b: _Ops, u: Unit, x: Value, y: Value | None = None) -> Value:
    kind = u.params["Type"]
    if (y is None) != (kind == "Abs"):
        raise Error(f"Bottom: got {len(u.bottoms)}, need {1 if kind == 'Abs' else 2} for {kind}")
    if y is None:
        return b.abs(x)
    if x.shape != y.shape:
        raise Error(f"Bottom: got {x.type} and {y.type}, need equal shapes: Broadcast makes them so")
    result = b.apply(ELEMENTWISE[kind], x, y)
    return result if result.dtype is x.dtype else b.cast(result, dtype=x.dtype)


def _scaled(b: _Ops, u: Unit, x: Value, y: Value) -> Value:
    result = _elementwise(b, u, x, y)
    # M1 ignores the scale of a product.
    return result if u.params["Type"] == "Mult" else b.mul(result, b.number(b.scalar("Scale", 1.0)))


def _gain_offset(b: _Ops, u: Unit, x: Value) -> Value:
    return b.add(b.mul(x, b.number(b.scalar("ScaleScalar", 1.0))), b.number(b.scalar("BiasScalar", 0.0)))


def _dynamic_goc(b: _Ops, u: Unit, x: Value, scale: Value, bias: Value | None = None) -> Value:
    if u.params.get("BiasOnly", False):
        return b.add(x, scale)
    if bias is None:
        raise Error("Bottom: got 2, need 3: x, scale and bias")
    return b.add(b.mul(x, scale), bias)


def _broadcast(b: _Ops, u: Unit, x: Value) -> Value:
    shape = list(x.shape)
    for info in u.params["BroadcastInfo"]:
        shape[_axis(info.get("Dimension"))] = _size(info.get("Size"))
    return b.broadcast_to(x, shape=tuple(shape))


def _axis(name: Any) -> int:
    if name not in AXIS:
        raise Error(f"got the dimension {name!r}, need one of: {', '.join(AXIS)}")
    return AXIS[name]


def _size(value: Any) -> int:
    if type(value) is not int or value < 1:
        raise Error(f"got the size {value!r}, need a positive integer")
    return value


def _pads(u: Unit) -> tuple[int, ...]:
    p = u.params
    if p.get("PadFront", 0) or p.get("PadBack", 0):
        raise Error("PadFront, PadBack: got a pad along the depth, need none")
    return tuple(p.get(key, 0) for key in ("PadTop", "PadBot", "PadLeft", "PadRight"))


def _strides(u: Unit) -> tuple[int, int]:
    """Returns the strides along height and width. A netplist stores the strides in the order
    width, height, optionally depth."""
    step = u.params["Step"]
    if len(step) not in (2, 3) or min(step) < 1:
        raise Error(f"Step: got {step}, need two or three positive integers")
    return step[1], step[0]


def _pool(b: _Ops, u: Unit, x: Value) -> Value:
    p = u.params
    window = {"kernel_sizes": (p["KernelHeight"], p["KernelWidth"]), "strides": _strides(u), "pad": _pads(u)}
    if p["Type"] == "Max":
        return b.max_pool(x, **window)
    return b.avg_pool(x, exclude_padding=p.get("AverageCountExcludePadding", False), **window)


def _conv(b: _Ops, u: Unit, x: Value) -> Value:
    p = u.params
    if p["Type"] != "Conv":
        raise Error(f"Type: got {p['Type']}, need Conv: the order of its weights is not known")
    if u.channels < 1 or x.shape[1] % u.groups or u.channels % u.groups:
        raise Error(f"NumGroups: got {u.groups} for {x.shape[1]} to {u.channels} channels, need a divisor of both")
    kernel = (p["KernelHeight"], p["KernelWidth"])
    if min(kernel) < 1:
        raise Error(f"KernelHeight, KernelWidth: got {kernel}, need positive integers")
    weight = b.weights((u.channels, x.shape[1] // u.groups, *kernel))
    return b.conv(x, weight, None, strides=_strides(u), pad=_pads(u), groups=u.groups)


def _matmul(b: _Ops, u: Unit, x: Value, y: Value) -> Value:
    """Matrix rows lie along the channels, columns along the width: (b, m, h, k) times (b, k, h, n) is (b, m, h, n)."""
    swap = (0, 2, 1, 3)
    return b.transpose(b.matmul(b.transpose(x, perm=swap), b.transpose(y, perm=swap)), perm=swap)


def _attention(
    b: _Ops, u: Unit, query: Value, key: Value, value: Value, scale: Value, mask: Value | None = None
) -> Value:
    """Positions lie along the channels of the operands, heads along the height, and features along the width."""
    if not u.params["SubtractMax"]:
        raise Error("SubtractMax: got False, need True: the engine gives wrong numbers otherwise")
    if scale.node.op != "const" or prod(scale.shape) != 1:
        raise Error(f"Bottom: got {scale.type} as the scale, need a constant of one element")
    swap = (0, 2, 1, 3)
    q, k, v = (b.transpose(t, perm=swap) for t in (query, key, value))
    by = float(np.asarray(scale.node.data).reshape(()))
    m = None if mask is None else b.transpose(mask, perm=swap)
    return b.transpose(b.scaled_dot_product_attention(q, k, v, m, scale=by), perm=swap)


def _view(b: _Ops, u: Unit, x: Value) -> Value:
    p, axis = u.params, _axis(u.params["Dimension"])
    begin, step, size = p["Offset"], p.get("Step", 1), p["Size"]
    if begin < 0 or step < 1 or size < 1 or begin + (size - 1) * step >= x.shape[axis]:
        raise Error(f"got {size} elements from {begin} by {step}, need them within {x.shape[axis]}")
    starts, ends, steps = [0] * 4, list(x.shape), [1] * 4
    starts[axis], ends[axis], steps[axis] = begin, begin + (size - 1) * step + 1, step
    return b.slice_by_index(x, begin=tuple(starts), end=tuple(ends), stride=tuple(steps))


def _reshape(b: _Ops, u: Unit, x: Value) -> Value:
    p = u.params
    dims = (
        p["ReshapedBatch"],
        p["ReshapedChannel"],
        p.get("ReshapedDepth", 1),
        p["ReshapedHeight"],
        p["ReshapedWidth"],
    )
    return b.reshape(x, shape=_four(dims, u.name))


def _transpose(b: _Ops, u: Unit, x: Value) -> Value:
    """Each pair in TransposeDimensions maps an axis of x to an axis of the result. All other axes stay."""
    perm = list(range(4))
    for pair in u.params["TransposeDimensions"]:
        perm[_axis(pair.get("TransposeDestinationDimension"))] = _axis(pair.get("TransposeSourceDimension"))
    if sorted(perm) != [0, 1, 2, 3]:
        raise Error(f"TransposeDimensions: got the axes {perm}, need each once")
    return b.transpose(x, perm=tuple(perm))


def _tile(b: _Ops, u: Unit, x: Value) -> Value:
    reps = [1] * 4
    for name, factor in u.params.items():
        reps[_axis(name)] = _size(factor)
    return b.tile(x, reps=tuple(reps))


def _shuffle(op: str, attr: str) -> Callable[[_Ops, Unit, Value], Value]:
    def shuffled(b: _Ops, u: Unit, x: Value) -> Value:
        p = u.params
        if p["FactorX"] != p["FactorY"] or p.get("FactorZ", 1) != 1:
            raise Error(f"got the factors {dict(p)}, need X and Y equal and Z of 1")
        return b.apply(op, x, **{attr: _size(p["FactorX"])})

    return shuffled


def _local_response(b: _Ops, u: Unit, x: Value) -> Value:
    given = {
        name: b.scalar(key, value)
        for name, key, value in (("alpha", "Alpha", 0.0), ("beta", "Beta", 0.75), ("k", "K", 1.0))
    }
    return b.local_response_norm(x, size=u.params["KernelChannel"], axis=1, **given)


MEANINGS: Mapping[str, Callable[..., Value]] = {
    "Neuron": _neuron,
    "ElementWise": _elementwise,
    "ScaledElementWise": _scaled,
    "GOC": _gain_offset,
    "DynamicGOC": _dynamic_goc,
    "Broadcast": _broadcast,
    "Softmax": lambda b, u, x: b.softmax(x, axis=_axis(u.params["Dimension"])),
    "Pooling": _pool,
    "Reduction": lambda b, u, x: b.apply(
        REDUCTIONS[u.params["Type"]], x, axes=tuple(map(_axis, u.params["Dimension"])), keep_dims=True
    ),
    "LocalResponseNormalization": _local_response,
    "Conv": _conv,
    "MatrixMultiplication": _matmul,
    "SDPA": _attention,
    "InputView": _view,
    "Concat": lambda b, u, *xs: b.concat(*xs, axis=_axis(u.params["Dimension"])),
    "Reshape": _reshape,
    "Transpose": _transpose,
    "Tile": _tile,
    "PixelShuffle": _shuffle("pixel_shuffle", "upscale_factor"),
    "PixelUnshuffle": _shuffle("pixel_unshuffle", "downscale_factor"),
    "ChannelToSpace": _shuffle("depth_to_space", "block_size"),
    "SpaceToChannel": _shuffle("space_to_depth", "block_size"),
}
