"""The op record: everything Hexane knows about an op, in one place.

Builder functions, the type stub, checks, shape inference, kernel binding, the ONNX import of plain ops, docs and tests
derive from it. Adding an op is one record here and, unless it expands into others, one kernel with one table row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hexane.errors import Error
from hexane.graph import Node, TensorType
from hexane.ops.attributes import SLOTS, Attr
from hexane.ops.gradients.rule import Rule
from hexane.ops.shape_rules import Shape
from hexane.targets.legality import layer_unit, mil_ops, op_unit

Level = Literal["user", "kernel", "engine"]
Lengths = Literal[
    "",
    "axes",
    "broadcast_to",
    "concat",
    "expand_dims",
    "gather",
    "gather_nd",
    "reduce",
    "reshape",
    "rows",
    "slice",
    "squeeze",
    "sum",
    "transpose",
]


@dataclass(frozen=True, slots=True)
class Case:
    """An example of an op, run by the tests: random inputs of these shapes and dtypes, or the given arrays."""

    shapes: tuple[Shape | None, ...] = ()
    attrs: Mapping[str, Any] | None = None
    dtypes: tuple[str, ...] = ("fp32",)  # the last one repeats
    arrays: tuple[Any, ...] = ()  # in place of shapes
    low: float = -2.0
    high: float = 2.0


class LayerCall(NamedTuple):
    """A layer of the engine as its rules see it: the kind of layer, its computed operands, its attributes by the names
    of the rules' files, and its result."""

    layer: str
    types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    output: TensorType | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """One op. `inputs` are names: "x" needed, "bias?" optional, "values*" one or more.

    level: "user" for what users write, "kernel" for what only kernels are told, "engine" for layers of the Neural
    Engine (anec.*); a user's op whose kernel needs to know no more than it says serves both of the first levels, see
    kernel_form. layer: which layer of a netplist an engine's op is, by whose rules it is checked.

    shape(*input_shapes, **attrs) -> the output's shape, or a list of shapes where there are several outputs.
    dtype(*input_dtypes, **attrs) -> the output's dtype (a list where they differ); it refuses dtypes that the op does
    not take. check: functions (types, attrs) that raise Error. ref(*arrays, **attrs): the meaning, in NumPy.
    canonical(types, attrs) -> attrs in their one form (axes counted from the front, pads on every side). kernel: name
    of the CPU kernel; expand(b, *values, **attrs) writes it as other ops: all of them, or, with a kernel, for dtypes
    that neither it nor a wider row of it takes. view: the result is the first input's memory under other strides (NumPy
    says which, through ref). layout: how the op moves to channels last, see passes/layout/channels_last.py. epilogue:
    its kernel takes epilogue slots, and their operands after the named inputs: an attribute of its kernel form; engine
    layers have slots of another kind, see ops/slots.py.

    Traits are what passes ask of an op in place of its name. They leave an op without the trait alone. elementwise:
    each element of the result depends on one element of each input, broadcast. commutative: the two inputs may change
    places. moves: the inputs whose elements are all that the result consists of, bit for bit. The other inputs and the
    attributes alone decide which one goes where. updates: for each output the input that it is the next version of,
    element by element, in whose memory the kernel may write it. fills: there are other elements, too, which an
    attribute or the op gives. picks: the result consists of elements of the first input, chosen by order.
    product(scale, weight's shape, **attrs): of an op that adds up products of its first two inputs, x and weight. Gives
    the scale of each output channel (see `match.channel_axis`) in a shape that broadcasts over the weight. padding: the
    value that the attribute `pad` puts around x. not_negative: no element of a float result is below 0. results:
    attributes that are values which the result may have. lengths: how valid lengths pass, see ops/valid_lengths.py.

    ragged(attrs) -> for each output, the axis along which only so much is valid as the last output says, or None.
    stored(array, **attrs): what ref and epilogue give, as the kernel stores it (None: the same, in the output's dtype).
    onnx: ONNX ops that mean exactly this, attributes by name.

    grad(b, node, *gradients of the outputs) -> the gradients of the inputs, see ops/gradients/rule.py. An op with an
    expansion needs none: its expansion is differentiated. expand_for_gradients: another expansion for that, like
    `expand`. no_grad: why an op with results of floats has neither. host: why the engine gets no such op, though it
    could compute the expansion. every_call: it is computed in every call, also where its operands are constants: the
    result would take more memory.
    """

    name: str
    doc: str
    inputs: tuple[str, ...]
    ref: Callable[..., Any]
    cases: tuple[Case, ...]
    attrs: Mapping[str, Attr] | None = None
    outputs: tuple[str, ...] = ("out",)
    shape: Callable[..., Any] = None  # type: ignore[assignment]
    dtype: Callable[..., Any] = None  # type: ignore[assignment]
    check: tuple[Callable[..., None], ...] = ()
    canonical: Callable[..., dict[str, Any]] | None = None
    kernel: str = ""
    kernel_attrs: Callable[..., dict[str, Any]] | None = None  # (types, attrs) -> fields of the kernel's struct
    expand: Callable[..., Any] | None = None
    view: bool = False
    layout: str = ""
    epilogue: bool = False
    elementwise: bool = False
    commutative: bool = False
    moves: tuple[str, ...] = ()
    fills: bool = False
    updates: tuple[str, ...] = ()
    picks: bool = False
    product: Callable[..., Any] | None = None
    padding: float | None = None
    not_negative: bool = False
    results: tuple[str, ...] = ()
    lengths: Lengths = ""
    ragged: Callable[[Mapping[str, Any]], tuple[int | None, ...]] | None = None
    stored: Callable[..., Any] | None = None
    onnx: tuple[str, ...] = ()
    grad: Rule | None = None
    expand_for_gradients: Callable[..., Any] | None = None
    no_grad: str = ""
    host: str = ""
    every_call: bool = False
    level: Level = "user"
    layer: str = ""
    call: Callable[[Node], LayerCall] | None = None

    @property
    def takes_slots(self) -> bool:
        """True if its nodes have epilogue slots."""
        return self.epilogue and self.level != "user"

    @property
    def mil(self) -> tuple[str, ...]:
        """The ops of MIL it is written as, by targets/shared/floors.toml; () where MIL has none for it."""
        return mil_ops(self.name) or ()

    @property
    def unit(self) -> str:
        """The unit of the engine that does its main work: mac, planar, transpose, texture or dma; "" for none."""
        return layer_unit(self.layer) if self.level == "engine" else op_unit(self.name)


def moved_inputs(op: Op, count: int) -> list[int]:
    """The positions, among this many inputs, of those in `moves`."""
    names = [name.rstrip("?*") for name in op.inputs]
    return [i for i in range(count) if names[min(i, len(names) - 1)] in op.moves]


def kernel_form(op: Op) -> Op:
    """The record with its kernel's attributes: `cpu.conv`, with epilogue slots, for `conv`. Most ops have only one
    record."""
    if not op.epilogue:
        return op
    attrs = {**(op.attrs or {}), "epilogue": SLOTS}
    return replace(op, name=f"cpu.{op.name}", level="kernel", attrs=attrs, cases=(), onnx=())


def op_error(name: str, message: str) -> Error:
    return Error(f"[{name}] {message}")
