"""Tensors of a graph under construction, with NumPy's operators and indices."""

from typing import Any

import numpy as np

from hexane.dtypes import DType, dtype
from hexane.errors import Error
from hexane.graph import TensorType, Value, constant
from hexane.graph.origins import call_site
from hexane.ops import OPS
from hexane.ops.spec import op_error
from hexane.ops.valid_lengths import apply, length_of


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
        raise failed("tensor", "got a tensor where Python needs True or False; its value is known only when it runs")

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise failed("tensor", "got a tensor where NumPy needs an array; its values are known only when it runs")

    def __iter__(self) -> Any:
        raise failed("tensor", "a tensor cannot be iterated over; use split")

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


def to_array(array: Any, kind: object = None) -> np.ndarray[Any, np.dtype[Any]]:
    """A private copy in C order, of the given dtype, or else of the array's own."""
    if isinstance(array, Tensor):
        raise failed("const", "got a tensor, need an array")
    try:
        own = np.array(array)
    except (TypeError, ValueError):
        raise failed("const", "got sequences of several lengths, need an array of one shape") from None
    if own.dtype.kind in "OSUMmc":
        raise failed("const", f"got {own.dtype if hasattr(array, 'dtype') else _brief(array)}, need numbers or bools")
    if kind is None and not hasattr(array, "dtype"):
        kind = {"f": "fp32", "i": "int32", "b": "bool"}.get(own.dtype.kind)
    wanted = dtype(kind if kind is not None else own.dtype)
    with np.errstate(all="ignore"):
        result = own.astype(wanted.numpy)
    if own.dtype != result.dtype and not _holds(result, own, wanted):
        raise failed("const", f"got values that {wanted} does not hold, need another dtype or other values")
    return np.asarray(result, order="C")


def _holds(result: np.ndarray[Any, Any], own: np.ndarray[Any, Any], wanted: DType) -> bool:
    """True if a conversion to integers changed no number, or one to floats made no finite number infinite."""
    if own.dtype.kind not in "fiu" or wanted.kind == "bool":
        return True
    if wanted.kind in ("int", "uint"):
        return np.array_equal(result, own)
    return not np.any(np.isinf(result.astype(np.float64)) & np.isfinite(own))


def _brief(x: object) -> str:
    return repr(x) if x is None or isinstance(x, (str, complex)) else type(x).__name__


def failed(op: str, message: str) -> Error:
    """The error of a call, with the user's file:line."""
    return op_error(" at ".join((op, *call_site()[:1])), message)


def lift(x: Any, like: DType | None = None) -> Value:
    """The value of a tensor. Scalars become constants of dtype `like`, arrays become constants of their own dtype."""
    if isinstance(x, Tensor):
        return x.value
    if isinstance(x, Value):
        return x
    if isinstance(x, (bool, int, float)) and like is not None:
        if like.kind in ("int", "uint") and isinstance(x, float) and not x.is_integer():
            raise failed("scalar", f"got {x} with a tensor of {like}, need an integer or a cast")
        return constant(to_array(x, like))
    return constant(to_array(x))


def _binary(op: str, x: Any, y: Any) -> Tensor:
    like = x.dtype if isinstance(x, Tensor) else y.dtype
    return Tensor(apply(OPS[op], [lift(x, like), lift(y, like)], {}, call_site())[0])


def _logic(x: Tensor) -> str:
    """The family of ops for `& | ^ ~`: "bitwise" for integers, else "logical", which refuses floats."""
    return "bitwise" if x.dtype.kind in ("int", "uint") else "logical"


def _unary(op: str, x: Tensor, **attrs: Any) -> Tensor:
    return Tensor(apply(OPS[op], [x.value], attrs, call_site())[0])


def _divide(x: Any, y: Any) -> Tensor:
    """NumPy's true division, which is for floats. For integers the user has to choose a rounding."""
    kind = x.dtype if isinstance(x, Tensor) else y.dtype
    if kind.kind != "float":
        raise failed("real_div", f"got / on {kind}, need floats; use //, or hx.real_div to truncate")
    return _binary("real_div", x, y)


def _matmul(x: Any, y: Any) -> Tensor:
    """NumPy's @. A vector counts as one row or column, which is left out of the result."""
    like = x.dtype if isinstance(x, Tensor) else y.dtype
    a, b = Tensor(lift(x, like)), Tensor(lift(y, like))
    if not a.shape or not b.shape:
        raise failed("matmul", f"got the shapes {a.shape} and {b.shape}, need at least 1 axis each")
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
        raise failed("index", f"got {used} indices for rank {len(x.shape)}, need at most {len(x.shape)}")
    if sum(i is Ellipsis for i in items) > 1:
        raise failed("index", "got ... twice, need it once")
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
                raise failed(
                    "index",
                    f"got {item} for axis {axis}, whose length is known only at run time,"
                    " need bounds counted from its start",
                )
            try:
                start, stop, step = item.indices(extent)
            except (TypeError, ValueError):
                raise failed(
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
                raise failed("index", f"got {item} for an extent of {extent}, need {-extent}..{extent - 1}")
            begin.append(int(item) % extent)
            end.append(int(item) % extent + 1)
            stride.append(1)
        else:
            raise failed("index", f"got {item!r}, need integers, slices, None or ...; for arrays use gather")
        axis += 1
    if flips:
        x = _unary("reverse", x, axes=tuple(flips))
    x = _unary("slice_by_index", x, begin=tuple(begin), end=tuple(end), stride=tuple(stride))
    return x if x.shape == tuple(shape) else _unary("reshape", x, shape=tuple(shape))
