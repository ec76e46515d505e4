"""The files at the top of the repository: changelog, versions, and files for the host and for contributors."""

import ast
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import hexane as hx

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")

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
    assert f"\nversion: {hx.__version__}\n" in read("CITATION.cff")


def test_the_host_runs_the_script_that_a_change_must_pass() -> None:
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    commands = {name: [step["run"] for step in job["steps"] if "run" in step] for name, job in jobs.items()}
    assert jobs["run"]["strategy"]["matrix"]["debian"] == ["debian:12", "debian:13"]
    assert ".ci/run" in commands["run"]
    assert "make wheel" in commands["wheel"]
    assert "venv/bin/python source/.ci/smoke.py" in commands["install-wheel"]


def test_pre_commit_runs_the_checkers_of_lint() -> None:
    (repo,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    hooks = {hook["entry"].replace(".venv/bin", "$(BIN)"): hook for hook in repo["hooks"]}
    lint = read("Makefile").split("\nlint:")[1].split("\n\n")[0]
    commands = re.findall(r'\$\(STEP\) "[^"]*" (.*)', lint)
    assert [command.removesuffix(" .").removesuffix(" $(CPP_FILES)") for command in commands] == list(hooks)
    pattern = hooks["$(BIN)/clang-format --dry-run -Werror"]["files"]
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    roots = ("csrc/", "tests/cpp/", "tests/c99/", "tests/fake_ane/", "tests/fake_coreml/")
    sources = [path for path in tracked if path.startswith(roots) and path.endswith((".cpp", ".c", ".h", ".mm", ".m"))]
    assert sources == [path for path in tracked if re.search(pattern, path)]


def test_a_module_that_a_text_says_to_run_runs_something() -> None:
    """`python -m hexane.x` of a module of definitions alone prints nothing and ends with 0."""
    told = subprocess.check_output(
        ["git", "grep", "-hoE", r"python -m hexane(\.[a-z_]+)*", "--", "python", "docs"], cwd=ROOT, text=True
    )
    for line in set(told.splitlines()):
        path = ROOT / "python" / line.removeprefix("python -m ").replace(".", "/")
        if not path.is_dir():
            last = ast.parse(path.with_suffix(".py").read_text(encoding="utf-8")).body[-1]
            assert isinstance(last, ast.If | ast.Expr), line
        else:
            assert (path / "__main__.py").is_file(), line


PAGES = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))


def words_of_prose(page: str) -> int:
    """Returns the number of words outside of code blocks and tables."""
    without_fences = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    lines = [line for line in without_fences.splitlines() if not line.startswith(("|", "    "))]
    return len(" ".join(lines).split())


def test_code_and_tables_are_no_prose() -> None:
    assert words_of_prose("# A title\n\ntwo words\n\n    code\n\n```\ncode\n```\n| a | table |\n") == 5


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_at_most_1500_words_of_prose(page: str) -> None:
    """A longer page answers several questions. Pages that `make docs` derives as a whole stand in no file."""
    assert words_of_prose(read(page)) <= 1500


@pytest.mark.parametrize("name", ["bug", "chip-report", "wrong-verdict"])
def test_an_issue_template_asks_by_fields_of_known_types(name: str) -> None:
    form = yaml.safe_load(read(f".github/ISSUE_TEMPLATE/{name}.yml"))
    assert form["name"]
    assert form["description"]
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown"}
        assert field["attributes"]["value" if field["type"] == "markdown" else "label"]
    ids = [field["id"] for field in form["body"] if field["type"] != "markdown"]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "CHANGELOG.md"])
def test_a_page_at_the_top_has_links_that_lead_somewhere(name: str) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", read(name)):
        assert link.startswith("http") or (ROOT / link).exists(), link
