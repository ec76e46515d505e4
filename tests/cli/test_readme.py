"""Options and links of the README, and the parts of pages that are derived. test_pages.py runs the code blocks."""

import re
from pathlib import Path

import pytest

from command import Cli
from hexane.cli.pages import PARTS, WHOLE, mark, with_its_part

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

# After a backquote, a prompt or the folder of a program.
COMMANDS = sorted(set(re.findall(r"(?:`|^\$ |/)hexane ([a-z]+)([^`\n]*)", README.read_text(encoding="utf-8"), re.M)))


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_every_command_has_the_options_it_is_shown_with(cli: Cli, name: str, arguments: str) -> None:
    shown = cli(name, "--help").out
    for option in re.findall(r"(?<!\S)--?[a-z0-9-]+", arguments):
        assert option in shown


def test_every_link_leads_somewhere() -> None:
    """Pages of the site may name pages that `make docs` derives; the README may not."""
    derived = {ROOT / "docs" / name for name in WHOLE}
    for page in (README, *(ROOT / "docs").rglob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                path = (page.parent / link).resolve()
                assert path.exists() or (page != README and path in derived), f"{page.name}: {link}"


@pytest.mark.parametrize("name", PARTS)
def test_a_page_has_one_place_for_its_derived_part(name: str) -> None:
    text = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert text.count(mark(name)) == 1
    whole = with_its_part(name, text)
    assert mark(name) not in whole
    assert "\n### " in whole


def test_a_page_that_is_derived_whole_stands_in_no_file() -> None:
    for name, page in WHOLE.items():
        assert not (ROOT / "docs" / name).exists()
        assert page().startswith("# ")
