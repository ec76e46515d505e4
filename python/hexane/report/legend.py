"""Meanings of columns and words, as lines for below a table."""

from collections.abc import Container, Iterable, Mapping, Sequence
from textwrap import fill

from hexane.targets.fact import STATUSES
from hexane.targets.tables import table

WIDTH = 120


def legend(title: str, meanings: Mapping[str, str], shown: Container[str] | None = None) -> str:
    """Returns the title and a line for each meaning, wrapped. shown: the words in use; None for all. "" if no word
    is in use."""
    lines = [f"  {word}: {meaning}" for word, meaning in meanings.items() if shown is None or word in shown]
    return "\n".join([f"{title}:", *(fill(line, WIDTH, subsequent_indent="    ") for line in lines)]) if lines else ""


def columns_legend(meanings: Mapping[str, str], heads: Sequence[str]) -> str:
    """Returns the legend of a table's columns with these heads. A meaning may be that of several columns, as in
    "p10, p90", or that of all columns whose heads begin with it, as "ulps" for "ulps 0" and "ulps 1"."""

    def is_shown(name: str) -> bool:
        return any(head == name or head.startswith(f"{name} ") for head in heads)

    shown = [word for word in meanings if any(map(is_shown, word.split(", ")))]
    return legend("columns", meanings, shown)


def source_meanings(cells: Iterable[str]) -> dict[str, str]:
    """Returns the meanings of the sources, and of the statuses, in cells such as "guide app. A, measured"."""
    pairs = [cell.rpartition(", ")[::2] for cell in cells]
    named = {name: about for name, about in table("sources").items() if any(s.startswith(name) for s, _ in pairs)}
    return named | {name: about for name, about in STATUSES.items() if any(name == status for _, status in pairs)}
