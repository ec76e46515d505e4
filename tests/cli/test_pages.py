"""Every code block of every page runs, and prints the text that stands below it; --update-golden writes the text."""

import ctypes
import io
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from built_once import built_once
from command import Cli
from hexane.runtime import c99
from hexane.system.c99_library import open_library
from page_blocks import blocks_of
from page_files import give
from page_run import ROOT, PageRun, not_run

PAGES = sorted(
    path
    for path in (
        *ROOT.glob("*.md"),
        *(one for name in (".github", "docs", "examples") for one in (ROOT / name).rglob("*.md")),
    )
    if list(blocks_of(path.read_text(encoding="utf-8")))
)


@pytest.fixture(scope="session")
def runtime_in_c99(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], ctypes.CDLL]:
    """hexane.runtime.c99.library, which builds the runtime anew in every call."""

    def library() -> ctypes.CDLL:
        if shutil.which("cc") is None:
            pytest.skip("no C compiler 'cc'")
        return open_library(built_once(tmp_path_factory, "c99", lambda folder: c99.build(folder, ("-march=native",))))

    return cache(library)


@pytest.fixture
def run(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    runtime_in_c99: Callable[[], ctypes.CDLL],
) -> Callable[..., str]:
    """run(text, page) runs the blocks of a page in an empty folder, and returns it with the texts they print now."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(c99, "library", runtime_in_c99)
    monkeypatch.setattr(sys, "stdin", io.StringIO())

    def run(text: str, page: str = "") -> str:
        given: dict[str, Any] = give(page, text, cli, monkeypatch)
        return PageRun(text, cli, lambda: capsys.readouterr().out, given).run()

    return run


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_blocks_of_a_page_run(path: Path, run: Callable[..., str], request: pytest.FixtureRequest) -> None:
    before = path.read_text(encoding="utf-8")
    after = run(before, str(path.relative_to(ROOT)))
    if request.config.getoption("--update-golden"):
        path.write_text(after, encoding="utf-8")
    else:
        assert after == before


def test_the_blocks_and_commands_that_are_not_run(golden: Callable[[str, str], None]) -> None:
    rows = [f"{path.relative_to(ROOT)}: {row}" for path in PAGES for row in not_run(path.read_text(encoding="utf-8"))]
    golden("pages_not_run", "\n".join(rows))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("```\nhexane ops\n```", "got a block of ''"),
        ("    hexane ops", "got a block of 'indented'"),
        ("```ruby\nputs 1\n```", "got a block of 'ruby'"),
        ("<!-- not run: needs a Mac -->\n```ruby\nputs 1\n```", "got a block of 'ruby'"),
        ("<!-- not run: needs a Mac -->\n```python\nhx.no_such_function(1)\n```", "no attribute 'no_such_function'"),
        ("```text\n1\n```", "no Python block above prints a text"),
        ("```python\nx = undefined\n```", "name 'undefined' is not defined"),
        ("```python\nx = np.zeros((2, 3))  # (3, 2)\n```", "x has the shape"),
        ("```sh\nhexane ops --no-such-option\n```", "No such option"),
        ("```sh\nhexane serve model --no-such-option\n```", "No such option"),
        ("```sh\nhexane ops  # or --no-such-option\n```", "hexane ops has no --no-such-option"),
        ("```sh\nhexane ops  the catalogue\n```", "unexpected extra argument"),
        ("```sh\nmake no-such-target\n```", "make has no no-such-target"),
        ("```sh\npip install 'hexane[no-such-extra]'\n```", "no-such-extra"),
        ("```sh\npython examples/digits/no_such_file.py\n```", "no_such_file.py"),
        ("```sh\ngit clone x\n```", "no way to run git"),
        ("```c\nint x = y;\n```", "undeclared"),
        ("```swift\nlet model = NoSuchModel()\n```", "NoSuchModel"),
    ],
)
def test_a_block_that_cannot_run_fails(text: str, why: str, run: Callable[..., str]) -> None:
    with pytest.raises(Exception, match=why) as raised:
        run(text + "\n")
    assert any("in the block of line" in note for note in raised.value.__notes__)


def test_another_printed_text_is_shown(run: Callable[..., str]) -> None:
    page = "```python\nprint(1)\nprint(2)\n```\n\n```text\n{}\n```\n"
    assert run(page.format("3")) == page.format("1\n2")
    assert run(page.format("3\n...")) == page.format("1\n...")
