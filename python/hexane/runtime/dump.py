"""Writes the graph after each pass into a folder, as numbered text files."""

import os
import re
from pathlib import Path

from hexane.errors import Error
from hexane.graph import Graph
from hexane.program import Program

_FILE = re.compile(r"\d{2,3}-[a-z]+[a-z0-9_-]*\.txt")  # names of a dump's files


class Dump:
    """A `watch` of `compile_graph` that writes 00-graph.txt, the original graph, then a file after each pass, and at
    last the program.

    The folder is created if needed, and loses the files of an earlier dump. `hexane.ops.parse` reads the graphs. A
    pass's decisions follow its graph as comments. Raises Error if a file cannot be written.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = Path(folder)
        self._seen: Graph | Program | None = None
        self._count = 0

    def __call__(self, name: str, form: Graph | Program) -> None:
        if name == "graph":
            self._count, self._seen = 0, None
        try:
            if self._count == 0:
                self._folder.mkdir(parents=True, exist_ok=True)
                # This file marks an earlier dump: only then are files deleted.
                if (self._folder / f"00-{name}.txt").exists():
                    for old in self._folder.iterdir():
                        if _FILE.fullmatch(old.name):
                            old.unlink()
            (self._folder / f"{self._count:02}-{name}.txt").write_text(self._text(form), encoding="utf-8")
        except OSError as error:
            raise Error(f"[dump] {self._folder}: {error.strerror}, need a folder that can be written to") from None
        self._seen, self._count = form, self._count + 1

    def _text(self, form: Graph | Program) -> str:
        if isinstance(form, Program):
            return str(form)
        known = len(self._seen.decisions) if self._seen is not None else 0
        new = [f"# {decision}".replace("\n", " ") for decision in form.decisions[known:]]
        return "\n".join([str(form).rstrip("\n"), *new]) + "\n"
