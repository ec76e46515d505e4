"""How CMake compiles: through ccache where it is installed, unless an option or another launcher says otherwise."""

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
