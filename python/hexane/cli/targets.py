"""`hexane targets`: lists all targets, or shows one with every number and its source, or lists the generations of task
descriptors."""

from collections.abc import Iterable, Iterator
from enum import Enum
from textwrap import fill
from typing import Annotated, Any

import typer

from hexane.cli.errors import command
from hexane.cli.options import Debug, Json
from hexane.cli.output import print_json, print_table
from hexane.graph.decisions import counted
from hexane.report.legend import legend as columns
from hexane.report.report import packed_kinds
from hexane.targets import Chip, Fact, Target, load_target
from hexane.targets.descriptors import Descriptor, descriptors
from hexane.targets.devices import devices
from hexane.targets.fact import STATUSES
from hexane.targets.query import field_table, offsets
from hexane.targets.tables import listed_names, target_names

HEAD = (
    "known as",
    "target",
    "chips",
    "family",
    "tier",
    "cores",
    "compiler cores",
    "MHz",
    "width",
    "working set",
    "streams",
    "descriptor",
)
MEANINGS = {
    "known as": "devices and chips of products",
    "target": "an engine, by its name in Apple's compiler; each row is one",
    "family": "group of chips that take the same ops; the group's name is no product: A14 is of family A13",
    "tier": "group of chips with the same capabilities; the group's name is ANEForge's, and no product",
    "cores": "of the silicon",
    "compiler cores": "the number that Apple's compiler has for the chip",
    "MHz": "lowest and highest clock of the engine",
    "width": "most elements along the last axis of a tensor",
    "working set": "bytes of on-chip memory that tensors may take",
    "streams": "encodings of weights that the engine reads without unpacking",
    "descriptor": "generation of the task descriptors that start a layer",
}
STATUS = 5  # Index of the column with a fact's status.
LONG = 8  # Longer lists are abbreviated.


