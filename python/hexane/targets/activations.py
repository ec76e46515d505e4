"""The engine's activation tables, which approximate functions by straight lines between knots.
`shared/activations.toml` describes each field."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from hexane.system.limits import MAX_KNOTS
from hexane.targets.fact import Place, check_keys, check_source, error
from hexane.targets.tables import table

FILE = "shared/activations.toml"
# Names in the order of the C++ enum ActivationTable::Reduction.
REDUCTIONS = ("none", "odd", "exp2", "log2", "sqrt", "rsqrt", "inverse", "quarters")
TABLE_OF = {"exp": "exp2", "log": "log2", "gelu_tanh": "gelu", "cos": "sin"}  # ops that use a table with another name
_TAILS = {"clamp", "left", "right"}
_KEYS = {"none": _TAILS, "odd": _TAILS, "exp2": {"clamp"}, "quarters": set()}


@dataclass(frozen=True, slots=True)
class Activation:
    """A table. Missing entries of the file are 0: clamp, left and right are (0, 0), at_zero and at_infinity are 0."""

    name: str
    reduction: str
    domain: tuple[float, float]
    clamp: tuple[float, float]
    left: tuple[float, float]
    right: tuple[float, float]
    at_zero: float
    at_infinity: float
    knots: tuple[float, ...]
    source: str
    status: str

    @property
    def places(self) -> tuple[float, ...]:
        """The position of each knot."""
        low, high = self.domain
        return tuple(low + (high - low) * i / (len(self.knots) - 1) for i in range(len(self.knots)))

    @property
    def parameters(self) -> list[float]:
        """The numbers of the struct ActivationTable, in its order."""
        head = [REDUCTIONS.index(self.reduction), *self.domain, len(self.knots) - 1, *self.clamp]
        tails = [*self.left, *self.right, self.at_zero, self.at_infinity]
        return [*head, *tails, *self.knots, *[0.0] * (MAX_KNOTS - len(self.knots))]


@cache
def activations() -> Mapping[str, Activation]:
    """Every table by its name. Raises Error for a broken file."""
    return MappingProxyType({name: _activation(name, row) for name, row in table("activations").items()})


def _activation(name: str, given: dict[str, Any]) -> Activation:
    place = Place(FILE, "", "")
    reduction = given.get("reduction")
    if reduction not in REDUCTIONS:
        raise error(place, f"{name}.reduction", reduction, f"one of {', '.join(REDUCTIONS)}")
    own = _KEYS.get(reduction, {"at_zero", "at_infinity"})
    check_keys(place, name, given, {"reduction", "domain", "knots", "source", "status", *own})
    source, status = check_source(place, name, given)
    pairs = {key: _numbers(place, f"{name}.{key}", given.get(key, [0, 0]), 2, 2) for key in ("domain", *sorted(_TAILS))}
    ends = {key: _numbers(place, f"{name}.{key}", [given.get(key, 0)], 1, 1)[0] for key in ("at_zero", "at_infinity")}
    knots = _numbers(place, f"{name}.knots", given["knots"], 2, MAX_KNOTS)
    return Activation(name=name, reduction=reduction, knots=knots, source=source, status=status, **pairs, **ends)  # type: ignore[arg-type]


def _numbers(place: Place, path: str, given: Any, least: int, most: int) -> tuple[float, ...]:
    fits = isinstance(given, list) and least <= len(given) <= most and all(type(v) in (int, float) for v in given)
    if not fits:
        raise error(place, path, given, f"{least} to {most} numbers")
    return tuple(float(v) for v in given)
