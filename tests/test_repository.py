"""The files at the top of the repository: changelog, versions, and files for the host and for contributors."""

import re
from pathlib import Path

import hexane as hx

ROOT = Path(__file__).parents[1]


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_changelog_has_unreleased_changes_first_and_then_this_version() -> None:
    sections = re.findall(r"^## (.*)$", read("CHANGELOG.md"), re.MULTILINE)
    assert sections[0] == "Unreleased"
    assert re.match(re.escape(hx.__version__) + r" - (\d{4}-\d\d-\d\d|not released yet)$", sections[1])


def test_the_section_of_the_first_version_is_short() -> None:
    (first,) = re.findall(r"^## 0\.1\.0 .*?(?=^## |\Z)", read("CHANGELOG.md"), re.MULTILINE | re.DOTALL)
    assert len(first.split()) <= 2500


def test_the_page_of_versions_has_the_number_of_the_plan_format() -> None:
    (number,) = re.findall(r"#define PLAN_VERSION (\d+)u", read("csrc/plan/plan.h"))
    assert f"`PLAN_VERSION` in `csrc/plan/plan.h`, now {number}." in read("docs/versions.md")
    assert f"The plan format has version {number}." in " ".join(read("CHANGELOG.md").split())


def test_all_files_have_the_same_version() -> None:
    assert f'\nversion = "{hx.__version__}"\n' in read("pyproject.toml")
