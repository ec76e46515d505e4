"""A safe form: what it replaces, what it writes, and why."""

from collections.abc import Callable
from dataclasses import dataclass

from hexane.graph import Value
from hexane.ops.match import Found, Pattern


@dataclass(frozen=True, slots=True)
class Form:
    """pattern: the ops that a match ends with. build: the value that stands for the node's, equal in exact arithmetic;
    None where the form does not apply. quiet: no Decision, since the form only brings a spelling to the one that later
    forms know. reason: what is written, and what fp16 does to the old form. source: who reported that."""

    name: str
    pattern: Pattern
    build: Callable[[Found], Value | None]
    reason: str = ""
    source: str = "arithmetic"
    quiet: bool = False
