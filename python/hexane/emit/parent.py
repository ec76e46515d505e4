"""The folder around a file or package that is written."""

from pathlib import Path

from hexane.errors import Error


def check_parent(path: Path) -> None:
    """Raises Error if the folder around the path does not exist: a mistyped path creates no folder."""
    if not path.parent.is_dir():
        raise Error(f"[emit] {path}: got no folder {path.parent}, need an existing one")
