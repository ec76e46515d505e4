"""Ctrl-C and SIGTERM between two batches, not inside one: counts, log and checkpoint stay consistent."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Holds a Ctrl-C back until the end of the block, and a SIGTERM that somebody handles. Only the main thread gets
    them, so that others hold none."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def keep(number: int, frame: FrameType | None) -> None:
        came.append(number)

    before = {signal.SIGINT: signal.signal(signal.SIGINT, keep)}
    if callable(signal.getsignal(signal.SIGTERM)):
        before[signal.SIGTERM] = signal.signal(signal.SIGTERM, keep)
    try:
        yield
    finally:
        for number, handler in before.items():
            # None: a handler that C code has set, which Python cannot put back.
            signal.signal(number, signal.default_int_handler if handler is None else handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def first_interrupt() -> Iterator[Callable[[], None]]:
    """Within the block one Ctrl-C or SIGTERM raises. Later signals do nothing, so that a save that the first one causes
    is not cut off. The function that the block gets holds back the first one too, until the end of the block."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: None
        return
    came: list[int] = []
    is_held = False
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def hold() -> None:
        nonlocal is_held
        is_held = True

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal is_held
        if is_held:
            came.append(number)
            return
        is_held = True
        handler = before[signal.Signals(number)]
        assert callable(handler)
        handler(number, frame)
        is_held = False  # the program's handler has taken note, and the block goes on

    handled = {number: handler for number, handler in before.items() if callable(handler)}
    for number in handled:
        signal.signal(number, interrupt)
    try:
        yield hold
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def interrupted_by_sigterm() -> Iterator[list[int]]:
    """Within the block SIGTERM, by which schedulers and `kill` end a process, is a KeyboardInterrupt as Ctrl-C is. The
    list has the signal then, and a second SIGTERM does nothing. Other threads than the main one change nothing."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        if not came:
            came.append(number)
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)


@contextmanager
def ended_by_sigterm() -> Iterator[None]:
    """Within the block SIGTERM raises SystemExit(143), so that states can be saved. A handler that the program has set,
    and other threads than the main one, change nothing."""
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) != signal.SIG_DFL:
        yield
        return
    with interrupted_by_sigterm() as came:
        try:
            yield
        except KeyboardInterrupt:
            if came:
                raise SystemExit(128 + signal.SIGTERM) from None
            raise
