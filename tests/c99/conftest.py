import ctypes
import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from c99_apps import archive
from command import Cli, in_this_process
from hexane.runtime.c99 import build
from hexane.system.c99_library import open_library

COMPILER = os.environ.get("CC", "cc")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER.split()[0]) is None, reason=f"no C compiler {COMPILER!r}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(needs_compiler)


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


@pytest.fixture(scope="session")
def c99(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The C99 runtime, built for this machine as hexane.runtime.c99.library does."""
    return open_library(built_once(tmp_path_factory, "c99", lambda folder: build(folder, ("-march=native",))))


@pytest.fixture(scope="session")
def c99_baseline(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """For any machine of this kind: on x86-64 without fused multiply-adds."""
    return open_library(built_once(tmp_path_factory, "c99-baseline", build))


@pytest.fixture(scope="session")
def runtime_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime to link apps with."""
    if shutil.which("ar") is None:
        pytest.skip("no ar")
    return built_once(tmp_path_factory, "archive", archive)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """cli("run", path, ...) runs the command in this process."""
    return in_this_process(capsys)
