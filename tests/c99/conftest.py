import ctypes
import os
import shutil
from pathlib import Path

import pytest

from built_once import built_once
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
