"""The op record: everything Hexane knows about an op, in one place.

The record is the source of builder functions, type stub, checks, shape inference, kernel binding, ONNX import of plain
ops, docs and tests. A new op needs one record here, and unless it expands to other ops, one kernel with one table row.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from hexane.errors import Error
from hexane.graph import Node, TensorType
from hexane.ops.attributes import SLOTS, Attr
from hexane.ops.gradients.rule import Rule
from hexane.ops.shape_rules import Shape
from hexane.targets.floors import layer_unit, mil_ops, op_unit

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
    """An example of an op for the tests: random inputs of these shapes and dtypes, or the given arrays."""

    shapes: tuple[Shape | None, ...] = ()
    attrs: Mapping[str, Any] | None = None
    dtypes: tuple[str, ...] = ("fp32",)  # The last dtype repeats.
    arrays: tuple[Any, ...] = ()  # Given arrays replace `shapes`.
    low: float = -2.0
    high: float = 2.0


class LayerCall(NamedTuple):
    """A layer of the engine as an argument of its rules: the kind of layer, its computed operands, its attributes by
    the names in the rules' files, and its result."""

    layer: str
    types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    output: TensorType | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """The record of an op. inputs: names, such as "x" for a required one, "bias?" for an optional one, "values*" for
    one or more.

    level: "user" for ops of users, "kernel" for ops that only kernels have, "engine" for layers of the Neural Engine
    (anec.*). A user's op serves the kernel level too if its kernel needs no other attributes, see kernel_form. layer:
    the kind of netplist layer of an engine's op, whose rules check it.

    shape(*input_shapes, **attrs) -> the output's shape, or a list for several outputs. dtype(*input_dtypes, **attrs) ->
    the output's dtype, or a list if they differ; it raises Error for unsupported dtypes. check: functions (types,
    attrs) that raise Error. ref(*arrays, **attrs): the definition, in NumPy. canonical(types, attrs) -> the canonical
    attributes (non-negative axes, pads on every side). kernel: name of the CPU kernel. expand(b, *values, **attrs):
    expands to other ops. An op with a kernel is expanded only if the kernel supports neither its dtypes nor wider ones.
    view: the result is the first input's memory with other strides, which NumPy computes in ref. layout: how the op
    changes to channels last, see passes/layout/channels_last.py. epilogue: the kernel form has epilogue slots as an
    attribute, and their operands after the named inputs; engine layers have slots of another kind, see ops/slots.py.

    Traits are properties that passes query in place of an op's name. A pass ignores an op without the trait.
    elementwise: each element of the result depends on one element of each input, broadcast. commutative: the two inputs
    may be exchanged. moves: the inputs whose elements make up the result, bit for bit. The other inputs and the
    attributes alone decide the permutation. updates: for each output the input that it replaces elementwise, in whose
    memory the kernel may write it. fills: the result also has elements that an attribute or the op itself defines.
    picks: the result consists of elements of the first input, chosen by order. product(scale, weight's
    shape, **attrs): for an op that sums products of its first two inputs, x and weight. product returns the scale of
    each output channel (see `match.channel_axis`), reshaped to broadcast over the weight. padding: the value of the
    elements that the attribute `pad` adds around x. not_negative: no element of a float result is below 0. results:
    attributes whose values may occur in the result. lengths: how valid lengths are propagated, see
    ops/valid_lengths.py.

    ragged(attrs) -> for each output, the axis whose valid extent is the last output, or None. stored(array, **attrs):
    converts the result of ref and epilogue to the kernel's stored form; None: it has the output's dtype. onnx: ONNX ops
    with the same meaning and attribute names.

    grad(b, node, *gradients of the outputs) -> the gradients of the inputs, see ops/gradients/rule.py. An op with an
    expansion needs no rule, because its expansion is differentiated. expand_for_gradients: another expansion for
    gradients. no_grad: the reason why an op with float results has neither rule nor expansion. host: the reason why the
    engine does not run the op, although it could run the expansion. every_call: the op runs in every call, even if its
    operands are constants, because the result would take more memory.
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
        """True if the op's nodes have epilogue slots."""
        return self.epilogue and self.level != "user"

    @property
    def mil(self) -> tuple[str, ...]:
        """The MIL ops for this op, by targets/shared/floors.toml; () if MIL has none."""
        return mil_ops(self.name) or ()

    @property
    def unit(self) -> str:
        """The engine's unit that does the op's main work: mac, planar, transpose, texture or dma; "" for none."""
        return layer_unit(self.layer) if self.level == "engine" else op_unit(self.name)


def moved_inputs(op: Op, count: int) -> list[int]:
    """Returns the positions of the inputs in `moves`, among this many inputs."""
    names = [name.rstrip("?*") for name in op.inputs]
    return [i for i in range(count) if names[min(i, len(names) - 1)] in op.moves]


def kernel_form(op: Op) -> Op:
    """Returns the record with its kernel's attributes: `cpu.conv`, with epilogue slots, for `conv`."""
    if not op.epilogue:
        return op
    attrs = {**(op.attrs or {}), "epilogue": SLOTS}
    return replace(op, name=f"cpu.{op.name}", level="kernel", attrs=attrs, cases=(), onnx=())


def op_error(name: str, message: str) -> Error:
    return Error(f"[{name}] {message}")
