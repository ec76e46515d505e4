"""Builds graphs from Python: tensors with NumPy's operators, and a function for each op of the catalogue.

The functions are made from the records of the ops; `build.pyi` has their signatures.
"""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from hexane.dtypes import INT32, DType, dtype
from hexane.errors import Error
from hexane.graph import Graph, Port, TensorType, Value, constant, tensor_type, topological
from hexane.graph import unique as leaf
from hexane.graph.names import check_name, free_name
from hexane.graph.origins import call_site
from hexane.ops import OPS, USER_OPS, Op
from hexane.ops.attributes import REQUIRED
from hexane.ops.spec import op_error
from hexane.ops.streams import advance_streams
from hexane.ops.valid_lengths import apply, length_of, with_lengths
from hexane.ops.written_params import written_params_as_states


class Tensor:
    """A tensor of a graph under construction: `+ - * / @ ** //`, comparisons and `x[...]` work as in NumPy. `& | ^ ~`
    are logical for bools and bitwise for integers, `<< >>` bitwise.

    Scalars take the tensor's dtype, arrays become constants; mixed dtypes raise Error.
    """

    __slots__ = ("value",)
    __array_ufunc__ = None  # an ndarray on the left leaves the operation to this class
    __hash__ = object.__hash__

    def __init__(self, value: Value) -> None:
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        return self.value.shape

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def type(self) -> TensorType:
        return self.value.type

    def __repr__(self) -> str:
        return f"<Tensor {self.type} of {self.value.node.where}>"

    def __bool__(self) -> bool:
        raise _error("tensor", "got a tensor where Python needs True or False; its value is known only when it runs")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise _error("tensor", "got a tensor where NumPy needs an array; its values are known only when it runs")

    def __iter__(self) -> Any:
        raise _error("tensor", "a tensor cannot be iterated over; use split")

    def __add__(self, other: Any) -> "Tensor":
        return _binary("add", self, other)

    def __radd__(self, other: Any) -> "Tensor":
        return _binary("add", other, self)

    def __sub__(self, other: Any) -> "Tensor":
        return _binary("sub", self, other)

    def __rsub__(self, other: Any) -> "Tensor":
        return _binary("sub", other, self)

    def __mul__(self, other: Any) -> "Tensor":
        return _binary("mul", self, other)

    def __rmul__(self, other: Any) -> "Tensor":
        return _binary("mul", other, self)

    def __truediv__(self, other: Any) -> "Tensor":
        return _divide(self, other)

    def __rtruediv__(self, other: Any) -> "Tensor":
        return _divide(other, self)

    def __floordiv__(self, other: Any) -> "Tensor":
        return _binary("floor_div", self, other)

    def __rfloordiv__(self, other: Any) -> "Tensor":
        return _binary("floor_div", other, self)

    def __mod__(self, other: Any) -> "Tensor":
        return _binary("mod", self, other)

    def __rmod__(self, other: Any) -> "Tensor":
        return _binary("mod", other, self)

    def __pow__(self, other: Any) -> "Tensor":
        return _binary("pow", self, other)

    def __rpow__(self, other: Any) -> "Tensor":
        return _binary("pow", other, self)

    def __matmul__(self, other: Any) -> "Tensor":
        return _matmul(self, other)

    def __rmatmul__(self, other: Any) -> "Tensor":
        return _matmul(other, self)

    def __neg__(self) -> "Tensor":
        return _unary("neg", self)

    def __abs__(self) -> "Tensor":
        return _unary("abs", self)

    def __invert__(self) -> "Tensor":
        return _unary(f"{_logic(self)}_not", self)

    def __and__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_and", self, other)

    def __rand__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_and", other, self)

    def __or__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_or", self, other)

    def __ror__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_or", other, self)

    def __xor__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_xor", self, other)

    def __rxor__(self, other: Any) -> "Tensor":
        return _binary(f"{_logic(self)}_xor", other, self)

    def __lshift__(self, other: Any) -> "Tensor":
        return _binary("shift_left", self, other)

    def __rlshift__(self, other: Any) -> "Tensor":
        return _binary("shift_left", other, self)

    def __rshift__(self, other: Any) -> "Tensor":
        return _binary("shift_right", self, other)

    def __rrshift__(self, other: Any) -> "Tensor":
        return _binary("shift_right", other, self)

    def __eq__(self, other: Any) -> "Tensor":  # type: ignore[override]
        return _binary("equal", self, other)

    def __ne__(self, other: Any) -> "Tensor":  # type: ignore[override]
        return _binary("not_equal", self, other)

    def __lt__(self, other: Any) -> "Tensor":
        return _binary("less", self, other)

    def __le__(self, other: Any) -> "Tensor":
        return _binary("less_equal", self, other)

    def __gt__(self, other: Any) -> "Tensor":
        return _binary("greater", self, other)

    def __ge__(self, other: Any) -> "Tensor":
        return _binary("greater_equal", self, other)

    def __getitem__(self, index: Any) -> "Tensor":
        return _index(self, index)


