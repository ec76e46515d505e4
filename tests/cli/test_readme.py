"""The README's examples run and print the text that stands there; --update-golden writes it."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from command import Cli

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
EXAMPLES = re.compile(
    r"```console\n(?P<session>.*?)```|```python\n(?P<code>.*?)```\n\n```text\n(?P<printed>.*?)```", re.S
)

# After a backquote, a prompt or the folder of a program.
COMMANDS = sorted(set(re.findall(r"(?:`|^\$ |/)hexane ([a-z]+)([^`\n]*)", README.read_text(encoding="utf-8"), re.M)))


def commands_of(session: str) -> Iterator[tuple[str, str]]:
    """Each command of a session, and the text below it."""
    for part in re.split(r"^\$ ", session, flags=re.MULTILINE)[1:]:
        command, _, printed = part.partition("\n")
        yield command, printed


def shortened(printed: str, shown: str) -> str:
    """The part of a printed text that is shown: all of it, its first lines and `...`, or nothing."""
    if not shown:
        return ""
    lines = [line.rstrip() for line in printed.rstrip("\n").split("\n")]
    if not shown.endswith("...\n"):
        return "\n".join(lines) + "\n"
    return "\n".join([*lines[: shown.count("\n") - 1], "..."]) + "\n"


def test_the_examples_print_the_text_below_them(
    cli: Cli,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples" / "digits").mkdir(parents=True)
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", tmp_path / "examples" / "digits")

    def session(text: str) -> str:
        written = ""
        for command, shown in commands_of(text):
            name, *arguments = shlex.split(command)
            assert name == "hexane"
            ended = cli(*arguments)
            assert ended.err == "", ended.err
            written += f"$ {command}\n{shortened(ended.out, shown)}"
        return f"```console\n{written}```"

    def program(code: str, shown: str) -> str:
        capsys.readouterr()
        (tmp_path / "example.py").write_text(code)
        exec(compile(code, "example.py", "exec"), {})
        return f"```python\n{code}```\n\n```text\n{shortened(capsys.readouterr().out, shown)}```"

    before = README.read_text(encoding="utf-8")
    after = EXAMPLES.sub(
        lambda m: session(m["session"]) if m["session"] is not None else program(m["code"], m["printed"]), before
    )
    if request.config.getoption("--update-golden"):
        README.write_text(after, encoding="utf-8")
    else:
        assert after == before
    assert len(EXAMPLES.findall(after)) == 5


@pytest.mark.parametrize(("name", "arguments"), COMMANDS)
def test_every_command_has_the_options_it_is_shown_with(cli: Cli, name: str, arguments: str) -> None:
    shown = cli(name, "--help").out
    for option in re.findall(r"(?<!\S)--?[a-z0-9-]+", arguments):
        assert option in shown


def test_every_link_leads_somewhere() -> None:
    for page in (README, *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            if not link.startswith("http"):
                assert (page.parent / link).exists(), f"{page.name}: {link}"
