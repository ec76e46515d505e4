"""Lists the licences of Highway and pybind11 in the METADATA of a wheel, as PEP 639 asks: wheel_licences.py WHEEL.

The build backend lists Hexane's licence alone, because CMake adds the texts of the libraries later
(csrc/licences.cmake).
"""

import base64
import csv
import hashlib
import io
import sys
from pathlib import Path
from zipfile import ZipFile

# Hexane is under Apache-2.0, Highway under Apache-2.0 or BSD-3-Clause, pybind11 under BSD-3-Clause.
EXPRESSION = "Apache-2.0 AND BSD-3-Clause"


def with_licences(metadata: str, texts: list[str]) -> str:
    """METADATA with EXPRESSION, and a line License-File for each text."""
    head, gap, description = metadata.partition("\n\n")
    lines = [line for line in head.split("\n") if not line.startswith("License-File: ")]
    (at,) = (i for i, line in enumerate(lines) if line.startswith("License-Expression: "))
    lines[at : at + 1] = [f"License-Expression: {EXPRESSION}", *(f"License-File: {text}" for text in texts)]
    return "\n".join(lines) + gap + description


def with_hash(record: str, path: str, content: bytes) -> str:
    """RECORD with the hash and the size of the file's content."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")
    rows = [
        [path, f"sha256={digest}", len(content)] if row[0] == path else row for row in csv.reader(io.StringIO(record))
    ]
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def rewrite(wheel: Path) -> None:
    changed = wheel.with_suffix(".changed")
    with ZipFile(wheel) as old, ZipFile(changed, "w") as new:
        (metadata,) = (name for name in old.namelist() if name.endswith(".dist-info/METADATA"))
        folder = metadata.removesuffix("METADATA")
        licenses = f"{folder}licenses/"
        texts = [name.removeprefix(licenses) for name in old.namelist() if name.startswith(licenses)]
        texts = sorted(
            (text for text in texts if text and not text.endswith("/")), key=lambda text: ("/" in text, text)
        )
        content = with_licences(old.read(metadata).decode(), texts).encode()
        record = with_hash(old.read(f"{folder}RECORD").decode(), metadata, content).encode()
        for info in old.infolist():
            new.writestr(info, {metadata: content, f"{folder}RECORD": record}.get(info.filename) or old.read(info))
    changed.replace(wheel)


if __name__ == "__main__":
    rewrite(Path(sys.argv[1]))
