"""Tables with a row for each target: the census, ANEForge's targets, clocks, descriptors, products."""

import re
from pathlib import Path
from typing import Any

from hexane.targets import Fact, Family
from hexane.targets.names import parse
from hexane.targets.query import chip_names, load_chip
from hexane.targets.tables import table, target_names, target_table
from published.cell import BLANK, Cell, Cells, of_chip, rows, unread

GENERATION = {"pre-A13": "older", "small": None, "reference": None}  # the base of the files; None: has none of its own
FAMILY = {
    "A12-class": "A12",
    "A15 (legality) ": "A15",
    "A16-class flags": "A16",
    "reference": None,  # the table gives none
}
# What the notes of the census state beyond its columns. None: about products and names, which product_map corrects.
NOTES: dict[str, dict[str, Any] | None] = {
    "": {},
    "8 NEs per ANE in M6-study HAL; divisor 32": {"cores": 8, "hal.cycle_divisor": 32},
    "8 NEs per ANE in M6-study HAL": {"cores": 8},
    "1 MB operand cap; divisor 16; 2 NEs per ANE in M6-study HAL": {
        "memory.working_set": 1048576,
        "hal.cycle_divisor": 16,
        "cores": 2,
    },
    "runtime arch h13/h13g": None,
    "only tier accepting YUV420 input": {"gates.yuv420": True},
    "ch35 map: hw version 8 -> family index 4": {"hardware_version": 8},
    "M6 study saw M5 and A18 Pro run as h17": None,
    "only target with fp8 E4M3 (0x52d) and FIFO DMA (0x563)": {"gates.dma_e4m3": True, "gates.fifo_dma": True},
    "kernel width cap 15; divisor 16; dims of A13 tier": {
        "extents.kernel_width": 15,
        "hal.cycle_divisor": 16,
        "extents.width": 16384,
    },
    "kernel-width limit 1023, validation profile": {"extents.kernel_width": 1023},
}
CORES = {"1..4 (not itemised)": (BLANK,), "4 (ch34) / 16 (cost curves)": (4, 16)}


def census(folder: Path) -> Cells:
    for row in rows(folder, "targets"):
        name = row["target"].lower()

        def cell(path: str, value: Any, name: str = name) -> Cell:
            return of_chip("targets", name, name, path, value)

        base = target_table(name)["base"]
        generation = GENERATION.get(row["tier"], row["tier"].lower())
        if generation is not None:
            yield Cell("targets", name, name, "base", generation, Fact(base, "the file", "read"))
        for value in CORES.get(row["num_nes_guide_0x238"]) or (int(row["num_nes_guide_0x238"]),):
            yield cell("hal.num_nes", value)
        yield cell("hardware_version", _number(row["hw_version_key"]))
        family = FAMILY.get(row["anec_family_for_legality"], row["anec_family_for_legality"])
        if family is not None:
            yield cell("family", family)
        if row["family_index"]:
            yield cell("family", Family(int(row["family_index"])).name)
        yield cell("cpu_subtype", _number(row["hwx_cpusubtype"]))
        yield cell("descriptor", _number(row["td_version(M6 study)"]))
        for path in ("extents.width", "extents.height"):
            yield cell(path, int(row["max_tensor_WH"]))
        yield cell("extents.depth", int(row["max_tensor_D"]))
        yield cell("gates.texture_engine", int(row["texture_engine_0x81d"]))
        for path in ("gates.sin_cos", "gates.dropout_random"):
            yield cell(path, int(row["sin_cos_dropout"]))
        yield cell("hal.interchange_formats", int(row["interchange_formats"]))
        yield _ends_of_clocks(name, row["clock_range_MHz"])
        if row["note"] not in NOTES:
            raise unread("targets", name, row["note"])
        for path, value in (NOTES[row["note"]] or {}).items():
            yield cell(path, value)


def _number(text: str) -> Any:
    return int(text) if text else BLANK


def _ends_of_clocks(name: str, text: str) -> Cell:
    clocks = load_chip(name).facts["clocks.engine"]
    ends = None if clocks.value is None else tuple(sorted({clocks.value[0], clocks.value[-1]}))
    published = tuple(int(end) for end in text.split("-")) if text else BLANK
    return Cell("targets", name, name, "clocks.engine", published, Fact(ends, clocks.source, clocks.status))


def newer_compiler(folder: Path) -> Cells:
    """m12 and u4 are no targets here: shared/unknown_names.toml says what is known of them."""
    about = table("unknown_names")
    for row in rows(folder, "targets_newer_compiler"):
        name = row["target"]
        if name in target_names():
            yield of_chip("targets_newer_compiler", name, name, "cpu_subtype", int(row["cpusubtype"].split()[1]))
            yield of_chip("targets_newer_compiler", name, name, "descriptor", int(row["td"].removeprefix("TD v")))
        elif name in about:
            said, source = about[name]["about"], about[name]
            for text in re.findall(r"\d+", row["cpusubtype"] + row["td"]):
                ours = Fact(text if re.search(rf"\b{text}\b", said) else said, source["source"], source["status"])
                yield Cell("targets_newer_compiler", name, name, "unknown_names", text, ours)
        else:
            known = re.findall(r"\b[hmtu]\d+[a-z]?\b", row["cpusubtype"] + row["td"] + row["silicon"])
            if not known:
                raise unread("targets_newer_compiler", name, str(row))
            for other in known:
                here = other in target_names() or other in about
                ours = Fact(here, "the names of files and of shared/unknown_names.toml", "read")
                yield Cell("targets_newer_compiler", name, other, "a known name", True, ours)


TIERS = {"(unmapped reference target)": None}


