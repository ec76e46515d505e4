"""Collects text that every machine with Python has: documentation of installed packages and of the standard library."""

import ast
import hashlib
import sysconfig
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

SUFFIXES = (".md", ".rst", ".txt")
NOT_PROSE = ("license", "licence", "copying", "notice", "authors", "top_level", "entry_points", "sources", "requires")
LEAST = 200  # Fewest characters of a document.
MOST_OF_A_PACKAGE = 1 << 15  # Characters, so that no package is most of the text.
MOST_OF_A_FILE = 1 << 22  # Bytes.


def documents(limit: int) -> list[str]:
    """Distinct documents of `limit` characters in total, in an order that depends only on the installed packages:
    half of the packages, then modules of the standard library, then the other packages."""
    found, seen, size = [], set(), 0
    packages = list(_of_packages())
    half = next((i for i, end in enumerate(_sums(packages), 1) if end >= limit / 2), len(packages))
    for text in [*packages[:half], *_of_modules(), *packages[half:]]:
        key = hashlib.sha256(text.encode()).digest()
        if size < limit and key not in seen:
            seen.add(key)
            found.append(text[: limit - size])
            size += len(found[-1])
    return found


def _sums(texts: list[str]) -> Iterator[int]:
    total = 0
    for text in texts:
        total += len(text)
        yield total


def _of_packages() -> Iterator[str]:
    """The README (from METADATA) and documentation files of each package, in the order of names."""
    named: dict[str, Distribution] = {}
    for one in distributions():
        named.setdefault(str(one.metadata["Name"]).lower(), one)  # Python imports the first of several
    for _, package in sorted(named.items()):
        left = MOST_OF_A_PACKAGE
        for text in (package.metadata.get_payload(), *map(_read, _files(package))):
            if isinstance(text, str) and len(text) >= LEAST:
                yield text.strip()[:left]
                left -= len(text)
            if left < LEAST:
                break


def _files(package: Distribution) -> list[Path]:
    files = [one for one in package.files or () if one.suffix in SUFFIXES]
    files = [one for one in files if not one.stem.lower().startswith(NOT_PROSE)]
    return [Path(str(one.locate())) for one in sorted(files)]


def _of_modules() -> Iterator[str]:
    """The docstrings of the standard library: of each module, then of its classes and functions."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        try:
            tree = ast.parse(_read(path))
        except (SyntaxError, ValueError):
            continue
        documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = [
            f"{getattr(node, 'name', path.stem)}: {text}"
            for node in ast.walk(tree)
            if isinstance(node, documented) and (text := ast.get_docstring(node))
        ]
        text = "\n\n".join(found)
        if len(text) >= LEAST:
            yield text


def _read(path: Path) -> str:
    """Empty for a file that is not there any more, is too large, or is no UTF-8."""
    try:
        return path.read_text("utf-8") if path.stat().st_size <= MOST_OF_A_FILE else ""
    except (OSError, ValueError):
        return ""
