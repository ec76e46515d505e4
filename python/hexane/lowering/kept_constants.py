"""Caches constants that passes compute from other constants, while one model is compiled for several sets of shapes."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from hexane.graph import Node

T = TypeVar("T")
KeptConstants = WeakKeyDictionary[Node, dict[Hashable, Any]]  # Source constant -> key -> result.
_MOST = 4  # Most results per constant; results that depend on shapes differ each time.
_kept: ContextVar[KeptConstants | None] = ContextVar("kept_constants", default=None)


@contextmanager
def constants_kept(table: KeptConstants) -> Iterator[None]:
    """Lets compilations inside the block use and extend the table. The table must not outlive the model."""
    token = _kept.set(table)
    try:
        yield
    finally:
        _kept.reset(token)


def kept_constant(node: Node, key: Hashable, make: Callable[[], T]) -> T:
    """Returns the result of `make` for this constant and `key`. Inside `constants_kept` the result is cached."""
    table = _kept.get()
    if table is None:
        return make()
    row = table.setdefault(node, {})
    if key not in row:
        if len(row) >= _MOST:
            row.clear()
        row[key] = make()
    result: T = row[key]
    return result
