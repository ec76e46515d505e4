"""Ctrl-C between two batches, not inside one: what is counted, logged and saved stays one and the same."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Holds a Ctrl-C back until the end of the block. Only the main thread gets one, so that others hold none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, keep)
    try:
        yield
    finally:
        # None: a handler that C code has set, which Python cannot put back.
        signal.signal(signal.SIGINT, signal.default_int_handler if before is None else before)
    if came:
        signal.raise_signal(signal.SIGINT)
