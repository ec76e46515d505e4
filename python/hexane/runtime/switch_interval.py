"""Short turns of Python's threads while something is compiled in the middle of a call.

A program runs without Python's lock and wants it back when it has run. A thread that compiles keeps the lock for its
whole turn, 5 ms unless somebody says otherwise, which is more than most calls take.
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
    """Meanwhile no turn of any thread is longer than TURN. Afterwards they are as before, unless others set them
    meanwhile."""
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
            _users = max(_users - 1, 0)  # 0 in a child that was forked meanwhile
            if _users == 0:
                _put_back()


def _put_back() -> None:
    if abs(sys.getswitchinterval() - min(_before, TURN)) < 1e-6:  # it is kept in whole microseconds
        sys.setswitchinterval(_before)


def _after_fork() -> None:
    """The child has none of the compiling threads, except perhaps the forking one."""
    global _lock, _users
    _lock = Lock()
    if _users:
        _users = 0
        _put_back()


at_fork(after_in_child=_after_fork)
