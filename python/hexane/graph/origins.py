"""Finds the place in the user's model that a node comes from."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_PACKAGE = str(Path(__file__).parents[1])


_scope: ContextVar[tuple[str, ...] | None] = ContextVar("source", default=None)


@contextmanager
def source_scope(*sources: str) -> Iterator[None]:
    """Nodes built inside get this source (the node of a model file), instead of the line of Python that builds them."""
    token = _scope.set(sources)
    try:
        yield
    finally:
        _scope.reset(token)


def call_site() -> tuple[str, ...]:
    """The source set by source_scope. Without a source_scope, the user's file:line, from the innermost frame outside
    this package."""
    if (scope := _scope.get()) is not None:
        return scope
    frame = sys._getframe(1)
    while frame is not None:
        if not frame.f_code.co_filename.startswith(_PACKAGE):
            return (f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}",)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ()
