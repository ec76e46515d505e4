"""Examples of a page: commands and programs, each with the text that it prints."""

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

EXAMPLES = re.compile(
    r"```console\n(?P<session>.*?)```|```python\n(?P<code>.*?)```\n\n```text\n(?P<printed>.*?)```", re.S
)


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


def with_what_they_print(page: str, run: Callable[..., str], printed: Callable[[], str], folder: Path) -> str:
    """The page with the texts that its examples print now. run: what the command of these arguments prints; printed:
    what was printed since the last call."""

    def session(text: str) -> str:
        written = ""
        for command, shown in commands_of(text):
            name, *arguments = shlex.split(command)
            assert name == "hexane"
            written += f"$ {command}\n{shortened(run(*arguments), shown)}"
        return f"```console\n{written}```"

    def program(code: str, shown: str) -> str:
        printed()
        (folder / "example.py").write_text(code)
        exec(compile(code, "example.py", "exec"), {})
        return f"```python\n{code}```\n\n```text\n{shortened(printed(), shown)}```"

    return EXAMPLES.sub(
        lambda m: session(m["session"]) if m["session"] is not None else program(m["code"], m["printed"]), page
    )
