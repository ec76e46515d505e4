"""Answers questions about a target, which is given by its name in any spelling."""

from difflib import get_close_matches
from functools import cache
from typing import Any

from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.fact import Fact
from hexane.targets.family import Family, Tier
from hexane.targets.names import load_target
from hexane.targets.read import schema
from hexane.targets.tables import listed_names, table, target_names
from hexane.targets.target import Target


def chip_names(*, all: bool = False) -> tuple[str, ...]:
    """The names of the chips in known products. all: also reference targets, embedded parts, and variants that no
    device reports."""
    names = target_names() if all else listed_names()
    return tuple(name for name in names if isinstance(load_target(name), Chip))


def products_without_mil() -> tuple[str, ...]:
    """The known products whose chips take no programs in MIL; "all" leaves them out of reports."""
    floor = Family[table("floors")["mil"]["floor"]]
    chips = (chip for chip in map(load_chip, chip_names()) if chip.family < floor)
    return tuple(product for chip in chips for product in chip.products)


def load_chip(target: str | Target) -> Chip:
    """Like `load_target`, for a chip. Raises Error for the host, and for any value that is neither a name nor a
    chip."""
    chip = load_target(target)
    if not isinstance(chip, Chip):
        raise Error(
            f"[targets] got {chip.name!r}, which is no chip, need the name of one (`hexane targets` lists the chips)"
        )
    return chip


def fact(target: str | Target, name: str | int) -> Fact:
    """The fact with this name ("extents.width", or "width" if that is unambiguous) or at this offset in the parameter
    block (0x138, "0x138"), with source and status. Raises Error for a name or offset that the target does not have."""
    known = load_target(target)
    path = str(name) if name in known.facts else _path(name)
    if path not in known.facts:
        raise Error(f"[targets] {path}: got {known.name!r}, which has no such fact, need a chip")
    return known.facts[path]


def limit(target: str | Target, name: str | int) -> Any:
    """The plain value of a fact about a target: None if it is unknown, or if there is no such limit."""
    return fact(target, name).value


def native_streams(target: str | Target) -> tuple[str, ...]:
    """The weight encodings that stay compressed until the engine reads them; other encodings only save space on
    disk."""
    streams: tuple[str, ...] = limit(target, "formats.streams")
    return streams


def family_of_arch(arch: str | Chip) -> Family:
    """The family that decides which ops are legal on a target."""
    return load_chip(arch).family


def tier_of_arch(arch: str | Chip) -> Tier:
    """The tier whose capabilities a target has."""
    return load_chip(arch).tier


def _path(name: str | int) -> str:
    paths = _paths()
    try:
        offset = name if isinstance(name, int) else int(name, 0) if name.startswith("0x") else None
    except ValueError:
        offset = None
    key = str(name) if offset is None else f"{offset:#x}"
    if key not in paths:
        near = get_close_matches(key, paths, 3)
        raise Error(f"[targets] got the fact {name!r}, need {'one like ' + ', '.join(near) if near else 'a known one'}")
    if len(paths[key]) > 1:
        raise Error(f"[targets] got the fact {name!r}, need one of {', '.join(paths[key])}")
    return paths[key][0]


@cache
def _paths() -> dict[str, tuple[str, ...]]:
    """The paths of facts by each name under which a caller may request a fact."""
    by_key: dict[str, tuple[str, ...]] = {}
    for path in schema(Chip):
        for key in {path, path.rpartition(".")[2], *offsets(path)}:
            by_key[key] = (*by_key.get(key, ()), path)
    return {key: (key,) if key in paths else paths for key, paths in by_key.items()}


def offsets(path: str) -> list[str]:
    """The offsets of a field in the compiler's parameter block, in hexadecimal."""
    given = field_table().get(path, {}).get("offset", [])
    return [f"{offset:#x}" for offset in (given if isinstance(given, list) else [given])]


@cache
def field_table() -> dict[str, dict[str, Any]]:
    """shared/fields.toml by path: the meaning of each field (text), its unit, its offset or offsets, and what reads it
    (used)."""
    rows: dict[str, dict[str, Any]] = {}
    for key, value in table("fields").items():
        if "text" in value:
            rows[key] = value
        else:
            rows |= {f"{key}.{inner}": row for inner, row in value.items()}
    return rows
