"""Dtype rules shared by op records: the dtypes that an op allows, and the dtype of its result."""

from typing import Any

from hexane.dtypes import BOOL, DType
from hexane.errors import Error


def same_dtype(*dtypes: DType | None, **_: Any) -> DType:
    """Returns the one dtype of all inputs, which is also the output's."""
    present = [d for d in dtypes if d is not None]
    for d in present[1:]:
        if d is not present[0]:
            raise Error(
                f"got the dtypes {', '.join(map(str, present))}, need one dtype: hx.cast a tensor, .astype an array"
            )
    return present[0]


def floating(*dtypes: DType | None, **_: Any) -> DType:
    """Returns the one float dtype of all inputs."""
    return _of_kind(same_dtype(*dtypes), ("float",), "a floating dtype")


def numeric(*dtypes: DType | None, **_: Any) -> DType:
    """Returns the one dtype of all inputs, which may not be bool."""
    return _of_kind(same_dtype(*dtypes), ("float", "int", "uint"), "a numeric dtype")


def integral(*dtypes: DType | None, **_: Any) -> DType:
    """Returns the one integer dtype of all inputs."""
    return _of_kind(same_dtype(*dtypes), ("int", "uint"), "an integer dtype")


def boolean(*dtypes: DType | None, **_: Any) -> DType:
    """Returns bool if all inputs are bool."""
    return _of_kind(same_dtype(*dtypes), ("bool",), "bool")


def compare(*dtypes: DType | None, **_: Any) -> DType:
    """Returns bool for inputs of one dtype."""
    same_dtype(*dtypes)
    return BOOL


def first_dtype(x: DType, *_: DType | None, **__: Any) -> DType:
    """Returns the first input's dtype; later inputs may have another."""
    return x


def same_bits(x: DType, dtype: DType) -> DType:
    """Returns the wanted dtype, which must have the size of the input's dtype."""
    if x.bits != dtype.bits or x.bits % 8:
        raise Error(f"got {x} to {dtype}, need dtypes of one size, of whole bytes")
    return dtype


def _of_kind(d: DType, kinds: tuple[str, ...], need: str) -> DType:
    if d.kind not in kinds:
        raise Error(f"got the dtype {d}, need {need}")
    return d


def dtype_of_cases(cond: Any, a: Any, b: Any) -> Any:
    boolean(cond)
    return same_dtype(a, b)
