"""What building and testing take from the system: ccache, Highway, a browser for tests in CI. What make builds again."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PLACES = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"


def configure(folder: Path, *options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """CMake's configuration of the C++ core in folder / "build"."""
    cmake, ninja = (shutil.which(name, path=PLACES) for name in ("cmake", "ninja"))
    if cmake is None or ninja is None:
        pytest.skip("needs CMake and Ninja")
    command = [cmake, "-S", ROOT, "-B", folder / "build", "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_COMPILER_LAUNCHER")}
    variables = {**kept, "PATH": f"{folder}{os.pathsep}{PLACES}", **environment}
    return subprocess.run([*command, "-DHEXANE_PYTHON=OFF", *options], capture_output=True, text=True, env=variables)


def build_lines(folder: Path, *options: str) -> list[str]:
    """The lines of the build file that CMake writes."""
    if not Path("/usr/include/hwy/highway.h").exists():
        pytest.skip("needs an installed Highway")
    configured = configure(folder, *options)
    assert configured.returncode == 0, configured.stderr
    return (folder / "build" / "build.ninja").read_text().splitlines()


def launchers(folder: Path, *options: str) -> set[str]:
    """What is put in front of the compiler in a build folder for the C++ core."""
    lines = build_lines(folder, *options)
    return {line.partition(" = ")[2].strip() for line in lines if line.startswith("  LAUNCHER = ")}


def test_cmake_compiles_through_ccache_where_it_is_installed(tmp_path: Path) -> None:
    program = tmp_path / "ccache"
    program.write_text('#!/bin/sh\nexec "$@"\n')
    program.chmod(0o755)
    assert launchers(tmp_path) == {str(program)}


def test_an_option_turns_ccache_off(tmp_path: Path) -> None:
    assert launchers(tmp_path, "-DHEXANE_CCACHE=OFF") == set()


def test_another_launcher_stays(tmp_path: Path) -> None:
    chosen = [f"-DCMAKE_{language}_COMPILER_LAUNCHER=/usr/bin/env" for language in ("C", "CXX", "OBJC", "OBJCXX")]
    assert launchers(tmp_path, *chosen) == {"/usr/bin/env"}


@pytest.mark.parametrize("asked", ["OFF", "ON"])
def test_a_warning_ends_a_build_only_where_that_is_asked_for(tmp_path: Path, asked: str) -> None:
    lines = build_lines(tmp_path, f"-DHEXANE_WARNINGS_AS_ERRORS={asked}")
    flags = [line for line in lines if "-Wall -Wextra" in line]
    assert flags
    assert {"-Werror" in line for line in flags} == {asked == "ON"}


NOWHERE = dict.fromkeys(("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"), "http://127.0.0.1:9")


def highway_error(folder: Path, *options: str) -> str:
    """The one line of CMake's error that says why there is no Highway."""
    configured = configure(folder, *options, **NOWHERE)
    assert configured.returncode != 0
    assert "Call Stack" not in configured.stderr
    (line,) = [line.strip() for line in configured.stderr.splitlines() if "[highway]" in line]
    return line


def script_error(highway: str | Path, folder: Path) -> str:
    """The one line of .ci/highway's error, with HIGHWAY in the environment, from a folder."""
    environment = {**os.environ, "PATH": PLACES, "HIGHWAY": str(highway)}
    ran = subprocess.run([ROOT / ".ci" / "highway"], capture_output=True, text=True, env=environment, cwd=folder)
    assert (ran.returncode, ran.stdout) == (1, "")
    return ran.stderr.removesuffix("\n")


def highway_copy(folder: Path, header: str, *version: int) -> Path:
    """A folder that looks like Highway's sources to CMake."""
    (folder / "hwy").mkdir(parents=True)
    (folder / "hwy" / "highway.h").touch()
    names = zip(("MAJOR", "MINOR", "PATCH"), version, strict=True)
    (folder / "hwy" / header).write_text("".join(f"#define HWY_{name} {number}\n" for name, number in names))
    (folder / "CMakeLists.txt").write_text(
        "project(hwy LANGUAGES CXX)\nadd_library(hwy INTERFACE)\ntarget_include_directories(hwy INTERFACE .)\n"
    )
    return folder


def test_without_highway_the_error_is_one_line_with_its_package(tmp_path: Path) -> None:
    line = highway_error(tmp_path, "-DCMAKE_DISABLE_FIND_PACKAGE_hwy=ON")
    start = (
        "[highway] Google Highway 1.0.3 or newer (Debian: libhwy-dev, Homebrew: highway) is not installed and could not"
        " be fetched: "
    )
    assert line.startswith(start)
    assert line.endswith(
        "-DFETCHCONTENT_SOURCE_DIR_HIGHWAY=DIR (pip and make: HIGHWAY=DIR) names a copy of its sources"
    )


