"""Dtype rules that many op records share: which dtypes an op takes, and the dtype of its result."""

from typing import Any

from hexane.dtypes import BOOL, DType
from hexane.errors import Error


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