def aneforge_targets(folder: Path) -> Cells:
    """A target without a curve of its own has the cost figures of another there: they state nothing about it."""
    for row in rows(folder, "aneforge_targets"):
        name = row["arch"]
        tier = TIERS.get(row["family"], row["family"])
        if tier is None:
            continue
        yield of_chip("aneforge_targets", name, name, "tier", tier)
        if row["native_streams"]:
            ours = load_chip(name).facts["formats.streams"]
            ours = Fact(tuple(sorted(ours.value)), ours.source, ours.status, ours.claims)
            streams = tuple(row["native_streams"].split(";"))
            yield Cell("aneforge_targets", name, name, "formats.streams", streams, ours)
        if row["own_curve"] == "1":
            yield of_chip("aneforge_targets", name, name, "hal.num_nes", int(row["cores"]))
            yield of_chip("aneforge_targets", name, name, "hal.cycle_divisor", int(row["divisor_0x228"]))
            yield of_chip("aneforge_targets", name, name, "hal.clock_multiplier", int(row["mult_0x75c"]))


CURVES = (
    ("cost_curves_freq", "arch", "freq_MHz_0x760", "eff_MHz_0x7a8"),
    ("costmodel_curves", "target", "freq_MHz", "effective_MHz"),
)


def clocks(folder: Path) -> Cells:
    for name, key, engine, effective in CURVES:
        found: dict[str, list[tuple[int, int]]] = {}
        for row in rows(folder, name):
            found.setdefault(row[key].lower(), []).append((int(float(row[engine])), int(float(row[effective]))))
        for chip, points in found.items():
            yield of_chip(name, chip, chip, "clocks.engine", tuple(point[0] for point in points))
            yield of_chip(name, chip, chip, "clocks.effective", tuple(point[1] for point in points))
        for chip in sorted(set(chip_names(all=True)) - set(found)):
            yield of_chip(name, chip, chip, "clocks.engine", BLANK)


def levels(folder: Path) -> Cells:
    paths = {"rate_0x778": "clocks.fabric", "level_0x790": "clocks.dram"}
    found: dict[tuple[str, str], list[int]] = {}
    for row in rows(folder, "cost_curves_levels"):
        found.setdefault((row["arch"].lower(), paths[row["kind"]]), []).append(int(float(row["MHz"])))
    for (chip, path), values in found.items():
        yield of_chip("cost_curves_levels", chip, chip, path, tuple(values))


def cost_summary(folder: Path) -> Cells:
    for row in rows(folder, "costmodel_summary"):
        name = row["target"].lower()
        for path, column in (
            ("hal.num_nes", "num_nes_0x238"),
            ("hal.cycle_divisor", "divisor_0x228"),
            ("hal.clock_multiplier", "mult_0x75c"),
        ):
            yield of_chip("costmodel_summary", name, name, path, int(row[column]))
        for path, column in (("clocks.fabric", "rate_0x778_MHz"), ("clocks.dram", "dram_level_0x790_MHz")):
            yield of_chip("costmodel_summary", name, name, path, tuple(map(int, row[column].split())))


def descriptor_generations(folder: Path) -> Cells:
    for row in rows(folder, "td_versions"):
        for name in re.findall(r"\b[HTM]\d+g?\b", row["target"]):
            chip = name.lower()
            if chip not in target_names():  # m12: targets_newer_compiler has the same
                continue
            yield of_chip("td_versions", row["target"], chip, "descriptor", int(row["td_version (751K)"][1:]))
            subtypes = [int(part) for part in row["hwx_cpusubtype"].split(",")]
            fact = load_chip(chip).facts["cpu_subtype"]
            published = fact.value if fact.value in subtypes else subtypes[0]
            yield Cell("td_versions", row["target"], chip, "cpu_subtype", published, fact)


# ---- which product is which target ----

STATUS = {"claimed": "read", "measured (A18 Pro)": "measured"}


def product_map(folder: Path) -> Cells:
    """Its first target of a row is taken; a dispute keeps the others. The status is that of our value's best claim."""
    for row in rows(folder, "product_map"):
        products = re.findall(r"[AM]\d+X?Z?(?: Pro| Max)?", row["products"])
        target = row["target"].split()[0]
        for product in products:
            ours = load_chip(parse(product)).facts[f"products.{product}"]
            yield Cell("product_map", row["products"], product, "target", target, ours)
            if row["status"] != "measured (A18 Pro)" or product == "A18 Pro":
                status = Fact(_best(ours, row["status"]), ours.source, ours.status, ours.claims)
                published = STATUS.get(row["status"], row["status"])
                yield Cell("product_map", row["products"], product, "status", published, status)
        for die in row["soc"].split():
            found = parse(die)
            yield Cell("product_map", row["products"], die, "target", target, Fact(found, "the names of dies", "read"))


def _best(fact: Fact, published: str) -> str:
    """The published status where the fact or one of its claims with our value has it, else the fact's."""
    claims = [claim.status for claim in fact.claims if claim.value == fact.value]
    return published if published in (*claims, fact.status) else fact.status


def silicon_map(folder: Path) -> Cells:
    for row in rows(folder, "silicon_map"):
        if not row["compiler_target_guide"]:
            continue  # product_map has M6
        target = row["compiler_target_guide"].lower()
        name, *larger = row["product"].split("/")
        names = [name, *(f"{name.split()[0]} {size}" for size in larger), row["soc"].replace("x", "0")]
        for spelling in names:
            chip = parse(spelling)
            key = next((k for k in load_chip(chip).facts if k.partition(".")[2] == spelling), None)
            ours = load_chip(chip).facts[key] if key else Fact(chip, "the names of dies", "read")
            yield Cell("silicon_map", row["product"], spelling, "target", target, ours)
