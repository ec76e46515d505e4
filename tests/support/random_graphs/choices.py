"""Where a random graph's choices come from: a seed, or hypothesis, which makes those of a failure smaller."""

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from hypothesis import strategies as st


class Choices(Protocol):
    def below(self, n: int) -> int:
        """One of 0 .. n - 1; 0 is the simplest."""

    def together(self, step: Callable[[], None]) -> None:
        """Takes a step, whose choices can be left out of a failure together."""


class Seeded:
    """The same for the same seed."""

    def __init__(self, *seed: int) -> None:
        self._rng = np.random.default_rng(seed)

    def below(self, n: int) -> int:
        return int(self._rng.integers(n))

    def together(self, step: Callable[[], None]) -> None:
        step()


class Drawn:
    """Hypothesis chooses: `draw` as st.composite gives it."""

    def __init__(self, draw: Callable[[st.SearchStrategy[Any]], Any]) -> None:
        self._draw = draw

    def below(self, n: int) -> int:
        return int(self._draw(st.integers(0, n - 1))) if n > 1 else 0

    def together(self, step: Callable[[], None]) -> None:
        self._draw(st.builds(lambda: step()))
