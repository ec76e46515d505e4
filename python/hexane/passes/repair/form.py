"""A safe form: the ops that it replaces, its result, and the reason."""

from collections.abc import Callable
from dataclasses import dataclass

from hexane.graph import Value
from hexane.ops.match import Found, Pattern


@dataclass(frozen=True, slots=True)
class Form:
    """pattern: the ops at the end of a match. build: makes a value that equals the node's in exact arithmetic; None if
    the form does not apply. quiet: records no Decision, since the form only rewrites one spelling to another that later
    forms know. reason: the replacement, and the failure of the old form in fp16. source: who reported it."""

    name: str
    pattern: Pattern
    build: Callable[[Found], Value | None]
    reason: str = ""
    source: str = "arithmetic"
    quiet: bool = False
