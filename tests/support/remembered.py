"""Weights that are quantised once, although many tests of a file compress the same ones: k-means takes longer than
they do. Tests of the quantisers themselves do without."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from hexane import _core

QUANTISERS = ("quantise_blocks", "quantise_groups", "quantise_int8", "quantise_palette", "quantise_vectors")


def _key(value: Any) -> Any:
    return (value.dtype.str, value.shape, value.tobytes()) if isinstance(value, np.ndarray) else value


def _copies(found: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(value.copy() if isinstance(value, np.ndarray) else value for value in found)


def _remembering(quantise: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    known: dict[Any, tuple[Any, ...]] = {}

    def call(*arguments: Any) -> tuple[Any, ...]:
        key = tuple(map(_key, arguments))
        if key not in known:
            known[key] = _copies(quantise(*arguments))
        return _copies(known[key])

    return call


@contextmanager
def quantised_once() -> Iterator[None]:
    """The same arguments give what they gave before."""
    with pytest.MonkeyPatch.context() as patch:
        for name in QUANTISERS:
            patch.setattr(_core, name, _remembering(getattr(_core, name)))
        yield
