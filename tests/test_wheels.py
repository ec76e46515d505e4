"""The scripts that make and try wheels refuse what they cannot use before they build anything."""

import base64
import csv
import hashlib
import subprocess
from email import message_from_string
from pathlib import Path
from zipfile import ZipFile

import pytest

CI = Path(__file__).parents[1] / ".ci"
TEXTS = ("LICENSE", "highway/LICENSE", "highway/LICENSE-BSD3", "pybind11/LICENSE")
NATIVE = "hexane-1-cp311-cp311-manylinux_2_35_x86_64.whl"
ARM64 = "hexane-1-cp311-cp311-manylinux_2_27_aarch64.manylinux_2_28_aarch64.whl"
MACOS = "hexane-1-cp311-cp311-macosx_13_0_arm64.whl"
MUSL = "hexane-1-cp311-cp311-musllinux_1_2_aarch64.whl"
UNREPAIRED = "hexane-1-cp311-cp311-linux_aarch64.whl"
OTHER = "numpy-1-cp311-cp311-manylinux_2_28_aarch64.whl"
ABI3 = "hexane-1-cp311-abi3-manylinux_2_28_aarch64.whl"
FREE_THREADED = "hexane-1-cp314-cp314t-manylinux_2_28_aarch64.whl"


def wheel(path: Path, texts: tuple[str, ...] = TEXTS, text: str = "Copyright") -> Path:
    with ZipFile(path, "w") as archive:
        for name in texts:
            archive.writestr(f"hexane-1.dist-info/licenses/{name}", text)
    return path


def refusal(*command: str | Path, folder: Path | None = None) -> str:
    """The only line that a command prints before it fails."""
    ran = subprocess.run(command, capture_output=True, text=True, cwd=folder, timeout=60)
    assert (ran.returncode, ran.stdout) == (1, "")
    (line,) = ran.stderr.splitlines()
    return line


def accepted(architecture: str, *wheels: str | Path, folder: Path | None = None) -> str:
    command = ["python3", CI / "wheel_file.py", "check", architecture, *wheels]
    return subprocess.check_output(command, text=True, cwd=folder).removesuffix("\n")


@pytest.mark.parametrize("words", [(), ("x.whl", "trixie"), ("no-suite", "x.whl")], ids=lambda words: " ".join(words))
def test_trying_a_wheel_needs_a_suite_first(words: tuple[str, ...]) -> None:
    got = words[0] if words else "nothing"
    need = "need a suite of Debian and a wheel: .ci/check-wheel trixie WHEEL"
    assert refusal(CI / "check-wheel", *words) == f"[check-wheel] got {got}, {need}"


@pytest.mark.parametrize(
    ("names", "got"),
    [
        ((), "got nothing"),
        (("none.whl",), "got none.whl, which is no file"),
        ((ARM64, ARM64), f"got 2 files: {ARM64} {ARM64}"),
        ((NATIVE,), f"got {NATIVE}, which is for manylinux_2_35_x86_64"),
        ((MACOS,), f"got {MACOS}, which is for macosx_13_0_arm64"),
        ((MUSL,), f"got {MUSL}, which is for musllinux_1_2_aarch64"),
        ((UNREPAIRED,), f"got {UNREPAIRED}, which is for linux_aarch64"),
        ((OTHER,), f"got {OTHER}, which is no wheel of Hexane"),
        ((ABI3,), f"got {ABI3}, which is for cp311-abi3, not for one version of CPython (cp311-cp311)"),
        (
            (FREE_THREADED,),
            f"got {FREE_THREADED}, which is for cp314-cp314t, not for one version of CPython (cp311-cp311)",
        ),
        (("hexane_aarch64.zip",), "got hexane_aarch64.zip, which is no wheel of Hexane"),
    ],
    ids=[
        "nothing",
        "no file",
        "two",
        "another CPU",
        "macOS",
        "musl",
        "not repaired",
        "another project",
        "abi3",
        "free-threaded",
        "no wheel",
    ],
)
def test_trying_a_wheel_needs_one_for_its_system(tmp_path: Path, names: tuple[str, ...], got: str) -> None:
    for name in (NATIVE, ARM64, MACOS, MUSL, UNREPAIRED, OTHER, ABI3, FREE_THREADED, "hexane_aarch64.zip"):
        wheel(tmp_path / name)
    line = refusal(CI / "check-arm64-wheel", *names, folder=tmp_path)
    need = "need one wheel of Hexane for manylinux on aarch64"
    assert line == f"[check-arm64-wheel] {got}{';' if 'which' in got else ','} {need}"


