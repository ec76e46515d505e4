"""Every difference between the published tables and the targets' files, with the reason where it is deliberate."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from published import census, features, limits
from published.cell import Cell, Cells, plain

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPLAINED = Path(__file__).with_name("explained.toml")
KEYS = {"table", "field", "published", "because"}  # and, where only some of them are meant: row, about

COMPARED: dict[str, Callable[[Path], Cells]] = {
    "aneforge_targets": census.aneforge_targets,
    "compression_formats": features.compression_formats,
    "cost_curves_freq and costmodel_curves": census.clocks,
    "cost_curves_levels": census.levels,
    "costmodel_summary": census.cost_summary,
    "family_limits": limits.family_limits,
    "hal_capability_bytes": limits.hal_capability_bytes,
    "hal_scalars": limits.hal_scalars,
    "lut_tables": features.lut_tables,
    "op_catalog": features.op_catalog,
    "op_device_matrix": features.op_device_matrix,
    "op_floors": features.op_floors,
    "per_tier_limits": limits.per_tier_limits,
    "product_map": census.product_map,
    "silicon_map": census.silicon_map,
    "targets": census.census,
    "targets_newer_compiler": census.newer_compiler,
    "task_descriptor_facts": features.descriptor_facts,
    "td_v10_apertures": features.apertures,
    "td_versions": census.descriptor_generations,
}

# Tables that state nothing that stands in a target's file, and where their content is.
ELSEWHERE = {
    "allocation_types": "csrc/alloc",
    "ane_latency_train": "measured times, which no file of a target has",
    "bridge_ops": "layers of netplists: emit/netplist",
    "cost_curves_freq": "compared with costmodel_curves",
    "costmodel_curves": "compared with cost_curves_freq",
    "enum_microop_opcode": "numbers in task descriptors",
    "enum_misc": "numbers in containers and netplists",
    "enum_neuron_tokens": "tests/passes/engine/test_published_fusion.py",
    "enum_nonlinear_mode": "tests/passes/engine/test_published_fusion.py",
    "enum_zin_unit_type": "names of layers inside the compiler",
    "firmware_commands": "the firmware's, which nothing here sends",
    "firmware_magic": "containers of firmware, which nothing here reads",
    "fused_ops": "the other package's own fusions",
    "iokit_selectors": "the driver's calls",
    "layer_descriptors": "tests/targets/test_legality.py",
    "lut_errors": "tests/engine/test_activations.py",
    "m5_cost_fits": "fits of measured times",
    "m5pro_op_latency_us": "measured times, which no file of a target has",
    "mil_lowering": "the other package's own rewrites",
    "mil_op_args": "mil/arguments.py",
    "mil_sweep_M5": "tests/targets/test_legality.py",
    "mil_vocab_sweep": "another compiler's answers, one form of each op",
    "netplist_keys": "emit/netplist",
    "netplist_params": "emit/netplist",
    "numeric_cases": "tests/engine",
    "onnx_ops": "the other package's importer",
    "perf_numbers": "measured times, which no file of a target has",
    "program_format": "containers",
    "scheduler_rules": "csrc/sched",
    "silicon_fingerprints": "tests/engine",
    "tigris_baseline": "another compiler for microcontrollers",
    "validators": "tests/validate/test_layers_of_the_engine.py",
    "validators_nonlayer": "validate, the umbrella over a network",
}


@dataclass(frozen=True, slots=True)
class Difference:
    cell: Cell
    because: str  # "" where nobody has explained it

    def __str__(self) -> str:
        cell, ours = self.cell, self.cell.ours
        claims = "; ".join(f"{plain(c.value)} ({c.status}, {c.source})" for c in ours.claims)
        return (
            f"{cell.table}, {cell.row}: {cell.about} {cell.field}: published {cell.published!r}, "
            f"ours {plain(ours.value)!r} ({ours.status}, {ours.source})"
            + (f", claims {claims}" if claims else "")
            + f"\n    {self.because or 'NOT EXPLAINED'}"
        )


def cells(folder: Path) -> Iterator[Cell]:
    for read in COMPARED.values():
        yield from read(folder)


def explanations() -> list[dict[str, Any]]:
    """The rows of explained.toml. Raises ValueError for a row that lacks a key."""
    given: list[dict[str, Any]] = tomllib.loads(EXPLAINED.read_text(encoding="utf-8"))["difference"]
    for row in given:
        if not row.keys() >= KEYS or not row.keys() <= KEYS | {"row", "about"}:
            raise ValueError(f"[{EXPLAINED.name}] got the keys {', '.join(row)}, need {', '.join(sorted(KEYS))}")
    return given


def explains(row: dict[str, Any], cell: Cell) -> bool:
    """Whether a row of explained.toml is about this cell: names by patterns, the published value exactly."""
    names = ((row["table"], cell.table), (row["field"], cell.field), (row.get("row", "*"), cell.row))
    about = row.get("about", ["*"])
    published = str(cell.published) if isinstance(row["published"], str) else plain(cell.published)
    return (
        all(fnmatchcase(name, pattern) for pattern, name in names)
        and any(fnmatchcase(cell.about, pattern) for pattern in about)
        and plain(row["published"]) == published
    )


def differences(folder: Path) -> list[Difference]:
    rows = explanations()
    found = []
    for cell in cells(folder):
        if not cell.agrees:
            because = next((row["because"] for row in rows if explains(row, cell)), "")
            found.append(Difference(cell, because))
    return found
