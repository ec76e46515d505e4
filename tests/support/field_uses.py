"""Which fields of chips the package reads, and where: found in its sources."""

import ast
from collections.abc import Iterator
from pathlib import Path

import hexane
from hexane.targets import Chip
from hexane.targets.floors import layers
from hexane.targets.read import NAMES, schema

PACKAGE = Path(hexane.__file__).parent
# These tell people what is known, or answer questions about targets: they decide nothing about a program.
REPORTS = (
    "report/",
    "cost/",
    "cli/",
    "bench/",
    *(f"targets/{name}.py" for name in ("descriptors", "divergence", "groups", "query")),
)
# These print every field there is.
PRINTERS = ("cli/targets.py", "cli/targets_page.py")
CHIPS = ("chip", "target")  # names of variables and attributes that hold a target


def uses() -> dict[str, set[str]]:
    """For each field, the files that read it, without those that print all fields."""
    fields = schema(Chip)
    found: dict[str, set[str]] = {path: set() for path in fields}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        if name not in PRINTERS:
            own = ("self",) if name in ("targets/chip.py", "targets/target.py") else ()
            for field in reads(path.read_text(encoding="utf-8"), set(fields), (*CHIPS, *own)):
                found[field].add(name)
    for layer in layers().values():  # the gate of a layer is named in shared/floors.toml
        if layer.gate:
            found[f"gates.{layer.gate}"].add("targets/legality.py")
    for field in NAMES:  # a name in the file of a target leads to it
        found[field].add("targets/names.py")
    return found


def used(field: str, files: set[str]) -> bool | str:
    """As shared/fields.toml says it: True for what the compiler reads, "reports" for what only they read."""
    if any(not name.startswith(REPORTS) for name in files):
        return True
    return "reports" if files else False


def reads(text: str, fields: set[str], chips: tuple[str, ...] = CHIPS) -> Iterator[str]:
    """The fields that a source reads: chip.extents.width, a local name for chip.extents, chip.cores,
    "extents.width"."""
    tree = ast.parse(text)
    sections = {path.partition(".")[0] for path in fields if "." in path}
    aliases = dict(_aliases(tree, sections))
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and "." in node.value
            and node.value in fields
        ):
            yield node.value
        elif isinstance(node, ast.Attribute):
            base = _last(node.value)
            section = base if isinstance(node.value, ast.Attribute) and base in sections else aliases.get(base)
            if f"{section}.{node.attr}" in fields:
                yield f"{section}.{node.attr}"
            elif node.attr in fields and base in chips:
                yield node.attr


def _aliases(tree: ast.AST, sections: set[str]) -> Iterator[tuple[str, str]]:
    """(name, section) of `e = chip.extents`, alone or in an assignment of several, and of a parameter `memory:
    Memory`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Name):
            section = node.annotation.id.lower()
            if section in sections and node.annotation.id != section:
                yield node.arg, section
        if isinstance(node, ast.Assign):
            for target in node.targets:
                several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                names, values = (target.elts, node.value.elts) if several else ([target], [node.value])
                for name, value in zip(names, values, strict=False):
                    if isinstance(value, ast.Attribute) and value.attr in sections:
                        yield _last(name), value.attr


def _last(node: ast.AST) -> str:
    """The last name of an expression: "chip" of `self.chip`, "load_chip" of a call."""
    if isinstance(node, ast.Call):
        made = _last(node.func)
        return "chip" if made in ("load_chip", "load_target") else made
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
