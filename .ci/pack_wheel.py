"""Packs each wheel of a folder again, as small as deflate allows, and warns of a wheel above the limit:
pack_wheel.py FOLDER."""

import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

from zopfli import ZipFile as SmallZipFile  # of zopflipy

MOST_BYTES = 5_000_000


def pack(wheel: Path) -> int:
    """Returns the bytes of the packed wheel, which has the same files in the same order."""
    packed = wheel.with_suffix(".packed")
    with ZipFile(wheel) as old, SmallZipFile(packed, "w", ZIP_DEFLATED) as new:
        for info in old.infolist():
            new.writestr(info, old.read(info))
    packed.replace(wheel)
    return wheel.stat().st_size


for wheel in sorted(Path(sys.argv[1]).glob("*.whl")):
    size = pack(wheel)
    if size > MOST_BYTES:
        print(f"[pack-wheel] warning: {wheel.name}: got {size:,} bytes, want at most {MOST_BYTES:,}", file=sys.stderr)
