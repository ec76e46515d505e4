"""Examples of a page: commands, each with the text that it prints."""

import re
from collections.abc import Iterator


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
