"""Task descriptors: the register writes that start one task on the engine. The offsets of fields differ between
generations."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from hexane.targets.chip import Chip
from hexane.targets.fact import Place, check_keys, check_source, convert
from hexane.targets.family import Family
from hexane.targets.names import load_target
from hexane.targets.tables import table, target_names

FILE = "shared/descriptors.toml"


@dataclass(frozen=True, slots=True)
class Block:
    """Registers of one engine block. header: the word in front of the registers in a stream. offset: of the registers
    in an image."""

    block: str
    address: int
    bytes: int
    header: int | None
    offset: int | None
    source: str
    status: str


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One generation of descriptors. patch_width: the byte offset of the field for the patch width; None without
    patches, or if the offset is unknown. families: as grouped in a published table. targets: the chips whose files name
    it. defect: a compiler defect, or ""."""

    generation: int
    patch_width: int | None
    families: tuple[Family, ...]
    targets: tuple[str, ...]
    defect: str
    source: str
    status: str
    blocks: tuple[Block, ...]


@cache
def descriptors() -> tuple[Descriptor, ...]:
    """All generations of task descriptors, oldest first. Raises Error for a broken file."""
    given = table("descriptors")
    place = Place(FILE, "", "")
    check_keys(place, "file", given, {"source", "status", "defect", "generations", "blocks"})
    source, status = check_source(place, "file", given)
    place = Place(FILE, source, status)
    users: dict[int, list[str]] = {}
    for name in target_names():
        target = load_target(name)
        if isinstance(target, Chip) and target.descriptor is not None:
            users.setdefault(target.descriptor, []).append(name)
    return tuple(
        _descriptor(place, int(number), row, given, tuple(users.get(int(number), ())))
        for number, row in given["generations"].items()
    )


def _descriptor(
    place: Place, number: int, row: dict[str, Any], given: dict[str, Any], users: tuple[str, ...]
) -> Descriptor:
    path = f"generations.{number}"
    absent: dict[str, Any] = {"patch_width": "none", "families": [], "defect": False}
    row = absent | {"source": place.source, "status": place.status} | row
    check_keys(place, path, row, {"source", "status", "patch_width", "families", "defect"})
    source, status = check_source(place, path, row)
    return Descriptor(
        generation=number,
        patch_width=convert(place, f"{path}.patch_width", row["patch_width"], int | None),
        families=tuple(convert(place, f"{path}.families", name, Family) for name in row["families"]),
        targets=users,
        defect=given["defect"] if row["defect"] else "",
        source=source,
        status=status,
        blocks=_blocks(place, f"blocks.{number}", given["blocks"].get(str(number))),
    )


def _blocks(place: Place, path: str, given: dict[str, Any] | None) -> tuple[Block, ...]:
    if given is None:
        return ()
    check_keys(place, path, given, {"source", "status", "rows"})
    source, status = check_source(place, path, given)
    blocks = []
    for row in given["rows"]:
        full = {"header": "none", "offset": "none"} | row
        check_keys(place, path, full, {"block", "address", "bytes", "header", "offset"})
        kinds = {"block": str, "address": int, "bytes": int, "header": int | None, "offset": int | None}
        values = {key: convert(place, f"{path}.{key}", full[key], kind) for key, kind in kinds.items()}
        blocks.append(Block(**values, source=source, status=status))
    return tuple(blocks)
