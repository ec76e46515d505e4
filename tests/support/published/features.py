"""Tables of ops, compressed weights, activation tables and task descriptors."""

import re
from math import pi
from pathlib import Path

from hexane.targets import Fact, Family, Tier, op_status
from hexane.targets.activations import TABLE_OF, activations
from hexane.targets.descriptors import descriptors
from hexane.targets.floors import floors
from hexane.targets.query import chip_names, load_chip
from hexane.targets.tables import table
from published.cell import Cell, Cells, of_chip, rows, unread

# A cell of the matrix: what the verdict may be. Without a path, an op may still be written as others.
VERDICTS = {
    "Native": {"native"},
    "Bridge": {"decomposed", "host", "rejected"},
    "Family-gated": {"decomposed", "rejected"},
    "No path": {"host", "decomposed"},
}
MATRIX = {"M1_A13": ("h13",), "M2_A14": ("h14",), "M3_A15": ("h15",), "M4M5_A16A17": ("h16", "h17", "h17s")}


def op_floors(folder: Path) -> Cells:
    for row in rows(folder, "op_floors"):
        floor = floors()[row["op"]]
        native = Fact(floor.native, floor.source, floor.status)
        yield Cell("op_floors", row["op"], row["op"], "native", row["min_family"], native)
        yield Cell("op_floors", row["op"], row["op"], "native", Family(int(row["min_family_int"])).name, native)
        below = Fact(floor.below == "decomposed", floor.source, floor.status)
        published = row["decomposable_below_floor"] == "1"
        yield Cell("op_floors", row["op"], row["op"], "decomposed below", published, below)


def op_device_matrix(folder: Path) -> Cells:
    for row in rows(folder, "op_device_matrix"):
        for column, chips in MATRIX.items():
            for chip in chips:
                got = op_status(row["mil_op"], chip)
                fits = row[column] if got.verdict in VERDICTS[row[column]] else got.verdict
                ours = Fact(fits, got.source, got.status)
                yield Cell("op_device_matrix", row["mil_op"], chip, "verdict", row[column], ours)


def op_catalog(folder: Path) -> Cells:
    """min_native_family: the first family that runs the op, by the numbers of the compiler."""
    for row in rows(folder, "op_catalog"):
        if row["min_native_family"] and row["op"] in floors():
            floor = floors()[row["op"]]
            family = Family(int(row["min_native_family"])).name
            ours = Fact(floor.native, floor.source, floor.status)
            yield Cell("op_catalog", row["op"], row["op"], "native", family, ours)


# ---- compressed weights ----

STREAMS = {
    "int8 affine": (
        "w=s(q-z); z=0 on M1; q in [-127,127]; s fp16 scalar or per-Cout; streams A14+; folds on M1",
        "int8",
        Tier.A14,
    ),
    "int4 LUT": ("16-entry fp16 codebook, 2 indices/byte low nibble first; streams A13+", "int4", Tier.A13),
    "sparse": (
        "1-bit mask LSB-first ceil(n/8) bytes, then fp16 survivors in scan order; "
        "stream size ~ (1/16+density) x dense; streams A13+",
        "sparse",
        Tier.A13,
    ),
    "blockwise": (
        "w=s_b*q; streams A15+ (HAL) but MIL output only feeds elementwise (needs +0 bridge), "
        "no bandwidth win measured",
        "blockwise",
        Tier.A15,
    ),
}
PALETTE = (
    "2,4,6,8 (E4M3 palettes also 1,3); M1 practical 4 and 8; vector size v in {1,2,4,5} (mask 0x36); "
    "LUT bytes 32 (4b) / 512 (8b)"
)
E4M3 = "FN variant, max 448, overflow byte 0x7e saturate / 0x7f NaN; H18 only"
BUDGETS = "activation LUT 86 B (A13+), 150 B older; palette shares"
# Rows about bytes in files and registers, which no target's file has: those of packed weights are in csrc/pack.
NO_TARGET = {
    "kernel format enum", "vector palette", "zero point", "E5M2", "kernel unit sections", "OCG record",
    "coefficient streams",
    "LUT record", "streaming gate", "weight tiling", "double-MAC", "MIL blob dtype codes",
}  # fmt: skip


def compression_formats(folder: Path) -> Cells:
    name = "compression_formats"
    for row in rows(folder, name):
        item, text = row["item"], row["fact"]
        if item in STREAMS and text == STREAMS[item][0]:
            _, stream, first = STREAMS[item]
            for chip in map(load_chip, chip_names(all=True)):
                fact = chip.facts["formats.streams"]
                ours = Fact(stream in fact.value, fact.source, fact.status, fact.claims)
                yield Cell(name, item, chip.name, "formats.streams", chip.tier >= first, ours)
        elif (item, text) == ("palette index bits", PALETTE):
            for chip in map(load_chip, chip_names(all=True)):
                if chip.tier >= Tier.A13:
                    bits = (4, 8) if chip.tier is Tier.A13 else (2, 4, 6, 8)
                    yield of_chip(name, item, chip.name, "formats.palette_bits", bits)
        elif (item, text) == ("E4M3", E4M3):
            for chip in map(load_chip, chip_names(all=True)):
                if chip.facts["gates.dma_e4m3"].status != "unknown":
                    yield of_chip(name, item, chip.name, "gates.dma_e4m3", chip.name == "h18")
        elif (item, text) == ("LUT budgets", BUDGETS):
            for chip in map(load_chip, chip_names(all=True)):
                yield of_chip(name, item, chip.name, "memory.activation_table", 150 if chip.tier is Tier.OLDER else 86)
        elif item not in NO_TARGET:
            raise unread(name, item, text)


