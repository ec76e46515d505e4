"""Prints the path of a wheel that can be tried and published: wheel_file.py SCRIPT ARCHITECTURE WHEEL.

SCRIPT is the name in front of errors. The wheel must be for Linux on ARCHITECTURE, and must have the licence texts of
Hexane and of the libraries whose code is in it. `any` as ARCHITECTURE skips the test of the platform.
"""

import sys
from pathlib import Path
from zipfile import BadZipFile, ZipFile

COMPILED_IN = ("highway", "pybind11")  # csrc/licences.cmake


def missing_licences(wheel: Path) -> list[str]:
    """The parts of the wheel without a licence text."""
    with ZipFile(wheel) as archive:
        texts = [
            info.filename for info in archive.infolist() if info.file_size and ".dist-info/licenses/" in info.filename
        ]
    inside = [name.partition(".dist-info/licenses/")[2].split("/") for name in texts]
    parts = {parts[0] if parts[1:] else "hexane" for parts in inside}
    return [name for name in ("hexane", *COMPILED_IN) if name not in parts]


def check(architecture: str, arguments: list[str]) -> Path:
    """The wheel, or a ValueError."""
    kind = "one wheel" if architecture == "any" else f"one wheel for Linux on {architecture}"
    if len(arguments) != 1:
        raise ValueError(
            f"got {f'{len(arguments)} files: ' if arguments else 'nothing'}{' '.join(arguments)}, need {kind}"
        )
    wheel = Path(arguments[0]).resolve()
    if not wheel.is_file():
        raise ValueError(f"got {arguments[0]}, which is no file; need {kind}")
    platforms = wheel.stem.rpartition("-")[2].split(".")
    if wheel.suffix != ".whl" or (
        architecture != "any" and not any("linux" in name and name.endswith(architecture) for name in platforms)
    ):
        raise ValueError(f"got {wheel.name}, need {kind}")
    try:
        missing = missing_licences(wheel)
    except BadZipFile:
        raise ValueError(f"got {wheel.name}, which is damaged; need {kind}") from None
    if missing:
        raise ValueError(f"{wheel.name} lacks the licence texts of {', '.join(missing)} in its dist-info/licenses")
    return wheel


if __name__ == "__main__":
    script, architecture, *arguments = sys.argv[1:]
    try:
        print(check(architecture, arguments))
    except ValueError as error:
        sys.exit(f"[{script}] {error}")
