"""Makes Python's threads give up the interpreter lock sooner while something is compiled during a call.

A program runs without Python's lock and needs it again afterwards. A compiling thread keeps the lock for its whole
turn, by default 5 ms: longer than most calls take.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from hexane.system.forks import at_fork

TURN = 0.0001  # seconds; a switch takes about 0.01 ms

_lock = Lock()
_users = 0
_before = 0.0


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """Within the block a thread gives up the lock after at most TURN, if another waits for it. Afterwards the old
    interval is restored, unless other code changed it meanwhile."""
    global _users, _before
    with _lock:
        if _users == 0:
            _before = sys.getswitchinterval()
            sys.setswitchinterval(min(_before, TURN))
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users = max(_users - 1, 0)  # The count is already 0 in a child forked meanwhile.
            if _users == 0:
                _put_back()


def _put_back() -> None:
    if abs(sys.getswitchinterval() - min(_before, TURN)) < 1e-6:  # Python stores whole microseconds
        sys.setswitchinterval(_before)


def _after_fork() -> None:
    """Resets the count in a forked child, which has none of the compiling threads, except perhaps the forking one."""
    global _lock, _users
    _lock = Lock()
    if _users:
        _users = 0
        _put_back()


at_fork(after_in_child=_after_fork)
