"""The attributes of an op record: their kinds, their defaults, and the conversion of given values to their kinds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from hexane.dtypes import dtype
from hexane.errors import Error
from hexane.graph import AttrValue, EpilogueSlot, Graph, TensorType

REQUIRED = object()
AttrKind = Literal["int", "float", "bool", "str", "ints", "floats", "texts", "dtype", "slots", "graph"]


@dataclass(frozen=True, slots=True)
class Attr:
    """An attribute: its kind, and its default. An attribute without a default is required. choices: the allowed
    strings. typed: the value follows from the types of the outputs."""

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


def body() -> Attr:
    return Attr("graph")


def typed(attr: Attr) -> Attr:
    """Returns the attribute marked as typed: its value follows from the types of the outputs."""
    return replace(attr, typed=True)


SLOTS = Attr("slots", ())
CHAIN_ATTRS = ("epilogue", "rounds")  # attributes of the steps after an op, which its rules ignore


def no_attrs(_: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> dict[str, Any]:
    """The attributes of a kernel that reads none of its op's."""
    return {}


def finite(*names: str) -> Callable[..., None]:
    """Returns a check that these attributes are finite numbers."""

    def check(_: Sequence[TensorType | None], attrs: Mapping[str, Any]) -> None:
        for name in names:
            if not isfinite(attrs[name]):
                raise Error(f"{name}: got {attrs[name]}, need a finite number")

    return check


def normalize_attrs(declared: Mapping[str, Attr] | None, attrs: Mapping[str, Any]) -> dict[str, AttrValue]:
    """Returns all attributes in declared order, converted to their kinds, with defaults for omitted ones. Raises Error
    for an unknown or missing attribute."""
    declared = declared or {}
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


def _graph(value: Any) -> Graph:
    if not isinstance(value, Graph):
        raise TypeError
    return value


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
    "graph": _graph,
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
    "graph": "a graph",
}
