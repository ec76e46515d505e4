"""Prints the path of a wheel that can be tried and published: wheel_file.py SCRIPT ARCHITECTURE WHEEL.

SCRIPT is the name in front of errors. The wheel must be one of Hexane for one version of CPython and for manylinux on
ARCHITECTURE. It must have the licence texts of Hexane and of the libraries whose code is in it. `any` as ARCHITECTURE
skips the test of the platform.
"""

import re
import sys
from pathlib import Path
from zipfile import BadZipFile, ZipFile

COMPILED_IN = ("highway", "pybind11")  # csrc/licences.cmake
NAME = re.compile(r"hexane-[^-]+(-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platforms>[^-]+)\.whl")


def fault(name: str, architecture: str) -> str | None:
    """Why a file of this name is not the wheel, or None."""
    parts = NAME.fullmatch(name)
    if parts is None:
        return "which is no wheel of Hexane"
    if parts["python"] != parts["abi"] or not re.fullmatch(r"cp3\d+", parts["abi"]):
        return f"which is for {parts['python']}-{parts['abi']}, not for one version of CPython (cp311-cp311)"
    manylinux = re.compile(rf"manylinux(1|2010|2014|_\d+_\d+)_{re.escape(architecture)}")
    if architecture != "any" and not any(map(manylinux.fullmatch, parts["platforms"].split("."))):
        return f"which is for {parts['platforms']}"
    return None


def missing_licences(wheel: Path) -> list[str]:
    """The parts of the wheel without a licence text."""
    with ZipFile(wheel) as archive:
        texts = [
            info.filename
            for info in archive.infolist()
            if info.file_size and re.match(r"hexane-[^/]+\.dist-info/licenses/", info.filename)
        ]
    inside = [name.partition(".dist-info/licenses/")[2].split("/") for name in texts]
    parts = {parts[0] if parts[1:] else "hexane" for parts in inside}
    return [name for name in ("hexane", *COMPILED_IN) if name not in parts]


def check(architecture: str, arguments: list[str]) -> Path:
    """The wheel, or a ValueError."""
    kind = "one wheel of Hexane" if architecture == "any" else f"one wheel of Hexane for manylinux on {architecture}"
    if len(arguments) != 1:
        raise ValueError(
            f"got {f'{len(arguments)} files: ' if arguments else 'nothing'}{' '.join(arguments)}, need {kind}"
        )
    wheel = Path(arguments[0]).resolve()
    if not wheel.is_file():
        raise ValueError(f"got {arguments[0]}, which is no file; need {kind}")
    if reason := fault(wheel.name, architecture):
        raise ValueError(f"got {wheel.name}, {reason}; need {kind}")
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
