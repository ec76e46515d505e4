"""Python's collector of cycles, while a compilation runs."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """A compilation makes hundreds of thousands of objects that live on and no cycles of them: walking all of them
    again and again took a quarter of its time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
