"""Constants that passes compute from other constants, kept while one model is compiled for several sets of shapes."""

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from hexane.graph import Node

T = TypeVar("T")
KeptConstants = WeakKeyDictionary[Node, dict[Hashable, Any]]  # by the constant that they are computed from
_MOST = 4  # of one constant: what depends on the shapes is another one each time
_kept: ContextVar[KeptConstants | None] = ContextVar("kept_constants", default=None)


@contextmanager
def constants_kept(table: KeptConstants) -> Iterator[None]:
    """Compilations inside take constants from the table, and add theirs. It must not outlive the model."""
    token = _kept.set(table)
    try:
        yield
    finally:
        _kept.reset(token)


def kept_constant(node: Node, key: Hashable, make: Callable[[], T]) -> T:
    """The result of `make` for this constant and `key`; inside of `constants_kept` the same objects again."""
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
