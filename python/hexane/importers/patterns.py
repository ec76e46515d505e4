"""Selects names by patterns: "layer4.*|fc.*"."""

import re
from collections.abc import Collection
from difflib import get_close_matches

from hexane.errors import Error

ALIKE = 0.4  # least similarity of a name that an error suggests for a pattern
MOST_SHOWN = 5


def matching(where: str, pattern: str, names: Collection[str]) -> list[str]:
    """Returns the names that match one of several patterns, which `|` separates, in the order of the names. `*` stands
    for any characters, `?` for one character.

    Raises Error, with similar names, for a pattern that matches no name.
    """
    if not isinstance(pattern, str):
        raise Error(f"[{where}] params: got {pattern!r}, need a pattern of names, such as 'layer4.*|fc.*'")
    fitting: set[str] = set()
    for one in pattern.split("|"):
        fits = re.compile(re.escape(one).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)
        matched = [name for name in names if fits.fullmatch(name)]
        if not matched:
            raise Error(f"[{where}] params: got the pattern {one!r}, which no name fits, need {_near(one, names)}")
        fitting.update(matched)
    return [name for name in names if name in fitting]


def _near(pattern: str, names: Collection[str]) -> str:
    if not names:
        return "a model with weights of floats"
    near = get_close_matches(pattern.replace("*", ""), names, MOST_SHOWN, ALIKE) or list(names)[:MOST_SHOWN]
    listed = ", ".join(map(repr, near))
    return f"such as {listed}" + (f"; there are {len(names)}" if len(names) > len(near) else "")