def input(name: str, shape: Sequence[int], dtype: object = "fp32") -> Tensor:
    """An input of the program, called `name`. Raises Error for a bad shape or dtype."""
    if not isinstance(name, str) or not name:
        raise _error("input", f"name: got {name!r}, need a string that is not empty")
    return Tensor(leaf("input", name, tensor_type(dtype, shape), sources=call_site()))


def const(array: Any, dtype: object = None) -> Tensor:
    """A constant from anything that NumPy takes. Python floats become fp32 and ints int32, unless `dtype` is given."""
    return Tensor(constant(_to_array(array, dtype)))


def param(
    name: str, array: Any = None, dtype: object = None, *, shape: Sequence[int] | None = None, init: Any = None
) -> Tensor:
    """A named constant that a compiled model can replace: `net.update(name=array)`. `write_state` makes it a state of
    the program, which the program itself replaces. `shape` alone: zeros of fp32, or of `dtype`. A single number fills
    the shape."""
    if array is not None and init is not None:
        raise _error("param", f"{name}: got an array and init, need one of them")
    return _named_contents("param", name, shape, dtype, array if init is None else init)


def state(
    name: str, array: Any = None, dtype: object = None, init: Any = None, *, shape: Sequence[int] | None = None
) -> Tensor:
    """A tensor that keeps its value between calls. A state begins with `array` or `init`, or with zeros; `write_state`
    updates it in place. A tuple or list of integers in place of the array is the shape. A single number fills the
    shape. dtype: by default that of an array, and fp32 for a shape, a number, or an array of float64."""
    if _is_shape(array) and shape is None:
        array, shape = None, array
    given = array if shape is None else shape
    if isinstance(given, (int, np.integer)) and not isinstance(given, bool):
        raise _error("state", f"{name}: got the number {given}, need a shape such as ({given},), or init={given}")
    if array is not None and init is not None:
        raise _error("state", f"{name}: got an array and init, need one of them")
    contents = array if init is None else init
    if dtype is None:
        own = contents.dtype if isinstance(contents, np.ndarray) and contents.ndim else np.dtype(np.float64)
        dtype = "fp32" if own == np.float64 else None
    return _named_contents("state", name, shape, dtype, contents)


def _is_shape(x: Any) -> bool:
    return isinstance(x, (tuple, list)) and all(isinstance(n, (int, np.integer)) for n in x)


def _named_contents(op: str, name: str, shape: Sequence[int] | None, dtype: object, init: Any) -> Tensor:
    """A param or state with the caller's contents, or with zeros of a shape."""
    data = None if init is None else _to_array(init, dtype)
    if data is not None and shape is not None and data.ndim == 0:
        data = np.full(tuple(shape), data)
    if data is None and shape is None:
        raise _error(op, f"{name}: got neither a shape nor initial contents, need one of them")
    if data is not None and shape is not None and data.shape != tuple(shape):
        raise _error(op, f"{name}: got init of shape {data.shape}, need {tuple(shape)}")
    if data is not None:
        kind = tensor_type(data.dtype, data.shape)
    else:
        kind = tensor_type(dtype if dtype is not None else "fp32", shape or ())
        data = np.zeros(kind.shape, kind.dtype.numpy) if op == "param" else None
    return Tensor(leaf(op, name, kind, data, call_site()))


