"""Each field of a chip drives something in the compiler, or its description says that it does not."""

from typing import Any

import pytest

from field_uses import reads, used, uses
from hexane.cli.targets_page import page
from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.query import field_table
from hexane.targets.read import ABOUT_THE_FILE, NAMES, SHOWN, read_target, schema
from hexane.targets.tables import base_names, base_table, target_names, target_table

USES = uses()


@pytest.mark.parametrize("field", sorted(USES))
def test_a_field_that_the_compiler_does_not_read_says_so(field: str) -> None:
    said = field_table()[field].get("used", True)
    found = used(field, USES[field])
    assert said == found, (
        f"{field} is read by {sorted(USES[field]) or 'nothing'}: shared/fields.toml wants used = {found}"
    )


def _paths(table: dict[str, Any]) -> set[str]:
    """The paths of the facts of a file, or of one part of it."""
    sections = {path.partition(".")[0] for path in schema(Chip) if "." in path}
    return {
        path
        for key, given in table.items()
        if key not in ABOUT_THE_FILE | {SHOWN, *NAMES}
        for path in ([f"{key}.{inner}" for inner in given] if key in sections else [key])
    }


@pytest.mark.parametrize("name", [*target_names(), *(f"bases/{base}" for base in base_names())])
def test_facts_that_nothing_reads_stand_in_a_part_of_their_own(name: str) -> None:
    table = base_table(name.removeprefix("bases/")) if name.startswith("bases/") else target_table(name)
    not_read = {path for path, row in field_table().items() if row.get("used", True) is False}
    assert _paths(table.get(SHOWN, {})) <= not_read
    assert not _paths(table) & not_read


def test_a_shown_part_that_is_no_table_is_named() -> None:
    with pytest.raises(Error, match=r"\[x.toml\] shown: got 3, need a table of facts"):
        read_target('base = "a14"\nsource = "guide ch34"\nstatus = "decoded"\nshown = 3\n', "x")


def test_the_page_says_of_a_field_that_it_is_not_used() -> None:
    rows = {line.split("`")[1]: line for line in page().splitlines() if line.startswith("| `") and "." in line}
    assert "not used by the compiler" in rows["extents.patch_width"]
    assert "used by reports only" in rows["clocks.engine"]
    assert "used" not in rows["extents.kernel_height"]


FIELDS = {"extents.width", "extents.height", "gates.softmax", "cores", "memory.page"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("chip.extents.width", ["extents.width"]),
        ("e = self.chip.extents\ne.width + e.height", ["extents.width", "extents.height"]),
        ("a, m = 1, chip.memory\nm.page", ["memory.page"]),
        ("chip.facts['gates.softmax']", ["gates.softmax"]),
        ("b.chip.cores + load_chip(name).cores", ["cores", "cores"]),
        ("pool.cores, image.width, memory.page", []),
    ],
)
def test_reading_a_field_is_found(text: str, found: list[str]) -> None:
    assert list(reads(text, FIELDS)) == found
