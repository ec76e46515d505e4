"""The record of a safe form: the ops that it replaces, the replacement, and the reason."""

from collections.abc import Callable
from dataclasses import dataclass

from hexane.graph import Value
from hexane.ops.match import Found, Pattern


@dataclass(frozen=True, slots=True)
class Form:
    """pattern: matches the last op of the form. build: returns a value that equals the node's in exact arithmetic, or
    None if the form does not apply. quiet: records no Decision, because the form only changes the spelling for later
    forms. reason: the replacement, and how the original fails in fp16. source: who reported the failure."""

    name: str
    pattern: Pattern
    build: Callable[[Found], Value | None]
    reason: str = ""
    source: str = "arithmetic"
    quiet: bool = False