def stream(seed: int | None = None, name: str | None = None) -> Tensor:
    """The numbers that one random op draws, which differ in every call: `hx.random_normal(hx.stream(7), shape=(2, 3))`.

    A model that is loaded or reset (`net.reset_state()`) begins again with the same numbers. If seed is None, the
    operating system draws a seed, which the model keeps. name: of the state; None: "stream_" and the number of the
    stream in this process.
    """
    if seed is None:
        seed = int.from_bytes(os.urandom(8), "little", signed=True)
    if isinstance(seed, bool) or not isinstance(seed, int) or not -(2**63) <= seed < 2**63:
        raise _error("stream", f"seed: got {seed!r}, need an integer of 64 bits")
    return state(f"stream_{next(_streams)}" if name is None else name, init=np.array([seed, 0]), dtype="int64")


_streams = count()


def graph(
    outputs: "Tensor | Sequence[Tensor] | Mapping[str, Tensor]", updates: Sequence[Tensor] = (), name: str = "graph"
) -> Graph:
    """The program that computes the outputs: one tensor, several, or several by name.

    Outputs without a name are named after their ops (softmax, then softmax_1). `updates` are results of write_state
    that run although no output depends on them. Raises Error if two ports share a name.
    """
    if isinstance(outputs, Tensor):
        outputs = [outputs]
    named = list(outputs.items()) if isinstance(outputs, Mapping) else [("", t) for t in outputs]
    for name_of_port, tensor in named:
        if not isinstance(name_of_port, str):
            raise _error("graph", f"got the port name {name_of_port!r}, need a string")
        check_name("output", name_of_port)
        if not isinstance(tensor, Tensor):
            raise _error("graph", f"got {type(tensor).__name__} as an output, need a tensor")
    if not named:
        raise _error("graph", "got no outputs, need at least one")
    roots = [t.value for _, t in named] + [t.value for t in updates]
    leaves = [n for n in topological(roots) if n.op in ("input", "param", "state")]
    inputs = sorted((n for n in leaves if n.op == "input"), key=lambda n: n.uid)
    for kind in ({"input"}, {"param", "state"}):
        names = [str(n.attrs["name"]) for n in leaves if n.op in kind]
        if twice := {n for n in names if names.count(n) > 1}:
            raise _error("graph", f"got the {min(kind)} name {min(twice)!r} twice, need distinct names")
    taken = {str(n.attrs["name"]) for n in inputs}
    for explicit in (n for n, _ in named if n):
        if explicit in taken:
            raise _error("graph", f"got the port name {explicit!r} twice, need distinct names")
        taken.add(explicit)
    ports = []
    for explicit, tensor in named:
        port = explicit or free_name(tensor.value.node.op, taken)
        taken.add(port)
        ports.append(Port(port, tensor.value))
    built = Graph(tuple(n.values[0] for n in inputs), tuple(ports), tuple(t.value for t in updates), name)
    return with_lengths(advance_streams(written_params_as_states(built)))


def _to_array(array: Any, kind: object = None) -> np.ndarray[Any, np.dtype[Any]]:
    """A private copy in C order, of the given dtype, or else of the array's own."""
    if isinstance(array, Tensor):
        raise _error("const", "got a tensor, need an array")
    try:
        own = np.array(array)
    except (TypeError, ValueError):
        raise _error("const", "got sequences of several lengths, need an array of one shape") from None
    if own.dtype.kind in "OSUMmc":
        raise _error("const", f"got {own.dtype if hasattr(array, 'dtype') else _brief(array)}, need numbers or bools")
    if kind is None and not hasattr(array, "dtype"):
        kind = {"f": "fp32", "i": "int32", "b": "bool"}.get(own.dtype.kind)
    wanted = dtype(kind if kind is not None else own.dtype)
    with np.errstate(all="ignore"):
        result = own.astype(wanted.numpy)
    if own.dtype != result.dtype and not _holds(result, own, wanted):
        raise _error("const", f"got values that {wanted} does not hold, need another dtype or other values")
    return np.asarray(result, order="C")


