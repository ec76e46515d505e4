"""Calls functions around a fork. Systems without fork (Windows) have no `os.register_at_fork`."""

import os
from collections.abc import Callable


def at_fork(**hooks: Callable[[], object]) -> None:
    """`os.register_at_fork` if the system has it, else nothing."""
    register = getattr(os, "register_at_fork", None)
    if register is not None:
        register(**hooks)