@pytest.mark.parametrize("headers_only", [False, True])
def test_a_copy_without_highway_is_an_error_in_one_line(tmp_path: Path, headers_only: bool) -> None:
    copy = tmp_path / "copy"
    if headers_only:
        (highway_copy(copy, "base.h", 1, 3, 0) / "CMakeLists.txt").unlink()
    line = highway_error(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={copy}")
    assert line == f"[highway] got {copy}, which has no sources of Google Highway (CMakeLists.txt, hwy/highway.h)"
    assert script_error(copy, tmp_path) == line


def test_an_old_copy_of_highway_is_refused(tmp_path: Path) -> None:
    copy = highway_copy(tmp_path / "copy", "highway.h", 1, 0, 2)
    line = highway_error(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={copy}")
    assert line == f"[highway] got Google Highway 1.0.2 in {copy}, need 1.0.3 or newer"
    assert script_error(copy, tmp_path) == line


def test_a_semicolon_in_the_path_of_a_copy_is_an_error_in_one_line(tmp_path: Path) -> None:
    copy = highway_copy(tmp_path / "a;b", "base.h", 1, 3, 0)
    line = highway_error(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={copy}")
    fault = "got a folder of Highway with a semicolon in its path, where CMake divides lists; need another path"
    assert line == f"[highway] {fault}"
    assert script_error(copy, tmp_path) == line


def test_a_relative_copy_of_highway_starts_at_the_root_of_the_repository(tmp_path: Path) -> None:
    copy = highway_copy(tmp_path / "a copy [1]", "base.h", 1, 3, 0)
    relative = os.path.relpath(copy, ROOT)
    environment = {**os.environ, "PATH": PLACES, "HIGHWAY": relative}
    printed = subprocess.check_output([ROOT / ".ci" / "highway"], text=True, env=environment, cwd=tmp_path)
    assert printed == f"{copy}\n"
    configured = configure(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY:STRING={relative}")  # as pip passes it
    assert configured.returncode == 0, configured.stderr
    assert f"FETCHCONTENT_SOURCE_DIR_HIGHWAY:PATH={copy}\n" in (tmp_path / "build" / "CMakeCache.txt").read_text()


def test_a_policy_of_highway_is_no_warning(tmp_path: Path) -> None:
    copy = highway_copy(tmp_path / "copy", "base.h", 1, 3, 0)
    lists = copy / "CMakeLists.txt"
    lists.write_text(f"cmake_minimum_required(VERSION 3.10)\ncmake_policy(SET CMP0111 OLD)\n{lists.read_text()}")
    configured = configure(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={copy}")
    assert configured.returncode == 0
    assert "CMake Warning" not in configured.stderr


def test_editors_find_the_commands_of_the_compiler(tmp_path: Path) -> None:
    build_lines(tmp_path)
    assert (tmp_path / "build" / "compile_commands.json").exists()


@pytest.mark.parametrize(("header", "version"), [("highway.h", (1, 0, 3)), ("base.h", (1, 3, 0))])
def test_a_named_copy_of_highway_goes_before_an_installed_one(
    tmp_path: Path, header: str, version: tuple[int, int, int]
) -> None:
    copy = highway_copy(tmp_path / "copy", header, *version)
    lines = build_lines(tmp_path, f"-DFETCHCONTENT_SOURCE_DIR_HIGHWAY={copy}")
    assert any(f"-isystem {copy}" in line for line in lines)
    assert not any("libhwy" in line for line in lines)


@pytest.mark.parametrize("indent", ["", "      "], ids=["cmake", "pip"])
def test_a_step_without_highway_ends_with_the_reason_alone(indent: str) -> None:
    script = f"echo started; echo '{indent}[highway] there is none'; echo ended; exit 3"
    ran = subprocess.run([ROOT / ".ci" / "step", "building", "bash", "-c", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (3, "building\n")
    assert ran.stderr == "failed (exit code 3): building\n[highway] there is none\n"


def test_any_other_step_that_fails_prints_its_output() -> None:
    script = "echo started; echo error: no compiler; exit 3"
    ran = subprocess.run([ROOT / ".ci" / "step", "building", "bash", "-c", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (3, "building\n")
    assert ran.stderr == "started\nerror: no compiler\nfailed (exit code 3): building\n"


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


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """What make reads of a clone."""
    if shutil.which("make") is None:
        pytest.skip("needs make")
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / ".ci", folder / ".ci")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    for name in ("csrc", "tests/cpp", "tests/c99", "tests/fake_ane", "tests/fake_coreml"):
        (folder / name).mkdir(parents=True)
    (folder / "CMakeLists.txt").touch()
    return folder


def make(clone: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    mine = ("HIGHWAY", "HEXANE_WARNINGS_AS_ERRORS", "MAKEFLAGS", "MAKELEVEL")
    variables = {name: value for name, value in os.environ.items() if name not in mine}
    command = ["make", "--no-print-directory", *words]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=clone, env={**variables, **environment}, timeout=60
    )


@pytest.mark.parametrize("name", ["HIGHWAY", "HEXANE_WARNINGS_AS_ERRORS"])
def test_another_value_of_a_variable_builds_the_package_again(clone: Path, name: str) -> None:
    """In a clone whose Python only notes that it is called, with the variable's value."""
    calls = clone / "calls"
    python = clone / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho "${name}" >> {calls}\n')
    python.chmod(0o755)
    (clone / ".venv" / "done").mkdir()
    for done in ("venv", "build"):
        (clone / ".venv" / "done" / done).touch()

    def builds(*words: str, **environment: str) -> list[str]:
        calls.unlink(missing_ok=True)
        ran = make(clone, ".venv/done/package", *words, **environment)
        assert ran.returncode == 0, ran.stderr
        return calls.read_text().splitlines() if calls.exists() else []

    assert builds() == [""]
    assert builds() == []
    assert builds(**{name: "one value"}) == ["one value"]
    assert builds(f"{name}=one value") == []
    assert builds(**{name: "two"}) == ["two"]
    assert builds() == [""]


@pytest.mark.parametrize("words", ["windows", "aarch64 macos"])
def test_make_refuses_a_wheel_for_another_system_before_it_installs_anything(clone: Path, words: str) -> None:
    ran = make(clone, "wheel", f"ARGS={words}", PYTHON="/bin/false")
    assert ran.returncode == 2
    assert ran.stdout == ""
    assert ran.stderr.splitlines()[0] == f"[wheel] got {words}, need nothing, aarch64 or macos"
    assert not (clone / ".venv").exists()


@pytest.mark.parametrize(
    ("words", "got"),
    [
        (("--take",), "--take without a file, need --take FILE"),
        (("--take", "none.whl"), "--take none.whl, which is no file, need --take FILE"),
        (("--take", ".", "sid", "true"), "--take ., which is no file, need --take FILE"),
        (("--other",), "--other, need --again or --take FILE"),
        (("sid",), "sid, need a suite of Debian and a command: .ci/fresh trixie make test"),
        (("sid/../x", "true"), "sid/../x true, need a suite of Debian and a command: .ci/fresh trixie make test"),
        (("..", "true"), ".. true, need a suite of Debian and a command: .ci/fresh trixie make test"),
        (("", "true"), " true, need a suite of Debian and a command: .ci/fresh trixie make test"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_a_bare_debian_is_made_for_good_arguments_only(tmp_path: Path, words: tuple[str, ...], got: str) -> None:
    environment = {**os.environ, "FRESH": str(tmp_path)}
    ran = subprocess.run([ROOT / ".ci" / "fresh", *words], capture_output=True, text=True, env=environment, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (1, "", f"[fresh] got {got}\n")
    assert list(tmp_path.iterdir()) == []


def test_a_file_for_a_bare_debian_is_taken_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    command = [ROOT / ".ci" / "fresh", "--take", "a file", "..", "true"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.stderr.startswith("[fresh] got .. true, need a suite")


@pytest.mark.parametrize("name", ["nonsense", "debian-common"])
def test_a_suite_is_one_that_debootstrap_knows(name: str) -> None:
    if not Path("/usr/share/debootstrap/scripts").exists():
        pytest.skip("needs debootstrap")
    assert subprocess.run([ROOT / ".ci" / "suite", name]).returncode == 1
    assert subprocess.run([ROOT / ".ci" / "suite", "trixie"]).returncode == 0


@pytest.mark.slow  # another pytest
def test_the_suite_ends_with_the_reasons_of_its_skips() -> None:
    """One line for each reason, with its count."""
    chosen = [ROOT / "tests" / "report" / "test_page_in_a_browser.py", "-k", "test_the_worst_is_on_top", "-n", "0"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "PATH": ""})
    assert ran.returncode == 0, ran.stdout
    reason = "chromium is not installed (apt-get install chromium)"
    assert ran.stdout.splitlines()[-2:] == ["skipped: 1", f"     1 {reason}"]
    assert ran.stdout.count(reason) == 1


def test_processes_of_tests_can_be_interrupted() -> None:
    """A shell starts what runs in the background with SIGINT ignored, and processes inherit that."""
    command = [sys.executable, "-c", "import signal; print(signal.getsignal(signal.SIGINT) is not signal.SIG_IGN)"]
    assert subprocess.check_output(command, text=True) == "True\n"