def test_a_damaged_wheel_is_refused(tmp_path: Path) -> None:
    (tmp_path / ARM64).write_text("no zip")
    line = refusal(CI / "check-arm64-wheel", ARM64, folder=tmp_path)
    assert (
        line == f"[check-arm64-wheel] got {ARM64}, which is damaged; need one wheel of Hexane for manylinux on aarch64"
    )


@pytest.mark.parametrize("name", ["hexane", "highway", "pybind11"])
@pytest.mark.parametrize("empty", [False, True])
def test_a_wheel_without_the_licences_of_its_libraries_is_refused(tmp_path: Path, name: str, empty: bool) -> None:
    mine = tuple(text for text in TEXTS if text.startswith("LICENSE" if name == "hexane" else name))
    path = wheel(tmp_path / ARM64, tuple(text for text in TEXTS if text not in mine))
    if empty:
        with ZipFile(path, "a") as archive:
            for text in mine:
                archive.writestr(f"hexane-1.dist-info/licenses/{text}", "")
    line = refusal(CI / "check-arm64-wheel", path)
    assert line == f"[check-arm64-wheel] {ARM64} lacks the licence texts of {name} in its dist-info/licenses"


def test_a_whole_wheel_is_accepted_from_any_folder(tmp_path: Path) -> None:
    for name, architecture in ((NATIVE, "x86_64"), (ARM64, "aarch64"), (MACOS, "any")):
        path = wheel(tmp_path / name)
        assert accepted(architecture, name, folder=tmp_path) == str(path.resolve())


@pytest.mark.parametrize("words", [("windows",), ("aarch64", "macos")], ids=" ".join)
def test_a_wheel_for_another_system_is_refused_before_anything_is_built(words: tuple[str, ...]) -> None:
    line = refusal(CI / "wheel", *words)
    assert line == f"[wheel] got {' '.join(words)}, need nothing, aarch64 or macos"


def test_the_metadata_of_a_wheel_list_all_of_its_licences(tmp_path: Path) -> None:
    path = wheel(tmp_path / NATIVE)
    metadata, record = "hexane-1.dist-info/METADATA", "hexane-1.dist-info/RECORD"
    text = "Name: hexane\nLicense-Expression: Apache-2.0\nLicense-File: LICENSE\nRequires-Dist: numpy\n\n# é\n\nLicense-File: x\n"
    with ZipFile(path, "a") as archive:
        archive.writestr('hexane/"a", b.py', "")
        archive.writestr(metadata, text)
        archive.writestr(record, f'"hexane/""a"", b.py",sha256=0,0\n{metadata},sha256=0,9\n{record},,\n')
        before = archive.namelist()
    for _ in range(2):  # a second time changes nothing
        subprocess.run(["python3", CI / "wheel_licences.py", path], check=True)
        with ZipFile(path) as archive:
            assert archive.namelist() == before
            content = archive.read(metadata)
            rows = list(csv.reader(archive.read(record).decode().splitlines()))
        read = message_from_string(content.decode())
        assert read.get_all("License-Expression") == ["Apache-2.0 AND BSD-3-Clause"]
        assert read.get_all("License-File") == list(TEXTS)
        assert read["Requires-Dist"] == "numpy"
        assert read.get_payload() == text.partition("\n\n")[2]
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
        assert rows == [
            ['hexane/"a", b.py', "sha256=0", "0"],
            [metadata, f"sha256={digest}", str(len(content))],
            [record, "", ""],
        ]
    assert list(tmp_path.iterdir()) == [path]