def _holds(result: np.ndarray[Any, Any], own: np.ndarray[Any, Any], wanted: DType) -> bool:
    """True if a conversion has kept all integers equal and all finite numbers finite."""
    if own.dtype.kind not in "fiu" or wanted.kind == "bool":
        return True
    if wanted.kind in ("int", "uint"):
        return np.array_equal(result, own)
    return not np.any(np.isinf(result.astype(np.float64)) & np.isfinite(own))


def _brief(x: object) -> str:
    return repr(x) if x is None or isinstance(x, (str, complex)) else type(x).__name__


def _error(op: str, message: str) -> Error:
    """The error of a call, with the user's file:line."""
    return op_error(" at ".join((op, *call_site()[:1])), message)


def _lift(x: Any, like: DType | None = None) -> Value:
    """The value of a tensor. Scalars become constants of dtype `like`, arrays become constants of their own dtype."""
    if isinstance(x, Tensor):
        return x.value
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float)) and like is not None:
        if like.kind in ("int", "uint") and isinstance(x, float) and not x.is_integer():
            raise _error("scalar", f"got {x} beside a tensor of {like}, need an integer or a cast")
        return constant(_to_array(x, like))
    return constant(_to_array(x))


def _binary(op: str, x: Any, y: Any) -> Tensor:
    like = x.dtype if isinstance(x, Tensor) else y.dtype
    return Tensor(apply(OPS[op], [_lift(x, like), _lift(y, like)], {}, call_site())[0])


def _logic(x: Tensor) -> str:
    """The family of ops for `& | ^ ~`: "bitwise" for integers, else "logical", which refuses floats."""
    return "bitwise" if x.dtype.kind in ("int", "uint") else "logical"


def _unary(op: str, x: Tensor, **attrs: Any) -> Tensor:
    return Tensor(apply(OPS[op], [x.value], attrs, call_site())[0])


def _divide(x: Any, y: Any) -> Tensor:
    """NumPy's true division, which is for floats. For integers the user has to choose a rounding."""
    kind = x.dtype if isinstance(x, Tensor) else y.dtype
    if kind.kind != "float":
        raise _error("real_div", f"got / on {kind}, need floats; use //, or hx.real_div to truncate")
    return _binary("real_div", x, y)


def _matmul(x: Any, y: Any) -> Tensor:
    """NumPy's @. A vector counts as one row or column, which is left out of the result."""
    like = x.dtype if isinstance(x, Tensor) else y.dtype
    a, b = Tensor(_lift(x, like)), Tensor(_lift(y, like))
    if not a.shape or not b.shape:
        raise _error("matmul", f"got the shapes {a.shape} and {b.shape}, need at least 1 axis each")
    row, column = len(a.shape) == 1, len(b.shape) == 1
    if row:
        a = _unary("reshape", a, shape=(1, *a.shape))
    if column:
        b = _unary("reshape", b, shape=(*b.shape, 1))
    out = Tensor(apply(OPS["matmul"], [a.value, b.value], {}, call_site())[0])
    if row or column:
        shape = out.shape[:-2] + (() if row else (out.shape[-2],)) + (() if column else (out.shape[-1],))
        out = _unary("reshape", out, shape=shape)
    return out


