import ctypes
import os
import shutil
from pathlib import Path

import pytest

from c99_apps import archive
from hexane.runtime.c99 import library

COMPILER = os.environ.get("CC", "cc")
needs_compiler = pytest.mark.skipif(shutil.which(COMPILER.split()[0]) is None, reason=f"no C compiler {COMPILER!r}")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(needs_compiler)


@pytest.fixture(scope="session")
def c99() -> ctypes.CDLL:
    """The C99 runtime, built once."""
    return library()


@pytest.fixture(scope="session")
def c99_baseline() -> ctypes.CDLL:
    """For any machine of this kind: on x86-64 without fused multiply-adds."""
    return library(())


@pytest.fixture(scope="session")
def runtime_archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runtime to link apps with, built once."""
    if shutil.which("ar") is None:
        pytest.skip("no ar")
    return archive(tmp_path_factory.mktemp("runtime"))
