"""A target: what its kernels may do, as data in a TOML file beside this one."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hexane import _core
from hexane.errors import Error

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@dataclass(frozen=True, slots=True)
class Numerics:
    """An arithmetic: the family that kernels are looked up by, and the values of its parameter block by name."""

    name: str
    family: str
    parameters: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Memory:
    """A memory: its kind ("arena", "weights" or "state"), the alignment of what lies in it, and the most bytes it has
    (0: no limit)."""

    name: str
    kind: str
    alignment: int
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Target:
    """numerics: the arithmetic that kernels compute in. residual_epilogue: may a layer absorb the addition of a second
    live tensor. channels_last: do spatial kernels read NHWC. memories: where buffers lie, the preferred of a kind first."""

    name: str
    device: str
    numerics: Numerics
    residual_epilogue: bool
    channels_last: bool
    memories: tuple[Memory, ...]

    def memory(self, kind: str) -> Memory:
        """The first memory of the kind."""
        return next(memory for memory in self.memories if memory.kind == kind)


def load_target(name: str) -> Target:
    """The target of that name. Raises Error for one there is no file for, and for unknown or missing keys."""
    folder = Path(__file__).parent
    known = sorted(path.stem for path in folder.glob("*.toml"))
    if name not in known:
        raise Error(f"[target] got {name!r}, need one of {', '.join(known)}")
    table = tomllib.loads((folder / f"{name}.toml").read_text())
    need = {f.name for f in fields(Target)} - {"name"}
    if difference := table.keys() ^ need:
        raise Error(f"[target {name}] got the keys {sorted(table)}, the difference is {sorted(difference)}")
    families = _core.numerics_families()
    family = table["numerics"].pop("family", None)
    if family not in families:
        raise Error(f"[target {name}] numerics: got the family {family!r}, need one of {', '.join(families)}")
    memories = tuple(Memory(key, **row) for key, row in table["memories"].items())
    for kind in ("arena", "weights", "state"):
        count = sum(memory.kind == kind for memory in memories)
        if count == 0 or (count > 1 and kind != "arena"):
            raise Error(f"[target {name}] memories: got {count} of kind {kind}, need one")
    return Target(
        **{**table, "memories": memories, "name": name, "numerics": Numerics(name, family, table["numerics"])}
    )
