"""Reads targets: a file and the bases that it names, with a check of every key. A file has only the keys that differ
from its bases."""

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.fact import Fact, Place, check_source, error, read_fact, read_table
from hexane.targets.silicon import as_inherited
from hexane.targets.tables import base_names, base_table, parse_toml, target_table
from hexane.targets.target import Space, Target

ABOUT_THE_FILE = {"base", "source", "status", "inherited", "spaces"}
SHOWN = "shown"  # Section of a file with facts that the compiler does not read.
FILLED = ("name", "facts", "spaces", "asked")  # Fields of a target that are not facts of a file.
SPACE_KINDS = ("arena", "weights", "state")
NAMES = ("products", "dies")  # sections in which each name is a fact: the name means this target


def read_target(text: str, name: str) -> Target:
    """The target that a TOML text describes, as if it were the file NAME.toml. Its Error names the file and the key."""
    return _build(name, parse_toml(text, f"{name}.toml"))


@cache
def load(name: str) -> Target:
    """The target of exactly this name, read from its file."""
    return _build(name, target_table(name))


@cache
def schema(kind: type[Target]) -> dict[str, Any]:
    """The type of every fact by its path: {"cores": int, "extents.width": int, ...}."""
    return dict(_leaves(kind, ""))


def _leaves(kind: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    for f in fields(kind):
        if f.name in FILLED:
            continue
        if is_dataclass(f.type):
            yield from _leaves(f.type, f"{f.name}.")
        else:
            yield prefix + f.name, f.type


def _build(name: str, own: dict[str, Any]) -> Target:
    facts = _facts(name, f"{name}.toml", own)
    device = facts.get("device")
    kind = Target if device and device.value == "cpu" else Chip
    need = schema(kind).keys() - set(NAMES)
    got = {path for path in facts if path.partition(".")[0] not in NAMES}
    if missing := sorted(need - got):
        raise Error(f"[{name}.toml] got no {', '.join(missing)}, need a value in this file or a base of it")
    if extra := sorted(got - need):
        raise Error(f"[{name}.toml] {', '.join(extra)}: got values, need none: this target is no chip")
    values = _values(kind, "", facts)
    spaces = _spaces(name, own.get("spaces", {kind: {"kind": kind} for kind in SPACE_KINDS}), values["alignment"])
    return kind(name=name, facts=MappingProxyType(facts), spaces=spaces, **values)


def _spaces(name: str, rows: dict[str, Any], alignment: int) -> tuple[Space, ...]:
    """The memories that a file declares: `sram = { kind = "arena", alignment = 64, limit = 131072 }`. A file without
    memories gets one memory of each kind, with the alignment of buffers and no limit."""
    keys = {f.name for f in fields(Space)} - {"name"}
    for key, row in rows.items():
        if not isinstance(row, dict) or "kind" not in row or not row.keys() <= keys:
            raise Error(f"[{name}.toml] spaces.{key}: got {row!r}, need a table of kind, alignment and limit")
    spaces = tuple(Space(key, **{"alignment": alignment, **row}) for key, row in rows.items())
    for kind in SPACE_KINDS:
        count = sum(space.kind == kind for space in spaces)
        if count != 1 and not (count and kind == "arena"):
            raise Error(f"[{name}.toml] spaces: got {count} of the kind {kind}, need one")
    return spaces


def _values(kind: Any, prefix: str, facts: dict[str, Fact]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for f in fields(kind):
        if is_dataclass(f.type):
            section: Any = f.type
            values[f.name] = section(**_values(section, f"{f.name}.", facts))
        elif f.name in NAMES:
            values[f.name] = tuple(path.partition(".")[2] for path in facts if path.startswith(f"{f.name}."))
        elif f.name not in FILLED:
            values[f.name] = facts[prefix + f.name].value
    return values


def _facts(name: str, file: str, own: dict[str, Any], above: tuple[str, ...] = ()) -> dict[str, Fact]:
    """The facts of a file, which take precedence over its bases. above: the files that have this file as a base; empty
    for a target's own file."""
    if file in above:
        raise Error(f"[{file}] base: got a circle {' -> '.join((*above, file))}, need an end")
    place = _place(file, own)
    facts: dict[str, Fact] = {}
    if "base" in own:
        base = own["base"]
        if base not in base_names():
            raise error(place, "base", base, f"one of {', '.join(base_names())}")
        facts = _facts(name, f"bases/{base}.toml", base_table(base), (*above, file))
    if "inherited" in own:
        facts = {path: _inherited(fact) for path, fact in facts.items()}
    its_own = dict(_own_facts(place, name, own))
    if not above:
        products = {path.partition(".")[2] for path in its_own if path.startswith("products.")}
        facts = {path: as_inherited(fact, products) for path, fact in facts.items()}
    return facts | its_own


def _place(file: str, own: dict[str, Any]) -> Place:
    place = Place(file, "", "")
    for key in ("source", "status"):
        if key not in own:
            raise Error(f"[{file}] {key}: got none, need one for the values that do not name their own")
    if "inherited" in own and (own["inherited"] is not True or "base" not in own):
        raise error(place, "inherited", own["inherited"], "true, and a base")
    source, status = check_source(place, "file", own)
    if status == "disputed":
        raise error(place, "file.status", status, "a status that holds for every value without its own")
    return Place(file, source, status)


def _inherited(fact: Fact) -> Fact:
    """Returns a base's fact as inherited, for a chip without a source of its own for it."""
    return fact if fact.status in ("disputed", "unknown") else Fact(fact.value, fact.source, "inherited")


def _own_facts(place: Place, name: str, own: dict[str, Any]) -> Iterator[tuple[str, Fact]]:
    kinds = schema(Chip)
    sections = {path.partition(".")[0] for path in kinds if "." in path}
    shown = own.get(SHOWN, {})
    if not isinstance(shown, dict):
        raise error(place, SHOWN, shown, "a table of facts")
    for key, given in (*own.items(), *shown.items()):
        if key == SHOWN:
            continue
        if key in NAMES:
            yield from _names(place, name, key, given)
        elif key in sections and isinstance(given, dict):
            for inner, value in given.items():
                path = f"{key}.{inner}"
                yield path, read_fact(place, path, value, _kind(place, kinds, path))
        elif key not in ABOUT_THE_FILE:
            yield key, read_fact(place, key, given, _kind(place, kinds, key))


def _kind(place: Place, kinds: dict[str, Any], path: str) -> Any:
    if path not in kinds:
        raise error(place, path, "a value", "a known key (`hexane targets NAME` lists them)", plain=True)
    return kinds[path]


def _names(place: Place, name: str, key: str, given: Any) -> Iterator[tuple[str, Fact]]:
    """Yields the names of this target with their facts. In the file, a name is a text, or a table {name, source,
    status} whose claims are names of targets."""
    if not isinstance(given, list):
        raise error(place, key, given, "a list of names")
    for item in given:
        if isinstance(item, dict):
            spelling, source, status, claims = read_table(place, key, item, str, "name")
            fact = Fact(name, source, status, claims)
        else:
            spelling, fact = item, Fact(name, place.source, place.status)
        if not isinstance(spelling, str) or not spelling:
            raise error(place, key, spelling, "a name")
        yield f"{key}.{spelling}", fact
