"""Finds the target that a spelling means: the name of a target, die, product or device, or a model identifier."""

import re
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from typing import NamedTuple

from hexane.errors import Error
from hexane.targets.devices import devices, identifiers
from hexane.targets.family import Family, Tier
from hexane.targets.read import NAMES, load
from hexane.targets.tables import listed_names, table, target_names, target_table
from hexane.targets.target import Target
from hexane.targets.unknown_names import unknown_names

# An error proposes names of at least this similarity to the spelling. It is below difflib's default, because names are
# short.
ALIKE = 1 / 2

# Hints for a Family or a Tier where a spelling is needed: the function that gives a target for it.
_HINTS = {
    "Family": " (hexane.targets.arch_for_family names one of a family)",
    "Tier": " (hexane.targets.arch_for_tier names one of a tier)",
}


class Name(NamedTuple):
    """A target, and the requested name of it in the usual spelling: ("h13", "A14")."""

    target: str
    written: str


def parse(spelling: str | Target) -> str:
    """The name of the target: "h13" for "H13", "T8101", "A14", "Apple M1", "iPhone 12", "iPhone13,2", or for that
    target itself. Case, spaces and hyphens do not matter.

    Raises Error for an unknown spelling, with the nearest known ones, and for a value that is no text.
    """
    return lookup(spelling).target


def lookup(spelling: str | Target) -> Name:
    """The target of a spelling, as in `parse`, and the usual spelling."""
    if isinstance(spelling, Target):
        return Name(spelling.name, spelling.asked or spelling.name)
    if not isinstance(spelling, str):
        hint = _HINTS.get(type(spelling).__name__, "")
        raise Error(f"[target] got {spelling!r}, need the name of a target, such as 'h13'{hint}")
    plain = _plain(spelling)
    if plain in target_names():
        return Name(plain, plain)  # returns without reading other files
    if result := find(plain):
        return result
    parts = [part for part in spelling.split(",") if part.strip()]
    if len(parts) > 1 and all(_plain(part) in target_names() or find(part) for part in parts):
        raise Error(f"[target] got {len(parts)} targets, {spelling!r}, need one")
    where = "`hexane targets` lists the chips, `hexane targets NAME` the devices with one"
    raise Error(f"[target] got {spelling!r}, {_said(plain)} ({where})")


def find(spelling: str) -> Name | None:
    """The target of a product, a device or a die, or None."""
    plain = _plain(spelling)
    if plain in _meanings():
        return _meanings()[plain]
    die = _meanings().get(re.sub(r"^(t\d{3})\d$", r"\1x", plain))
    return die and Name(die.target, plain)


def _said(plain: str) -> str:
    """The part of the error text that explains an unknown spelling."""
    for name, about in unknown_names().items():
        if plain == _plain(name):
            return about
    if (named := group(plain)) is not None:
        one = table("families")[f"{named[0]}_arch"].get(named[1])
        return (
            f"a group of chips, need one of them, such as {one}"
            if one
            else f"a {named[0]} that no target has, need a chip"
        )
    likely = [
        name
        for name, written in spellings().items()
        if written not in identifiers() and (name not in target_names() or written in listed_names())
    ]
    if near := [spellings()[match] for match in get_close_matches(plain, likely, cutoff=ALIKE)]:
        return f"need one like {', '.join(near)}"
    return f"need one of {', '.join(listed_names())}, or a chip or device, such as A14 or iPhone 12"


def group(spelling: str) -> tuple[str, str] | None:
    """The family or tier of that name, such as ("family", "A13") for "family A13"; None for any other name."""
    match = re.fullmatch(r"(family|tier)(\w+)", _plain(spelling))
    members = [] if match is None else list(Family if match[1] == "family" else Tier)
    return next(((match[1], member.name) for member in members if match and member.name.casefold() == match[2]), None)


def _plain(spelling: str) -> str:
    """The form in which spellings are compared. "iPad Air (5th generation)" is "iPad Air 5", "MacBook Air (M2, 2022)"
    is "MacBook Air M2"."""
    named = re.sub(r",\s*20\d\d\s*\)", ")", spelling.casefold())
    joined = re.sub(r"[\s_(),-]+", "", named).removeprefix("apple")
    return re.sub(r"(\d)(st|nd|rd|th)generation$", r"\1", joined)


@cache
def spellings() -> dict[str, str]:
    """Every known name, in the form in which spellings are compared, and in its usual spelling."""
    return {**{name: name for name in target_names()}, **{plain: name.written for plain, name in _meanings().items()}}


@cache
def _meanings() -> dict[str, Name]:
    result: dict[str, Name] = {}
    for target in target_names():
        for name in _names(target):
            other = result.setdefault(_plain(name), Name(target, name)).target
            if other != target:
                raise Error(f"[{target}.toml] got the name {name!r}, which {other} has, need it in one file")
    for device, chip in (*devices().items(), *identifiers().items()):
        if _plain(chip) not in result:
            raise Error(f"[shared/devices.toml] got the chip {chip!r}, which no target has, need a product of a target")
        result.setdefault(_plain(device), Name(result[_plain(chip)].target, device))
    return result


def _names(target: str) -> list[str]:
    table = target_table(target)
    items = [item for key in NAMES for item in table.get(key, [])]
    return [item["name"] if isinstance(item, dict) else item for item in items]


def load_target(name: str | Target) -> Target:
    """The target of a spelling. The target remembers the spelling; equal spellings return the same object. A target is
    returned unchanged. Raises Error for an unknown spelling or a broken file."""
    if isinstance(name, Target):
        return name
    asked = lookup(name)
    return load(asked.target) if asked.written == asked.target else _asked(asked)


@cache
def _asked(name: Name) -> Target:
    return replace(load(name.target), asked=name.written)
