"""The table of dtypes: MIL names, sizes in bits, NumPy counterparts."""

from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np

from hexane.errors import Error

Kind = Literal["bool", "int", "uint", "float"]


@dataclass(frozen=True, slots=True, eq=False)  # compared by identity: each dtype is one object in the table
class DType:
    """An element type. `bits` is its size in memory; `numpy` the NumPy type that holds one element."""

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        """The attribute by which NumPy takes this object as a dtype: `np.zeros(port.shape, port.dtype)`."""
        return self.numpy

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> Any:
        return dtype, (self.name,)


def _table() -> dict[str, DType]:
    rows: list[tuple[str, int, Kind, Any]] = [
        ("bool", 8, "bool", np.bool_),
        *[(f"int{bits}", bits, "int", f"int{bits}") for bits in (8, 16, 32, 64)],
        *[(f"uint{bits}", bits, "uint", f"uint{bits}") for bits in (8, 16, 32, 64)],
        ("int4", 4, "int", ml_dtypes.int4),
        ("uint1", 1, "uint", np.uint8),  # ml_dtypes 0.5, the version for NumPy 1.26, has no uint1
        ("uint2", 2, "uint", ml_dtypes.uint2),
        ("uint3", 3, "uint", np.uint8),
        ("uint4", 4, "uint", ml_dtypes.uint4),
        ("uint6", 6, "uint", np.uint8),
        ("fp8e4m3", 8, "float", ml_dtypes.float8_e4m3fn),
        ("fp8e5m2", 8, "float", ml_dtypes.float8_e5m2),
        ("fp16", 16, "float", np.float16),
        ("bf16", 16, "float", ml_dtypes.bfloat16),
        ("fp32", 32, "float", np.float32),
        ("fp64", 64, "float", np.float64),
    ]
    return {name: DType(name, bits, kind, np.dtype(numpy)) for name, bits, kind, numpy in rows}


DTYPES = _table()
BOOL, INT32, INT64 = DTYPES["bool"], DTYPES["int32"], DTYPES["int64"]
UINT16 = DTYPES["uint16"]
FP16, FP32, FP64, BF16 = DTYPES["fp16"], DTYPES["fp32"], DTYPES["fp64"], DTYPES["bf16"]
FLOATS = tuple(d for d in DTYPES.values() if d.kind == "float" and d.bits >= 16)
INTS = tuple(d for d in DTYPES.values() if d.kind in ("int", "uint") and d.bits >= 8)
NUMERIC = (*FLOATS, *INTS)

# NumPy's own names count too: float32, float16, ...
BY_NUMPY = {d.numpy: d for d in DTYPES.values() if d.name not in ("uint1", "uint3", "uint6")}


def dtype(spec: object) -> DType:
    """The DType that `spec` names: a DType, its name, a NumPy name, dtype or scalar type.

    Raises Error for anything else, and for byte orders that are not the machine's.
    """
    if isinstance(spec, DType):
        return spec
    if isinstance(spec, str) and spec in DTYPES:
        return DTYPES[spec]
    try:
        result = BY_NUMPY.get(np.dtype(spec))  # type: ignore[call-overload]
    except TypeError:
        result = None
    if result is None:
        raise Error(f"[dtype] got {spec!r}, need one of {', '.join(DTYPES)}")
    return result


def whole_range(kind: DType) -> tuple[float, float] | None:
    """The range of a dtype of integers with at most 16 bits, or of booleans as 0 and 1, or None."""
    if kind.kind == "bool":
        return 0.0, 1.0
    if kind.kind not in ("int", "uint") or kind.bits > 16:
        return None
    half = float(1 << (kind.bits - 1))
    return (-half, half - 1) if kind.kind == "int" else (0.0, 2 * half - 1)


def integer_range(kind: "np.dtype[Any]") -> tuple[int, int]:
    """The smallest and the largest number of an integer dtype, also of int4 and other small dtypes."""
    iinfo: Any = ml_dtypes.iinfo  # knows int4 as well
    limits = iinfo(kind)
    return int(limits.min), int(limits.max)


def integers(numbers: Any, kind: "np.dtype[Any]") -> Any:
    """Python's integers, also nested, as an array of an integer dtype. Raises OverflowError for an integer outside the
    dtype's range, which NumPy before 2 would let wrap."""
    array = np.array(numbers, object)
    least, most = integer_range(kind)
    if any(not least <= n <= most for n in array.flat):
        raise OverflowError(f"{kind} holds {least} to {most}")
    return array.astype(kind)
