"""Meanings of columns and words, as lines for below a table."""

from collections.abc import Container, Iterable, Mapping
from textwrap import fill

from hexane.targets.fact import STATUSES
from hexane.targets.tables import table

WIDTH = 120


def legend(title: str, meanings: Mapping[str, str], shown: Container[str] | None = None) -> str:
    """Returns the title and a line for each meaning, wrapped. shown: the words in use; None for all. "" if no word
    is in use."""
    lines = [f"  {word}: {meaning}" for word, meaning in meanings.items() if shown is None or word in shown]
    return "\n".join([f"{title}:", *(fill(line, WIDTH, subsequent_indent="    ") for line in lines)]) if lines else ""


def source_meanings(cells: Iterable[str]) -> dict[str, str]:
    """Returns the meanings of the sources, and of the statuses, in cells such as "guide app. A, measured"."""
    pairs = [cell.rpartition(", ")[::2] for cell in cells]
    named = {name: about for name, about in table("sources").items() if any(s.startswith(name) for s, _ in pairs)}
    return named | {name: about for name, about in STATUSES.items() if any(name == status for _, status in pairs)}
