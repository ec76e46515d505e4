"""Each field of a chip drives something in the compiler, or its description says that it does not."""

import pytest

from field_uses import reads, used, uses
from hexane.cli.targets_page import page
from hexane.targets.query import field_table

USES = uses()


@pytest.mark.parametrize("field", sorted(USES))
def test_a_field_that_the_compiler_does_not_read_says_so(field: str) -> None:
    said = field_table()[field].get("used", True)
    found = used(field, USES[field])
    assert said == found, (
        f"{field} is read by {sorted(USES[field]) or 'nothing'}: shared/fields.toml wants used = {found}"
    )


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
