"""What building and testing take from the system: ccache where it is installed, and a browser for tests in CI."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def launchers(folder: Path, *options: str) -> set[str]:
    """What is put in front of the compiler in a build folder for the C++ core."""
    cmake, ninja = (shutil.which(name, path=PLACES) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None or not Path("/usr/include/hwy/highway.h").exists():
        pytest.skip("needs CMake, Ninja and an installed Highway")
    made = folder / "build"
    command = [cmake, "-S", ROOT, "-B", made, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-DHEXANE_PYTHON=OFF"]
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_COMPILER_LAUNCHER")}
    path = f"{folder}{os.pathsep}{PLACES}"
    subprocess.run([*command, *options], check=True, capture_output=True, env={**kept, "PATH": path})
    lines = (made / "build.ninja").read_text().splitlines()
    return {line.partition(" = ")[2].strip() for line in lines if line.startswith("  LAUNCHER = ")}


def test_cmake_compiles_through_ccache_where_it_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "ccache"
    program.write_text('#!/bin/sh\nexec "$@"\n')
    program.chmod(0o755)
    assert launchers(tmp_path) == {str(program)}


def test_an_option_turns_ccache_off(tmp_path: Path) -> None:
    assert launchers(tmp_path, "-DHEXANE_CCACHE=OFF") == set()


def test_another_launcher_stays(tmp_path: Path) -> None:
    chosen = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=/usr/bin/env" for language in ("CXX", "OBJC", "OBJCXX")]
    assert launchers(tmp_path, *chosen) == {"/usr/bin/env"}


def test_a_browser_and_mpi_are_installed_for_tests_under_ci_only(tmp_path: Path) -> None:
    """In a system that has neither, whose apt-get only notes what it is asked for."""
    if os.geteuid() != 0:
        pytest.skip("packages are installed as root only")
    for name in ("bash", "cat", "dirname", "env", "mktemp", "rm"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    asked = tmp_path / "asked"
    (tmp_path / "apt-get").write_text(f'#!/usr/bin/env bash\necho "$@" >> {asked}\n')
    (tmp_path / "apt-get").chmod(0o755)

    def packages(**environment: str) -> list[str]:
        asked.unlink(missing_ok=True)
        variables = {"PATH": str(tmp_path), **environment}
        subprocess.run([ROOT / ".ci" / "system", "test"], check=True, capture_output=True, env=variables)
        return asked.read_text().split("\n")[:-1] if asked.exists() else []

    assert packages() == []
    install = "install -y --no-install-recommends"
    assert packages(CI="true") == ["update", f"{install} chromium openmpi-bin libopenmpi-dev"]
    (tmp_path / "chromium").symlink_to("/bin/true")
    assert packages(CI="true") == ["update", f"{install} openmpi-bin libopenmpi-dev"]
    (tmp_path / "mpirun").symlink_to("/bin/true")
    assert packages(CI="true") == []


@pytest.mark.slow  # another pytest
def test_the_last_line_says_that_tests_of_pages_were_left_out() -> None:
    chosen = [ROOT / "tests" / "report" / "test_page_in_a_browser.py", "-k", "test_the_worst_is_on_top", "-n", "0"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": ""})
    assert ran.returncode == 0, ran.stdout
    assert ran.stdout.splitlines()[-1].startswith("left out: 1 tests of pages in a browser; chromium is not installed")
