"""Known failures of some kinds of ops, and the advised rewrites: `shared/rules.toml`, and for Core ML packages
`shared/packages.toml`."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from hexane.targets.fact import Fact, Place, check_keys, check_source, convert, read_fact
from hexane.targets.tables import table

KEYS = {"ops", "wrong", "instead", "systems", "source", "status", "numbers"}


@dataclass(frozen=True, slots=True)
class Rule:
    """wrong, instead: texts with names in braces, which are filled from the numbers and the op. systems: the operating
    systems on which the failure was seen; empty if the system does not matter."""

    name: str
    ops: tuple[str, ...]
    wrong: str
    instead: str
    systems: tuple[str, ...]
    numbers: Mapping[str, Fact]
    source: str
    status: str

    def number(self, name: str) -> Any:
        return self.numbers[name].value


@cache
def rules() -> Mapping[str, Rule]:
    """All rules by name, in the order of rules.toml."""
    return _read("rules")


@cache
def package_rules() -> Mapping[str, Rule]:
    """The rules of Core ML packages by name, in the order of the file."""
    return _read("packages")


def _read(file: str) -> Mapping[str, Rule]:
    return {name: _rule(file, name, given) for name, given in table(file).items()}


def _rule(of: str, name: str, given: dict[str, Any]) -> Rule:
    file = Place(f"shared/{of}.toml", "", "")
    check_keys(file, name, given, KEYS)
    source, status = check_source(file, name, given)
    place = Place(file.file, source, status)
    texts = {key: convert(place, f"{name}.{key}", given[key], str) for key in ("wrong", "instead")}
    lists = {key: convert(place, f"{name}.{key}", given[key], tuple[str, ...]) for key in ("ops", "systems")}
    path = f"{name}.numbers"
    numbers = {key: read_fact(place, f"{path}.{key}", v, int | tuple[int, ...]) for key, v in given["numbers"].items()}
    return Rule(name=name, **texts, **lists, numbers=numbers, source=source, status=status)
