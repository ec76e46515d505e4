"""Delays Ctrl-C and SIGTERM to the end of the current batch, so that counts, log and checkpoint stay consistent."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held_interrupts() -> Iterator[None]:
    """Delays a Ctrl-C to the end of the block, and a SIGTERM if the program handles it. Python delivers signals to the
    main thread only: in other threads the block does nothing."""
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
            # The handler is None if C code set it: Python cannot restore such a handler.
            signal.signal(number, signal.default_int_handler if handler is None else handler)
    if came:
        signal.raise_signal(came[0])


@contextmanager
def first_interrupt() -> Iterator[Callable[[], None]]:
    """Within the block the first Ctrl-C or SIGTERM runs the program's own handler, which usually raises. Later signals
    are then ignored, so that they do not cut off a save caused by the first. The yielded function delays even the first
    one to the end of the block. Signals without a Python handler, and other threads than the main one, are not
    affected."""
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
        is_held = False  # the program's handler returned: the block continues

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
    """Within the block the first SIGTERM (sent by schedulers and `kill`) raises KeyboardInterrupt, like Ctrl-C, and is
    appended to the yielded list. Later SIGTERMs are ignored. In other threads than the main one the block does
    nothing."""
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
    """Within the block SIGTERM raises SystemExit(143), so that states can be saved. Does nothing if the program has its
    own handler, or in other threads than the main one."""
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
