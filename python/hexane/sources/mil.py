"""MIL text (`.mil`), with its weights in the same folder."""

from hexane.graph import Graph
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import fixed_function


def _load(seen: Seen) -> Graph:
    from hexane.importers.mil import load_mil_file  # imported late, because plans do not need it

    assert seen.path is not None
    return load_mil_file(seen.path)


MIL = Format(
    "mil",
    "MIL text",
    lambda seen: seen.suffix == ".mil",
    lambda seen: {"main": fixed_function(lambda: _load(seen))},
)
