"""Prints what `hexane info` shows of files from Apple's compilers."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from hexane.cli.output import print_table
from hexane.errors import Error
from hexane.graph.decisions import counted
from hexane.graph.printer import size_text
from hexane.importers.files import open_regular, read_all
from hexane.targets.query import load_chip

if TYPE_CHECKING:
    from hexane.containers import Hwx

NOTE = "Read by published descriptions; nobody has compared this with what Apple's tools say."


def container_record(path: Path, kind: str) -> dict[str, Any]:
    """Returns the file's parts. Raises Error with the offset for a damaged file, or one of another kind."""
    from hexane.containers import read_e5, read_hwx

    data = read_all(open_regular(path, f"[info] {path}", "file"), f"[info] {path}")
    record: dict[str, Any] = {"model": str(path), "format": kind, "bytes": len(data)}
    if kind == "e5":
        e5 = read_e5(data)
        build = dict(e5.build)
        return record | {
            "version": e5.version,
            "build": build,
            "symbols": list(e5.symbols),
            "sections": len(e5.sections),
        }
    hwx = read_hwx(data)
    return record | {
        "tasks": _tasks(data, hwx),
        "cpu_subtype": hwx.cpu_subtype,
        "chips": list(hwx.chips),
        "file_type": hwx.file_type,
        "flags": hwx.flags,
        "commands": [{"kind": command, "bytes": size} for command, size in hwx.commands],
        "text_bytes": hwx.text_bytes,
        "weight_bytes": hwx.weight_bytes,
        "segments": [
            {
                "name": segment.name,
                "address": segment.address,
                "address_bytes": segment.address_bytes,
                "file_bytes": segment.bytes,
                "sections": [
                    {"name": s.name, "address": s.address, "bytes": s.bytes, "offset": s.offset}
                    for s in segment.sections
                ],
            }
            for segment in hwx.segments
        ],
        "symbols": len(hwx.symbols),
        "shapes": list(hwx.shapes),
    }


def _tasks(data: bytes, hwx: "Hwx") -> list[dict[str, Any]] | None:
    """Returns the non-zero fields of each task descriptor; None for another version than 7, or an unknown form of
    it."""
    from hexane.containers.task_descriptor import read_descriptors

    texts = [s for segment in hwx.segments for s in segment.sections if s.name.lower() == "__text"]
    if len(texts) != 1 or texts[0].offset is None:
        return None
    try:
        tasks = read_descriptors(data, texts[0].offset, texts[0].bytes)
    except Error:
        return None
    return [{path: value for path, value in task.fields.items() if value} for task in tasks]


def print_container(record: dict[str, Any]) -> None:
    print(f"{record['model']} ({record['format']}, {size_text(record['bytes'])})\n")
    if record["format"] == "e5":
        print(f"version {record['version']}, {record['sections']} sections, {len(record['symbols'])} symbols\n")
        print_table(("build", ""), list(record["build"].items()))
        print()
        print_table(("symbol",), [(name,) for name in record["symbols"]])
    else:
        chips = ", ".join(load_chip(name).title for name in record["chips"]) or "no chip that is known"
        print(f"generation {record['cpu_subtype']}: {chips}")
        print(f"task descriptors {size_text(record['text_bytes'])}, weights {size_text(record['weight_bytes'])}\n")
        if record["tasks"] is not None:
            said = counted(len(record["tasks"]), "task descriptor")
            print(f"{said} of version 7; --json has their fields (docs/descriptors.md)\n")
        rows: list[tuple[str, ...]] = []
        for segment in record["segments"]:
            rows.append((segment["name"], "", f"{segment['address']:#x}", str(segment["address_bytes"]), ""))
            for section in segment["sections"]:
                at = "none" if section["offset"] is None else str(section["offset"])
                rows.append(("", section["name"], f"{section['address']:#x}", str(section["bytes"]), at))
        head = ("segment", "section", "address", "bytes", "at byte")
        print_table(head, rows, right=("address", "bytes", "at byte"))
        if record["shapes"]:
            print()
            print_table(("shape",), [(name,) for name in record["shapes"]])
    print(f"\n{NOTE}")
