"""Folders of a model in 16 bits, and in fp32 with the same numbers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

FILE = "model.safetensors"


def two_folders(folder: Path, kind: Any) -> tuple[Path, Path]:
    """Returns a copy of the folder with weights in this dtype, and the folder itself with their numbers in fp32."""
    short = Path(shutil.copytree(folder, folder.parent / "short"))
    stored = {name: a.astype(kind) for name, a in load_file(folder / FILE).items()}
    save_file(stored, short / FILE)
    save_file({name: a.astype(np.float32) for name, a in stored.items()}, folder / FILE)
    return short, folder