def _index(x: Tensor, index: Any) -> Tensor:
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(i is not None and i is not Ellipsis for i in items)
    if used > len(x.shape):
        raise _error("index", f"got {used} indices for rank {len(x.shape)}, need at most {len(x.shape)}")
    if sum(i is Ellipsis for i in items) > 1:
        raise _error("index", "got ... twice, need it once")
    # Compares by identity, because `==` of tensors and arrays is elementwise.
    at = next((i for i, item in enumerate(items) if item is Ellipsis), len(items))
    items[at : at + 1] = [slice(None)] * (len(x.shape) - used)
    begin, end, stride, flips, shape = [], [], [], [], []
    length = length_of(x.value)
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        extent = x.shape[axis]
        if isinstance(item, slice):
            if length is not None and axis == length.axis and min(item.start or 0, item.stop or 0) < 0:
                raise _error(
                    "index",
                    f"got {item} for axis {axis}, whose length is known only at run time,"
                    " need bounds counted from its start",
                )
            try:
                start, stop, step = item.indices(extent)
            except (TypeError, ValueError):
                raise _error(
                    "index", f"got {item}, need integers between the colons and a step that is not 0"
                ) from None
            count = len(range(start, stop, step))
            if step < 0:
                flips.append(axis)
                start, step = extent - 1 - start, -step
            begin.append(start)
            end.append(start + (count - 1) * step + 1 if count else start)
            stride.append(step)
            shape.append(count)
        elif isinstance(item, (int, np.integer)) and not isinstance(item, bool):
            if not -extent <= item < extent:
                raise _error("index", f"got {item} for an extent of {extent}, need {-extent}..{extent - 1}")
            begin.append(int(item) % extent)
            end.append(int(item) % extent + 1)
            stride.append(1)
        else:
            raise _error("index", f"got {item!r}, need integers, slices, None or ...; for arrays use gather")
        axis += 1
    if flips:
        x = _unary("reverse", x, axes=tuple(flips))
    x = _unary("slice_by_index", x, begin=tuple(begin), end=tuple(end), stride=tuple(stride))
    return x if x.shape == tuple(shape) else _unary("reshape", x, shape=tuple(shape))


# ---- one function for each op ----

PLACES = ("indices", "batch_indices", "labels", "lengths", "position")  # Operands that are integers for any dtype of x.
LEFT_OUT = {("write_state", "position")}  # Operands that a call may leave out.


def signature(op: Op) -> inspect.Signature:
    """Inputs by position or name, then attributes by name."""
    parameters = []
    for name in op.inputs:
        if name.endswith("*"):
            parameters.append(inspect.Parameter(name[:-1], inspect.Parameter.VAR_POSITIONAL))
        else:
            optional = name.endswith("?") or (op.name, name) in LEFT_OUT
            default = None if optional else inspect.Parameter.empty
            parameters.append(
                inspect.Parameter(name.rstrip("?"), inspect.Parameter.POSITIONAL_OR_KEYWORD, default=default)
            )
    for name, attr in (op.attrs or {}).items():
        default = inspect.Parameter.empty if attr.default is REQUIRED else attr.default
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default))
    return inspect.Signature(parameters)


def _place_of_all(op: Op, whole: Any, update: Any) -> int:
    """The index of an update that replaces all of a state."""
    shapes = [x.shape if isinstance(x, Tensor) else np.shape(x) for x in (whole, update)]
    if shapes[0] != shapes[1]:
        raise _error(op.name, f"got no position for an update of shape {shapes[1]}, need one, or the shape {shapes[0]}")
    return 0


def _function(op: Op) -> Callable[..., Any]:
    shown = signature(op)
    several = len(op.outputs) > 1 or op.outputs[0].endswith("*")

    def build(*args: Any, **kwargs: Any) -> Any:
        try:
            bound = shown.bind(*args, **kwargs)
        except TypeError as error:
            raise _error(op.name, f"{error}; need {op.name}{shown}") from None
        values: list[Any] = []
        for name in op.inputs:
            if name.endswith("*"):
                given = bound.arguments.get(name[:-1], ())
                values += given[0] if len(given) == 1 and isinstance(given[0], (list, tuple)) else given
                continue
            value = bound.arguments.get(name.rstrip("?"))
            if value is None and (op.name, name) in LEFT_OUT:
                value = _place_of_all(op, *values)
            values.append(const(value, INT32) if name in PLACES and type(value) is int else value)
        attrs = {k: v for k, v in bound.arguments.items() if k in (op.attrs or {})}
        like = next((v.dtype for v in values if isinstance(v, Tensor) and v.dtype.kind != "bool"), None)
        operands = [None if v is None else _lift(v, like) for v in values]
        results = tuple(map(Tensor, apply(op, operands, attrs, call_site())))
        return results if several else results[0]

    build.__name__ = build.__qualname__ = op.name
    build.__doc__ = op.doc
    build.__signature__ = shown  # type: ignore[attr-defined]
    return build


FUNCTIONS = {name: _function(op) for name, op in USER_OPS.items()}
globals().update(FUNCTIONS)
__all__ = ["Tensor", "const", "graph", "input", "param", "state", "stream", *FUNCTIONS]
