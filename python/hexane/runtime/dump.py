"""Writes what each pass makes of a graph into a folder, one numbered file of text for each."""

import os
import re
from pathlib import Path

from hexane.errors import Error
from hexane.graph import Graph
from hexane.program import Program

_FILE = re.compile(r"\d{2,3}-[a-z]+[a-z0-9_-]*\.txt")  # files of a dump


class Dump:
    """A `watch` of `compile_graph`: 00-graph.txt is the graph as it was given, then one file for each pass, and the
    program last.

    The folder is made if it is not there, and files of an earlier dump in it go. `hexane.ops.parse` reads the graphs.
    Decisions of a pass stand below its graph, as comments. Raises Error where a file cannot be written.
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
                if (self._folder / f"00-{name}.txt").exists():  # an earlier dump; other folders keep all they have
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
