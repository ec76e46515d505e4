"""What the README shows runs as it stands there."""

import re
from pathlib import Path

import pytest

from command import Cli

README = (Path(__file__).parents[2] / "README.md").read_text()
COMMANDS = sorted(set(re.findall(r"^hexane (\w+)([^#\n]*)", README, re.MULTILINE)))


def test_the_example_in_python_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    found: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), found)
    assert getattr(found["out"], "shape", None) == (1, 8, 1, 1)


@pytest.mark.parametrize(("command", "arguments"), COMMANDS)
def test_every_command_has_the_options_it_is_shown_with(cli: Cli, command: str, arguments: str) -> None:
    shown = cli(command, "--help").out
    for option in re.findall(r"(?<!\S)--?[a-z-]+", arguments):
        assert option in shown


def test_every_link_leads_somewhere() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
