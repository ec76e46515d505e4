"""The record of the compiler's decisions about a network, with reasons, in order from the first pass to the program."""

from typing import NamedTuple


class Decision(NamedTuple):
    """A decision of the compiler. stage: the pass or stage that decided. node: the op and its place in the user's model
    ("conv at net.py:12"), which rewriting keeps. verdict: the outcome, in a word or two. source: where the reason is
    from; "hexane" for our own choice."""

    stage: str
    node: str
    verdict: str
    reason: str
    source: str = "hexane"

    def __str__(self) -> str:
        """Returns a text such as retarget: sin at net.py:3: decomposed: on iPhone 15 (A16, M3) and later (guide ch14,
        measured)"""
        return f"{self.stage}: {self.node}: {self.verdict}: {self.reason} ({self.source})"


def counted(number: int, thing: str) -> str:
    """The number with its noun: 1 layer, 2 layers, 2 passes, 2 batches."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}{'es' if thing.endswith(('s', 'ch')) else 's'}"
