"""Many random cases of which the first few are for `make test`."""

from collections.abc import Sequence
from typing import Any

import pytest

from turns import share


def first_quick(cases: Sequence[Any], quick: int) -> list[Any]:
    """The others are slow, a quarter of them each day."""
    return [*cases[:quick], *(pytest.param(case, marks=pytest.mark.slow) for case in share(cases[quick:]))]
