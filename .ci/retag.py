"""Packs an unpacked wheel for another platform: retag.py FOLDER OUT PLATFORM."""

import re
import subprocess
import sys
from pathlib import Path

folder, out, platform = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
(path,) = folder.glob("*.dist-info/WHEEL")
path.write_text(re.sub(r"(?m)^(Tag: \w+-\w+-).*$", rf"\g<1>{platform}", path.read_text()))
subprocess.run([sys.executable, "-m", "wheel", "pack", folder, "-d", out], check=True)
