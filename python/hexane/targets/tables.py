"""Reads the TOML files in this folder."""

import sys
from functools import cache
from pathlib import Path
from typing import Any

from hexane.errors import Error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FOLDER = Path(__file__).parent


def parse_toml(text: str, file: str) -> dict[str, Any]:
    """The table in a TOML text. Raises Error for invalid TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Error(f"[{file}] got no TOML: {error}") from None


@cache
def target_names() -> tuple[str, ...]:
    """The names of all targets, from their files' names."""
    return tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


@cache
def listed_names() -> tuple[str, ...]:
    """The names of the targets in lists: the host, and the chips of known products. Targets that are not
    listed can still be found by name."""
    return tuple(name for name in target_names() if target_table(name).get("products", True))


@cache
def target_table(name: str) -> dict[str, Any]:
    """The table of a target's own file, without its bases."""
    return parse_toml((FOLDER / f"{name}.toml").read_text(encoding="utf-8"), f"{name}.toml")


@cache
def base_names() -> tuple[str, ...]:
    """The names of all bases."""
    return tuple(sorted(path.stem for path in (FOLDER / "bases").glob("*.toml")))


@cache
def base_table(name: str) -> dict[str, Any]:
    """The table of a base's own file."""
    return parse_toml((FOLDER / "bases" / f"{name}.toml").read_text(encoding="utf-8"), f"bases/{name}.toml")


@cache
def table(name: str) -> dict[str, Any]:
    """A table that belongs to no single target: families, fields, descriptors, sources."""
    return parse_toml((FOLDER / "shared" / f"{name}.toml").read_text(encoding="utf-8"), f"shared/{name}.toml")
