"""Files that tests build once and share, whatever processes run them."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def built_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """What `make` leaves in a folder of that name, which all processes that run tests share."""
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = folder / f"{name}.made"  # where it is
        if not made.exists():
            (folder / name).mkdir(exist_ok=True)
            made.write_text(str(make(folder / name)))
    return Path(made.read_text())
