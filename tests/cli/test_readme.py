"""Options and links in the sentences of pages, and the parts of pages that are derived. test_pages.py runs the code blocks."""

import re
from pathlib import Path

import pytest

from command import options_of
from hexane.cli.pages import PARTS, WHOLE, mark, with_its_part

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"

PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_commands_of_a_sentence_have_the_options_they_are_shown_with(page: Path) -> None:
    for name, arguments in re.findall(r"`hexane ([a-z]+)([^`]*)`", page.read_text(encoding="utf-8")):
        for option in re.findall(r"(?<!\S)--?[a-z0-9-]+", arguments):
            assert option in options_of(name), f"hexane {name} has no {option}"


def test_every_link_leads_somewhere() -> None:
    """Pages of the site may name pages that `make docs` derives; the README may not."""
    derived = {ROOT / "docs" / name for name in WHOLE}
    for page in PAGES:
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
