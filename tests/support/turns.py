"""Slow tests over many cases run a quarter of them, another one each day: in four days all have run.

`make test-long TURN=all` runs them all, `TURN=2` those of that turn.
"""

import os
import random
from collections.abc import Sequence
from datetime import date
from typing import TypeVar

import pytest

T = TypeVar("T")
TURNS = 4
# Into the environment, for the processes that run the tests: midnight may come in between.
TURN = os.environ.setdefault("HEXANE_TEST_TURN", str(date.today().toordinal() % TURNS))
if TURN not in ("all", *map(str, range(TURNS))):
    raise pytest.UsageError(f"TURN: got {TURN!r}, need 0 to {TURNS - 1}, or all")


def share(cases: Sequence[T]) -> list[T]:
    """Those of today's turn in their order, drawn so that no regular feature of the cases (every fourth is of one kind)
    decides which."""
    if TURN == "all":
        return list(cases)
    places = list(range(len(cases)))
    random.Random(0).shuffle(places)
    return [cases[i] for i in sorted(places[int(TURN) :: TURNS])]