@command
def targets(
    name: Annotated[
        str | None, typer.Argument(help="Show this target in full: A14, M1, iPhone 12, a die, or its own name.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Also list chips that are in no product: reference targets and variants.")
    ] = False,
    show_descriptors: Annotated[
        bool, typer.Option("--descriptors", help="List the generations of task descriptors instead.")
    ] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """List the targets, or show one with every number, its source and status."""
    if show_descriptors:
        if name is not None:
            raise typer.BadParameter("--descriptors lists all generations, need no NAME")
        _show_descriptors(json)
    elif name is None:
        known = [load_target(target) for target in (target_names() if every else listed_names())]
        if json:
            print_json({"targets": [_summary(target) for target in known]})
        else:
            print_table(
                HEAD,
                [summary_row(target) for target in known],
                right=("cores", "compiler cores", "width", "descriptor"),
            )
            print(f"\n{columns('columns', MEANINGS)}")
            if left := len(target_names()) - len(known):
                print(f"\n{left} more targets, which no product has: `hexane targets --all`")
    elif json:
        print_json(_record(load_target(name)))
    else:
        _print_target(load_target(name))


def summary_row(target: Target) -> tuple[str, ...]:
    """Returns a row under HEAD. cores: of the silicon. compiler cores: the number that Apple's compiler assumes for the
    chip."""
    if not isinstance(target, Chip):
        return ("this CPU", target.name, *("" for _ in HEAD[2:]))
    clock = "" if target.clocks.engine is None else f"{target.clocks.engine[0]}-{target.clocks.engine[-1]}"
    compiler_cores, descriptor = ("" if n is None else str(n) for n in (target.hal.num_nes, target.descriptor))
    return (
        ", ".join(target.known) or target.silicon,
        target.name,
        ", ".join(target.products),
        str(target.family),
        str(target.tier),
        str(target.cores),
        compiler_cores,
        clock,
        str(target.extents.width),
        str(target.memory.working_set),
        ", ".join(packed_kinds(target.formats.streams)),
        descriptor,
    )


def _summary(target: Target) -> dict[str, Any]:
    if not isinstance(target, Chip):
        return {"name": target.name, "device": target.device}
    return {
        "name": target.name,
        "known_as": list(target.known),
        "device": target.device,
        "silicon": target.silicon,
        "products": list(target.products),
        "dies": list(target.dies),
        "family": target.family.name,
        "tier": target.tier.name,
        "cores": target.cores,
        "descriptor": target.descriptor,
        "streams": list(target.formats.streams),
    }


def _record(target: Target) -> dict[str, Any]:
    return {
        "name": target.name,
        "asked": target.asked,
        "devices": _devices(target),
        "facts": {path: _fact(path, fact) for path, fact in target.facts.items()},
    }


def _devices(target: Target) -> list[str]:
    """Returns the names of the devices with one of the target's chips."""
    products = target.products if isinstance(target, Chip) else ()
    return [device for device, chip in devices().items() if chip in products]


def _fact(path: str, fact: Fact) -> dict[str, Any]:
    meaning = field_table()[field_of(path)]
    record = {"value": plain(fact.value), "source": fact.source, "status": fact.status, "meaning": meaning["text"]}
    record["used"] = meaning.get("used", True)
    if "unit" in meaning:
        record["unit"] = meaning["unit"]
    if offsets(path):
        record["offsets"] = offsets(path)
    if fact.claims:
        record["claims"] = [{"value": plain(c.value), "source": c.source, "status": c.status} for c in fact.claims]
    return record


def plain(value: Any) -> Any:
    return value.name if isinstance(value, Enum) else list(value) if isinstance(value, tuple) else value


def value_text(fact: Any) -> str:
    value = plain(fact.value)
    if value is None:
        return "?" if fact.status == "unknown" else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and len(value) > LONG:
        return f"{value[0]} to {value[-1]}, {len(value)} in all"
    return " ".join(map(str, value)) or "none" if isinstance(value, list) else str(value)


def _print_target(target: Target) -> None:
    print(f"{title(target)}\n")
    rows = list(_rows(target))
    print_table(("what", "value", "unit", "offset", "used for", "status", "source"), rows)
    print(f"\n{legend(row[STATUS] for row in rows)}")
    if isinstance(target, Chip):
        print(f"\n{fill(image_formats(target), 120, break_on_hyphens=False)}")
        if names := _devices(target):
            print(f"\n{fill('devices: ' + ', '.join(names), 120, break_on_hyphens=False)}")


def title(target: Target) -> str:
    """Returns the first line about a target: "iPhone 12: engine h13, in the chips A14 and M1"."""
    if not isinstance(target, Chip):
        return target.label
    engine = f"{target.asked}: engine {target.name}" if target.asked else f"{target.name}: engine"
    if not target.products:
        return f"{engine} in no known product ({target.silicon})"
    *others, last = target.products
    chips = f"chips {', '.join(others)} and {last}" if others else f"chip {last}"
    return f"{engine}{',' if target.asked else ''} in the {chips}"


def image_formats(chip: Chip) -> str:
    """Returns a sentence on the image formats of a chip's ports."""
    count = chip.hal.interchange_formats
    if not count:
        return "Ports take no image format (guide ch34, decoded); Hexane's are plain tensors."
    yuv = "YUV 4:2:0 among them" if chip.gates.yuv420 else "YUV 4:2:0 not among them"
    return (
        f"Ports take {counted(count, 'image format')}, {yuv} (guide ch34, decoded). Which the others are is published"
        " for no single chip: the compiler knows BGRA8, RhA, L8, L16 and 420. Hexane's ports are plain tensors."
    )


def legend(statuses: Iterable[str]) -> str:
    """Returns the meanings of the columns "used for" and "status", and of these statuses."""
    shown = set(statuses)
    texts = [f"{status}: {meaning}" for status, meaning in STATUSES.items() if status in shown]
    used = (
        "used for: what Hexane does with the value. empty: its compiler decides by it; reports only: only reports read"
        " it; nothing: it is only shown"
    )
    lines = (used, "claim: what one of the disputing sources says", "status:", *(f"  {text}" for text in texts))
    return "\n".join(fill(line, 120, subsequent_indent="  ") for line in lines)


def _rows(target: Target) -> Iterator[tuple[str, ...]]:
    order = list(field_table())
    for path, fact in sorted(target.facts.items(), key=lambda item: order.index(field_of(item[0]))):
        unit = field_table()[field_of(path)].get("unit", "")
        yield path, value_text(fact), unit, " ".join(offsets(path)), use_text(path), fact.status, fact.source
        for claim in fact.claims:
            yield "  claim", value_text(claim), unit, "", "", claim.status, claim.source


def use_text(path: str) -> str:
    """Returns the text on Hexane's use of a field: "nothing", "reports only", or "" if its compiler reads
    it."""
    return {True: "", False: "nothing", "reports": "reports only"}[field_table()[field_of(path)].get("used", True)]


def field_of(path: str) -> str:
    """Returns the field of a fact. All facts about a target's names belong to one field."""
    head = path.partition(".")[0]
    return head if head in field_table() else path


def _show_descriptors(json: bool) -> None:
    if json:
        print_json({"descriptors": [_descriptor(d) for d in descriptors()]})
        return
    print_table(
        ("generation", "patch width", "families", "targets", "source"), [descriptor_row(d) for d in descriptors()]
    )
    for d in descriptors():
        if d.defect:
            print(f"\n{fill(f'Generation {d.generation}: {d.defect}', 120, break_on_hyphens=False)}")
    for d in descriptors():
        if d.blocks:
            print(f"\nregisters of generation {d.generation} ({d.blocks[0].status}, {d.blocks[0].source})\n")
            rows = [
                (b.block, hexadecimal(b.address), str(b.bytes), hexadecimal(b.header), hexadecimal(b.offset))
                for b in d.blocks
            ]
            print_table(("block", "address", "bytes", "header", "offset"), rows, right=("bytes",))


def descriptor_row(d: Descriptor) -> tuple[str, ...]:
    """Returns generation, offset of the patch width, families, targets and source."""
    families = ", ".join(str(f) for f in d.families)
    return str(d.generation), hexadecimal(d.patch_width), families, ", ".join(d.targets), f"{d.status}, {d.source}"


def _descriptor(d: Descriptor) -> dict[str, Any]:
    return {
        "generation": d.generation,
        "patch_width_offset": d.patch_width,
        "families": [f.name for f in d.families],
        "targets": list(d.targets),
        "defect": d.defect or None,
        "source": d.source,
        "status": d.status,
        "blocks": [{name: getattr(b, name) for name in b.__slots__} for b in d.blocks],
    }


def hexadecimal(number: int | None) -> str:
    return "" if number is None else f"{number:#x}"