# ---- activation tables ----

DOMAIN = {
    "pi/2": pi / 2,
    "frac 0": 0.0,
    "frac 1": 1.0,
    "m 0.5": 0.5,
    "m 0.9375..1": 1.0,
    "1.75..2": 2.0,
    "0.9375..1": 1.0,
}
STEP = {"pi/64": pi / 64}


def lut_tables(folder: Path) -> Cells:
    for row in rows(folder, "lut_tables"):
        for function in row["function"].split(" ")[0].split(","):
            if not row["domain_lo"]:
                ours = Fact(function not in activations(), "shared/activations.toml", "read")
                yield Cell("lut_tables", row["function"], function, "no plain table", True, ours)
                continue
            found = activations()[TABLE_OF.get(function, function)]
            low, high = (_number(row[key], DOMAIN) for key in ("domain_lo", "domain_hi"))
            step = _number(row["step"], STEP)
            ends = Fact(found.domain, found.source, found.status)
            yield Cell("lut_tables", row["function"], function, "domain", (low, high), ends)
            count = Fact(len(found.knots), found.source, found.status)
            yield Cell("lut_tables", row["function"], function, "knots", round((high - low) / step) + 1, count)


def _number(text: str, words: dict[str, float]) -> float:
    if text in words:
        return words[text]
    top, _, bottom = text.partition("/")
    return float(top) / float(bottom or 1)


# ---- task descriptors ----

BLOCKS = {
    "kernel / common": "kernel and common", "dimensions": "dimensions", "tile DMA": "transfers", "L2 / texture": "L2",
    "elementwise / planar / pad": "planar", "kernel-fmt / op-mode": "formats and modes", "L2-result": "L2 results",
}  # fmt: skip
STREAM_BLOCKS = {
    "kernel": "kernel", "common": "common", "tile src": "source", "L2": "L2", "planar": "planar",
    "NE": "multiply-accumulate", "tile dst": "destination",
}  # fmt: skip


def apertures(folder: Path) -> Cells:
    name = "td_v10_apertures"
    blocks = {block.block: block for d in descriptors() if d.generation == 10 for block in d.blocks}
    for row in rows(folder, name):
        block = blocks[BLOCKS[row["group"].partition(" ")[2]]]
        size = 4 * int(row["window"].removesuffix(" words"))
        text = row["regAddr range"]
        start = 0 if text.startswith("<") else int(text.split(" .. ")[0], 16)
        for field, published in (("address", start), ("bytes", size), ("offset", int(row["image base"], 16))):
            ours = Fact(getattr(block, field), block.source, block.status)
            yield Cell(name, row["group"], block.block, field, published, ours)


def descriptor_facts(folder: Path) -> Cells:
    """Streams of generation 7, offsets of the patch width, the generations, and the stride of relocations."""
    name = "task_descriptor_facts"
    known = {d.generation: d for d in descriptors()}
    streams = {block.block: block for block in known[7].blocks}
    for row in rows(folder, name):
        item, text = row["item"], row["value"]
        if item.startswith("v7 stream "):
            block = streams[STREAM_BLOCKS[item.removeprefix("v7 stream ")]]
            header = int(text, 16)
            for field, published in (("header", header), ("address", header & 0xFFFFFF), ("bytes", header >> 24)):
                ours = Fact(getattr(block, field), block.source, block.status)
                yield Cell(name, item, block.block, field, published, ours)
        elif item == "patch-width offset by gen":
            for pair in text.split():
                generation, offset = pair.split(":")
                found = known[int(generation)]
                ours = Fact(found.patch_width, found.source, found.status)
                yield Cell(name, item, f"generation {generation}", "patch_width", int(offset, 16), ours)
        elif item == "TD generations":
            for number in map(int, re.findall(r"\d+", text.split(";")[0])):
                ours = Fact(number in known, table("descriptors")["source"], "decoded")
                yield Cell(name, item, f"generation {number}", "known", True, ours)
            with_patch = tuple(int(part) for part in re.findall(r"\d+", text.split(";")[1]))
            got = tuple(number for number, d in known.items() if d.patch_width is not None)
            yield Cell(
                name, item, "all", "patch_width", with_patch, Fact(got, table("descriptors")["source"], "decoded")
            )
        elif item == "known defect":
            ours = Fact(bool(known[7].defect), known[7].source, known[7].status)
            yield Cell(name, item, "generation 7", "defect", True, ours)
        elif item == "reloc stride":
            for chip in map(load_chip, chip_names(all=True)):
                if chip.tier >= Tier.A13 and chip.hardware_version is not None:
                    yield of_chip(name, item, chip.name, "relocation_stride", 8 if chip.tier is Tier.A13 else 16)
        elif item not in OTHER_DESCRIPTOR_FACTS:
            raise unread(name, item, text)


# Layouts of registers and words, which no target's file has.
OTHER_DESCRIPTOR_FACTS = {
    "v7 td size", "v7 header", "v7 BAR table", "v10 groups", "v10 dims", "v10 relocs", "strides", "opcode words M1",
    "fp8 fields", "TD v24 (M6)",
}  # fmt: skip
