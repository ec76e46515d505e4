"""A fact about hardware: a value, the source that gives it, and how the source knows. Reads TOML strictly."""

from dataclasses import dataclass
from enum import Enum
from math import isfinite
from types import NoneType, UnionType
from typing import Any, get_args, get_origin

from hexane.errors import Error

STATUSES = {
    "measured": "seen on silicon by the source",
    "verified": "replayed here against published results of silicon",
    "fitted": "chosen here so that a formula gives published measurements",
    "decoded": "taken from a binary by the source",
    "read": "stated in a document or in source code, without saying how the author knows it",
    "inherited": "known of other chips with the same base, and taken from them; no source saw it on this one",
    "inferred": "concluded from other facts; no source states it",
    "disputed": "sources disagree: every claim is kept, the value is what silicon showed, where it showed anything",
    "unknown": "no source gives it",
}
# The statuses that a file may give. Files write "unknown" as a value; "inherited" is derived from the chips that a
# source measured.
GIVEN = tuple(status for status in STATUSES if status not in ("unknown", "inherited"))


@dataclass(frozen=True, slots=True)
class Claim:
    """The value that one source gives, if sources disagree."""

    value: Any
    source: str
    status: str


@dataclass(frozen=True, slots=True)
class Fact:
    """A fact about chips. value: None if it is unknown, or if the source says that the limit or route does not
    exist."""

    value: Any
    source: str
    status: str
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value is, and the source and status that its file gives by default."""

    file: str
    source: str
    status: str


def read_fact(place: Place, path: str, given: Any, kind: Any) -> Fact:
    """The fact of the entry `path = given`: a value of that kind, or a table {value, source, status} that
    may have claims."""
    if given == "unknown":
        if NoneType not in get_args(kind):
            raise error(place, path, given, describe(kind))
        return Fact(None, "no source gives it", "unknown")
    if not isinstance(given, dict):
        return Fact(convert(place, path, given, kind), place.source, place.status)
    value, source, status, claims = read_table(place, path, given, kind, "value")
    if claims and value not in [claim.value for claim in claims]:
        raise error(place, path, given["value"], "the value of one of its claims")
    return Fact(value, source, status, claims)


def read_table(
    place: Place, path: str, given: dict[str, Any], kind: Any, key: str
) -> tuple[Any, str, str, tuple[Claim, ...]]:
    """(value, source, status, claims) of a table that has the value under `key`."""
    disputed = given.get("status") == "disputed"
    claims = given.get("claims", [])
    check_keys(place, path, given, {key, "source", "status"} | ({"claims"} if disputed else set()))
    source, status = check_source(place, path, given)
    if disputed and (not isinstance(claims, list) or len(claims) < 2):
        raise error(place, f"{path}.claims", claims, "a list of two claims or more")
    return convert(place, path, given[key], kind), source, status, tuple(_claim(place, path, c, kind) for c in claims)


def _claim(place: Place, path: str, given: Any, kind: Any) -> Claim:
    where = f"{path}.claims"
    if not isinstance(given, dict):
        raise error(place, where, given, "tables {value, source, status}")
    check_keys(place, where, given, {"value", "source", "status"})
    source, status = check_source(place, where, given)
    if status in ("disputed", "unknown"):
        raise error(place, where, status, "the status of one source's claim")
    return Claim(convert(place, where, given["value"], kind), source, status)


def check_keys(place: Place, path: str, given: dict[str, Any], need: set[str]) -> None:
    if given.keys() != need:
        keys = f"the keys {', '.join(sorted(given))}"
        raise error(place, path, keys, f"exactly {', '.join(sorted(need))}", plain=True)


def check_source(place: Place, path: str, given: dict[str, Any]) -> tuple[str, str]:
    """(source, status) of a table or a file."""
    source, status = given["source"], given["status"]
    if not isinstance(source, str) or not source.strip():
        raise error(place, f"{path}.source", source, "who says so")
    if status not in GIVEN:
        raise error(place, f"{path}.status", status, f"one of {', '.join(GIVEN)}")
    return source, status


def convert(place: Place, path: str, given: Any, kind: Any) -> Any:
    """The value in its Python form: lists become tuples, names of enum members become the members, integers become
    floats if the kind is float, and "none" becomes None if the kind allows None."""
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if given == "none" and NoneType in kinds:
        return None
    for one in kinds:
        if get_origin(one) is tuple:
            if isinstance(given, list) and all(_is(item, get_args(one)[0]) for item in given):
                return tuple(float(item) if get_args(one)[0] is float else item for item in given)
        elif issubclass(one, Enum):
            if isinstance(given, str) and given in one.__members__:
                return one[given]
        elif _is(given, one):
            return float(given) if one is float else given
    raise error(place, path, given, describe(kind))


def _is(given: Any, kind: type) -> bool:
    if kind is float:  # rates and times are never 0
        return type(given) in (int, float) and isfinite(given) and given > 0
    return type(given) is kind and not (isinstance(given, int) and given < 0)


def describe(kind: Any) -> str:
    """A kind in the words of error messages."""
    if isinstance(kind, UnionType):
        return " or ".join('"none" or "unknown"' if k is NoneType else describe(k) for k in get_args(kind))
    if get_origin(kind) is tuple:
        return f"a list, each item {describe(get_args(kind)[0])}"
    if issubclass(kind, Enum):
        return f"one of {', '.join(kind.__members__)}"
    return {int: "an integer of at least 0", float: "a number above 0", bool: "true or false", str: "a text"}[kind]


def error(place: Place, path: str, got: Any, need: str, plain: bool = False) -> Error:
    return Error(f"[{place.file}] {path}: got {got if plain else repr(got)}, need {need}")
