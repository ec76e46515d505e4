"""Ports of a model, and the arrays of a call that belong to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hexane.dtypes import FP16, DType
from hexane.errors import Error, InputError
from hexane.graph import Array

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True)
class PortType:
    """An input or output of a model. A dim is None (or a name) if it is unknown before the call; "..." means any number
    of dims.

    If `length` is not empty, the extent along `axis` is only known after the call, and `shape` has the largest possible
    extent. `length` is the name of the output of `bind` that holds the extent.
    """

    name: str
    shape: tuple[int | str | None, ...]
    dtype: DType
    length: str = ""
    axis: int = 0

    def __str__(self) -> str:
        dims = ["?" if d is None else str(d) for d in self.shape]
        if self.length:
            dims[self.axis] = f"<={dims[self.axis]}"
        return f"{self.name}: {self.dtype}[{', '.join(dims)}]"


def as_kept(where: str, value: Any, kept: DType | None) -> Array:
    """Returns the value as an array. fp32 becomes fp16 if the model keeps fp16. Raises Error for numbers beyond fp16's
    range."""
    array = np.asarray(value)
    if kept is not FP16 or array.dtype != np.float32:
        return array
    with np.errstate(over="ignore"):
        halves = array.astype(np.float16)
    if np.any(np.isinf(halves) & np.isfinite(array)):
        raise Error(f"[{where}] got values that fp16 does not hold, need at most 65504")
    return halves


def _wrong_count(inputs: Sequence[PortType], count: int) -> str:
    """Returns the error for a call with this many arrays."""
    if count > len(inputs):
        return f"[call] inputs: got {count}, need {len(inputs)}: {', '.join(map(str, inputs)) or 'none'}"
    missing = ", ".join(map(str, inputs[count:]))
    return f"[call] inputs: got {count}, need {len(inputs)}; missing: {missing}"


def arguments(
    inputs: Sequence[PortType],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    optional: Sequence[PortType] = (),
) -> Mapping[str, Any] | Sequence[Any]:
    """Returns the given arrays, in port order or by name. Raises InputError for a wrong number or unknown names."""
    names = [p.name for p in inputs]
    if len(args) == 1 and not kwargs and isinstance(args[0], Mapping):
        given, args = dict(args[0]), ()
    elif not kwargs:
        if len(args) != len(inputs):
            raise InputError(_wrong_count(inputs, len(args)))
        return args
    else:
        given = dict(zip(names, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            raise InputError(f"[call] got the input {min(twice)!r} twice, need it once")
        given.update(kwargs)
    if given.keys() - {p.name for p in optional} != set(names) or len(args) > len(names):
        got = ", ".join(map(str, given)) if len(args) <= len(names) else f"{len(args)} arrays"
        raise InputError(f"[call] got the inputs {got or 'none'}, need {', '.join(names) or 'none'}")
    return given
