"""The op record: everything Hexane knows about an op, in one place.

Builder functions, the type stub, checks, shape inference, kernel binding, the ONNX import of plain ops, docs and tests
derive from it. Adding an op is one record here and, unless it expands into others, one kernel with one table row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal, NamedTuple

import numpy as np

from hexane.dtypes import BOOL, DType, dtype
from hexane.errors import Error
from hexane.graph import AttrValue, EpilogueSlot, Kind, Node, TensorType, Value, kind_of, tensor_type
from hexane.ops.gradients.rule import Rule
from hexane.ops.slots import chain_type
from hexane.targets.legality import layer_unit, mil_ops, op_unit

REQUIRED = object()
Shape = tuple[int, ...]
Level = Literal["user", "kernel", "engine"]
Lengths = Literal[
    "",
    "axes",
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
AttrKind = Literal["int", "float", "bool", "str", "ints", "floats", "texts", "dtype", "slots"]


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute: its kind, and its default unless it has to be given. `choices` are the strings allowed. typed: the
    types of the outputs say all that it says."""

    kind: AttrKind
    default: Any = REQUIRED
    choices: tuple[str, ...] = ()
    typed: bool = False


def integer(default: object = REQUIRED) -> Attr:
    return Attr("int", default)


def number(default: object = REQUIRED) -> Attr:
    return Attr("float", default)


def flag(default: object = REQUIRED) -> Attr:
    return Attr("bool", default)


def text(default: object = REQUIRED, choices: tuple[str, ...] = ()) -> Attr:
    return Attr("str", default, choices)


def texts(default: object = REQUIRED, choices: tuple[str, ...] = ()) -> Attr:
    return Attr("texts", default, choices)


def integers(default: object = REQUIRED) -> Attr:
    return Attr("ints", default)


def numbers(default: object = REQUIRED) -> Attr:
    return Attr("floats", default)


def element_type(default: object = REQUIRED) -> Attr:
    return Attr("dtype", default, typed=True)


def typed(attr: Attr) -> Attr:
    """Of which the types of the outputs say all."""
    return replace(attr, typed=True)


