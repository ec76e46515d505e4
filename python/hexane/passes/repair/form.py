"""The record of a safe form: the ops that it replaces, the replacement, and the reason."""

from collections.abc import Callable
from dataclasses import dataclass

from hexane.graph import Value
from hexane.ops.match import Found, Pattern, op
from hexane.passes.needs import Needs, anything

SQUARES = "squares of numbers beyond 256 are infinite in fp16"


@dataclass(frozen=True, slots=True)
class Form:
    """pattern: matches the last op of the form. build: returns a value that equals the node's in exact arithmetic, or
    None if the form does not apply. quiet: records no Decision, because the form only changes the spelling for later
    forms. needs: False for graphs without a match. reason: the replacement, and how the original fails in fp16. source:
    who reported the failure."""

    name: str
    pattern: Pattern
    build: Callable[[Found], Value | None]
    reason: str = ""
    source: str = "arithmetic"
    quiet: bool = False
    needs: Needs = anything


def any_of(*names: str) -> Pattern:
    pattern = op(names[0])
    for name in names[1:]:
        pattern = pattern | op(name)
    return pattern
