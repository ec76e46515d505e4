"""A copy of the project, in which a test makes a contribution and counts the files that it touches."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from hexane import _core

ROOT = Path(__file__).parents[2]
CORE = Path(_core.__file__)
PARTS = ("python", "csrc", "tests", "docs")
# Files that commands write from the others.
DERIVED = ("python/hexane/build.pyi", "tests/golden/")


class Copy:
    """The project under a folder of the test's, with the extension module of this environment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Modules as they were compiled here, for each test compiles none anew but what it changes. pytest's own know
        # the path of the original.
        skipped = shutil.ignore_patterns("*.so", "*-pytest-*.pyc")
        for part in PARTS:
            shutil.copytree(ROOT / part, folder / part, ignore=skipped)
        shutil.copy(ROOT / "pyproject.toml", folder)
        (folder / "python" / "hexane" / CORE.name).symlink_to(CORE)

    def edit(self, path: str, place: str, above: str, below: str = "") -> None:
        """Puts text above and below the one place where `place` stands."""
        text = (self.folder / path).read_text(encoding="utf-8")
        assert text.count(place) == 1, f"{path}: {text.count(place)} times {place!r}"
        (self.folder / path).write_text(text.replace(place, above + place + below), encoding="utf-8")

    def write(self, path: str, text: str) -> None:
        assert not (self.folder / path).exists(), path
        (self.folder / path).write_text(text, encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python on the copy; without site, whose hooks would find the installed package."""
        paths = [self.folder / "python", *{sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}]
        return subprocess.run(
            [sys.executable, "-S", *arguments], cwd=self.folder, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "COLUMNS": "200"},
        )  # fmt: skip

    def passes(self, *arguments: str) -> None:
        """Asserts that these tests run and pass."""
        ended = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert " passed" in ended.stdout

    def fails(self, message: str | tuple[str, ...], *arguments: str) -> None:
        """Asserts that these tests fail, and that one of them says so: one for each message."""
        ended = self.run("-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments)
        assert ended.returncode == 1, ended.stdout + ended.stderr
        for one in (message,) if isinstance(message, str) else message:
            assert one in ended.stdout, ended.stdout

    def derive(self) -> None:
        """Writes the stub of types, which follows from the records."""
        written = self.run("-m", "hexane.cli.stub")
        assert written.returncode == 0, written.stderr

    def touched(self) -> set[str]:
        """The files that differ from the project, but derived ones."""
        found = set()
        for path in (path for part in PARTS for path in (self.folder / part).rglob("*") if path.is_file()):
            name = path.relative_to(self.folder).as_posix()
            same = (ROOT / name).exists() and (ROOT / name).read_bytes() == path.read_bytes()
            if not same and path.suffix not in (".pyc", ".so") and not name.startswith(DERIVED):
                found.add(name)
        return found

    def build(self, *sources: str) -> None:
        """Compiles these sources of the copy as the installed build did, and links the copy's module with them.

        Skips where there is no build folder, or it is older than the sources.
        """
        build = ROOT / "build" / "editable"
        ninja = shutil.which("ninja", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
        if ninja is None or not (build / "build.ninja").exists() or not (build / CORE.name).exists():
            pytest.skip("no build folder: make .venv/done/package makes it")
        newest = max(path.stat().st_mtime for path in (ROOT / "csrc").rglob("*.[hc]*"))
        if (build / CORE.name).stat().st_mtime < newest:
            pytest.skip("the build folder is older than the sources: make .venv/done/package brings it up to date")
        listed = subprocess.run([ninja, "-C", build, "-t", "commands"], capture_output=True, text=True, check=True)
        commands = listed.stdout.splitlines()
        objects = []
        for source in sources:
            (compile_,) = (c for c in commands if c.endswith(f" -c {ROOT / source}"))
            made = self.folder / f"{Path(source).stem}.o"
            before, _, _ = compile_.partition(" -MD ")
            command = f"{before} -o {made} -c {self.folder / source}".replace(f"-I{ROOT}/", f"-I{self.folder}/")
            subprocess.run(command, shell=True, cwd=self.folder, check=True)
            objects.append(str(made))
        (link,) = (c for c in commands if f" -o {CORE.name} " in c)
        module = self.folder / "python" / "hexane" / CORE.name
        module.unlink()
        # Objects come before the library, whose own versions of them the linker then leaves out.
        command = link.replace(f" -o {CORE.name} ", f" -o {module} {' '.join(objects)} ")
        subprocess.run(command, shell=True, cwd=build, check=True)