SLOTS = Attr("slots", ())
CHAIN_ATTRS = ("epilogue", "rounds")  # of what follows the op, which its own rules know nothing of


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
    """A layer of the engine as its rules see it: the kind of layer, its operands without those that are part of it, its
    attributes by the names of the rules' files, and its result."""

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
    dtype(*input_dtypes, **attrs) -> the output's dtype (a list where they differ); it refuses what the op does not
    take. check: functions (types, attrs) that raise Error. ref(*arrays, **attrs): the meaning, in NumPy.
    canonical(types, attrs) -> attrs in their one form (axes counted from the front, pads on every side). kernel: name
    of the CPU kernel; expand(b, *values, **attrs) writes it as other ops: all of them, or, beside a kernel, those of
    dtypes that neither it nor a wider row of it takes. view: the result is the first input's memory under other strides
    (NumPy says which, through ref). layout: how the op moves to channels last, see passes/layout/channels_last.py.
    epilogue: its kernel takes epilogue slots, and their operands after the named inputs: an attribute of its kernel
    form; those of engine layers are of another kind, see ops/slots.py.

    Traits are what passes ask of an op in place of its name. They do nothing with an op that does not say what they
    need. elementwise: each element of the result depends on one element of each input, broadcast. commutative: the two
    inputs may change places. moves: the inputs whose elements are all that the result consists of, bit for bit. The
    other inputs and the attributes alone decide which one goes where. updates: for each output the input that it is the
    next version of, element by element, in whose memory the kernel may write it. fills: there are other elements, too,
    which an attribute or the op gives. picks: the result consists of elements of the first input, chosen by order.
    product(scale, weight's shape, **attrs): of an op that adds up products of its first two inputs, x and weight. Gives
    the scale of each output channel (see `match.channel_axis`) in a shape that broadcasts over the weight. padding:
    what the attribute `pad` puts around x. not_negative: no element of a float result is below 0. results: attributes
    that are values which the result may have. lengths: how valid lengths pass, see ops/valid_lengths.py.

    ragged(attrs) -> for each output, the axis along which only so much is valid as the last output says, or None.
    stored(array, **attrs): what ref and epilogue give, as the kernel stores it (None: the same, in the output's dtype).
    onnx: ONNX ops that mean exactly this, attributes by name.

    grad(b, node, *gradients of the outputs) -> the gradients of the inputs, see ops/gradients/rule.py. An op with an
    expansion needs none: it is differentiated as what it expands to. no_grad: why an op with results of floats has
    neither. host: why the engine gets no such op, though it could compute what it expands to.
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
    kernel_attrs: Callable[..., dict[str, Any]] | None = None  # (types, attrs) -> what the kernel's struct holds
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
    no_grad: str = ""
    host: str = ""
    level: Level = "user"
    layer: str = ""
    call: Callable[[Node], LayerCall] | None = None

    @property
    def takes_slots(self) -> bool:
        """Whether nodes of it have epilogue slots."""
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
    """Which of so many inputs `moves` names."""
    names = [name.rstrip("?*") for name in op.inputs]
    return [i for i in range(count) if names[min(i, len(names) - 1)] in op.moves]


def kernel_form(op: Op) -> Op:
    """The record of what its kernel is told: that of `cpu.conv` for `conv`, which has epilogue slots. Most are told
    just what the user says."""
    if not op.epilogue:
        return op
    attrs = {**(op.attrs or {}), "epilogue": SLOTS}
    return replace(op, name=f"cpu.{op.name}", level="kernel", attrs=attrs, cases=(), onnx=())


def op_error(name: str, message: str) -> Error:
    return Error(f"[{name}] {message}")


# ---- shape rules ----


def same(x: Shape, *_: Shape | None, **__: Any) -> Shape:
    """The shape of the first input."""
    return x


def broadcast(*shapes: Shape | None, **_: Any) -> Shape:
    """NumPy broadcasting of all inputs."""
    present = [s for s in shapes if s is not None]
    rank = max(map(len, present))
    dims = [1] * rank
    for s in present:
        for i, d in enumerate(s, rank - len(s)):
            if dims[i] == 1:
                dims[i] = d
            elif d not in (1, dims[i]):
                raise Error(f"got the shapes {', '.join(map(str, present))}, need shapes that broadcast")
    return tuple(dims)


def axis_index(axis: int, rank: int) -> int:
    """`axis` counted from the front. Raises Error outside -rank .. rank-1."""
    if not -rank <= axis < rank:
        raise Error(f"axis: got {axis}, need {-rank}..{rank - 1} for rank {rank}")
    return axis % rank


def one_axis(types: Sequence[TensorType], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes with `axis` of the first input counted from the front."""
    return {**attrs, "axis": axis_index(attrs["axis"], types[0].rank)}


def axis_indices(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Sorted axes counted from the front. Raises Error for one out of range or named twice."""
    found = sorted(axis_index(a, rank) for a in axes)
    if len(set(found)) != len(found):
        raise Error(f"axes: got {tuple(axes)}, need each axis once")
    return tuple(found)


# ---- dtype rules ----


def same_dtype(*dtypes: DType | None, **_: Any) -> DType:
    """All inputs share one dtype, which is the output's."""
    present = [d for d in dtypes if d is not None]
    for d in present[1:]:
        if d is not present[0]:
            raise Error(
                f"got the dtypes {', '.join(map(str, present))}, need one dtype: hx.cast a tensor, .astype an array"
            )
    return present[0]


def floating(*dtypes: DType | None, **_: Any) -> DType:
    """All inputs share one floating dtype."""
    return _of_kind(same_dtype(*dtypes), ("float",), "a floating dtype")


def numeric(*dtypes: DType | None, **_: Any) -> DType:
    """All inputs share one dtype that is not bool."""
    return _of_kind(same_dtype(*dtypes), ("float", "int", "uint"), "a numeric dtype")


def integral(*dtypes: DType | None, **_: Any) -> DType:
    """All inputs share one integer dtype."""
    return _of_kind(same_dtype(*dtypes), ("int", "uint"), "an integer dtype")


def boolean(*dtypes: DType | None, **_: Any) -> DType:
    """All inputs are bool."""
    return _of_kind(same_dtype(*dtypes), ("bool",), "bool")


def compare(*dtypes: DType | None, **_: Any) -> DType:
    """Inputs of one dtype; the output is bool."""
    same_dtype(*dtypes)
    return BOOL


def first_dtype(x: DType, *_: DType | None, **__: Any) -> DType:
    """The first input's dtype, whatever the others are."""
    return x


def same_bits(x: DType, dtype: DType) -> DType:
    """The dtype asked for, of the input's size."""
    if x.bits != dtype.bits or x.bits % 8:
        raise Error(f"got {x} to {dtype}, need dtypes of one size, of whole bytes")
    return dtype


def _of_kind(d: DType, kinds: tuple[str, ...], need: str) -> DType:
    if d.kind not in kinds:
        raise Error(f"got the dtype {d}, need {need}")
    return d


# ---- checks ----


def finite(*names: str) -> Callable[..., None]:
    """The attributes are finite numbers."""

    def check(_: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> None:
        for name in names:
            if not isfinite(attrs[name]):
                raise Error(f"{name}: got {attrs[name]}, need a finite number")

    return check


# ---- applying a record ----


def normalize_attrs(op: Op, attrs: Mapping[str, Any]) -> dict[str, AttrValue]:
    """All attributes in the record's order, in their kind, defaults filled in. Raises Error for unknown or missing
    ones."""
    declared = op.attrs or {}
    if unknown := attrs.keys() - declared.keys():
        need = ", ".join(declared) or "none"
        raise Error(f"unknown attribute {', '.join(sorted(map(repr, unknown)))}: need some of: {need}")
    result: dict[str, AttrValue] = {}
    for name, spec in declared.items():
        value = attrs.get(name, spec.default)
        if value is REQUIRED:
            raise Error(f"{name}: need a value")
        try:
            result[name] = _CONVERT[spec.kind](value)
        except (TypeError, ValueError, OverflowError):
            raise Error(f"{name}: got {value!r}, need {_NEED[spec.kind]}") from None
        if spec.choices and not set(_texts(value)) <= set(spec.choices):
            raise Error(f"{name}: got {value!r}, need one of {', '.join(spec.choices)}")
    return result


def _int(value: Any) -> int:
    if isinstance(value, (bool, np.bool_)) or int(value) != value or not -(2**63) <= value < 2**63:
        raise ValueError
    return int(value)


def _float(value: Any) -> float:
    if isinstance(value, (str, bytes)):
        raise TypeError
    return float(value)


def _str(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(_str(v) for v in value)


def _flag(value: Any) -> bool:
    if value not in (0, 1):
        raise ValueError
    return bool(value)


def _slot(value: Any) -> EpilogueSlot:
    if not isinstance(value, EpilogueSlot):
        raise TypeError
    return value


def _ints(value: Any) -> tuple[int, ...]:
    return (_int(value),) if np.ndim(value) == 0 else tuple(_int(v) for v in value)


_CONVERT: dict[str, Callable[[Any], AttrValue]] = {
    "int": _int,
    "float": _float,
    "bool": _flag,
    "str": _str,
    "ints": _ints,
    "floats": lambda v: (_float(v),) if np.ndim(v) == 0 else tuple(_float(x) for x in v),
    "texts": _texts,
    "dtype": dtype,
    "slots": lambda v: tuple(_slot(s) for s in v),
}
_NEED = {
    "int": "an integer",
    "float": "a number",
    "bool": "True or False",
    "str": "a string",
    "ints": "integers",
    "floats": "numbers",
    "texts": "strings",
    "dtype": "a dtype",
    "slots": "epilogue slots",
}


def arrange_inputs(op: Op, inputs: Sequence[Value | None]) -> tuple[Value | None, ...]:
    """Inputs in the record's order, trailing optional ones filled with None. Raises Error for a wrong number."""
    names = op.inputs
    variadic = op.takes_slots or (bool(names) and names[-1].endswith("*"))
    needed = sum(not n.endswith("?") for n in names)
    if len(inputs) < needed or (len(inputs) > len(names) and not variadic):
        raise Error(f"got {len(inputs)} inputs, need {', '.join(names)}")
    for i, value in enumerate(inputs):
        if value is None and not names[min(i, len(names) - 1)].endswith("?"):
            raise Error(f"input {names[min(i, len(names) - 1)]}: got none, need a tensor")
    if not names or names[-1].endswith("*"):
        return tuple(inputs)
    return (*inputs, *[None] * (len(names) - len(inputs)))


def infer(op: Op, types: Sequence[TensorType | None], attrs: Mapping[str, AttrValue]) -> tuple[TensorType, ...]:
    """The output types. Raises Error where NumPy or ONNX would refuse the inputs."""
    operands = types[len(op.inputs) :] if op.takes_slots else ()
    slots = attrs.get("epilogue", ())
    if op.takes_slots:
        types, attrs = types[: len(op.inputs)], {k: v for k, v in attrs.items() if k not in CHAIN_ATTRS}
    for check in op.check:
        check(types, attrs)
    dtypes = op.dtype(*(None if t is None else t.dtype for t in types), **attrs)
    shapes = op.shape(*(None if t is None else t.shape for t in types), **attrs)
    several = isinstance(shapes, list)
    if not several:
        shapes = [shapes]
    if not isinstance(dtypes, list):
        dtypes = [dtypes] * len(shapes)
    result = tuple(tensor_type(d, s) for d, s in zip(dtypes, shapes, strict=True))
    if op.level == "engine":
        return (chain_type(result[0], slots, operands, len(op.inputs)), *result[1:]) if op.takes_slots else result
    if any(t != result[0] for t in operands):
        raise Error(f"epilogue operands: got {', '.join(map(str, operands))}, need {result[0]}")
    return result


def apply(
    op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any], sources: tuple[str, ...] = ()
) -> tuple[Value, ...]:
    """The checked application of an op: its output values. Raises Error naming op and source, got and need."""
    key = _call_key(op, inputs, attrs)
    call = None if key is None else _calls.get(key)
    if call is None:
        try:
            call = _checked(op, inputs, attrs)
        except Error as error:
            where = f"{op.name} at {', '.join(sources)}" if sources else op.name
            raise Error(f"[{where}] {error}") from None
        if key is not None:
            if len(_calls) >= MOST_CALLS:
                _calls.clear()
            _calls[key] = call
    return call.kind.node((*inputs, *call.absent), sources).values


class _Call(NamedTuple):
    """An application that was found sound: what all that are like it give, and the optional inputs left out at the
    end."""

    op: Op
    types: tuple[TensorType | None, ...]
    kind: Kind
    absent: tuple[None, ...]


_calls: dict[Any, _Call] = {}
MOST_CALLS = 1 << 12
_MOST_NUMBERS = 64  # in an attribute of a call that is remembered
_EXACT = frozenset((bool, int, str, DType))  # equal values of one of these types are the same


def _call_key(op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> Any:
    """Equal for applications that are alike: of the same op, types and attributes to the bit. None for one that is not
    remembered.

    By the ids of op and types, which a `_Call` keeps alive.
    """
    key: list[Any] = [id(op)]
    for value in inputs:
        key.append(None if value is None else id(value.node.types[value.output]))
    for name, given in attrs.items():
        kind: Any = type(given)
        if kind is float:
            given = given.hex()  # -0.0 is not 0.0
        elif kind is tuple:
            kinds = {*map(type, given)}
            if len(kinds) > 1 or not kinds <= _EXACT or len(given) > _MOST_NUMBERS:
                return None
            kind = (tuple, *kinds)
        elif kind not in _EXACT:
            return None
        key += name, kind, given
    return tuple(key)


def _checked(op: Op, inputs: Sequence[Value | None], attrs: Mapping[str, Any]) -> _Call:
    arranged = arrange_inputs(op, inputs)
    values = normalize_attrs(op, attrs)
    types = tuple([None if v is None else v.type for v in arranged])
    if op.canonical is not None:
        values = op.canonical(types, values)
    kind = kind_of(op.name, values, infer(op, types, values))
    return _Call(op, types, kind, (None,) * (len(arranged) - len(inputs)))
