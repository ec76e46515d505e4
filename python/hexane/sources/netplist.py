"""Netplists (`.plist`), with their weights in the same folder."""

from hexane.graph import Graph
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import fixed_function


def _load(seen: Seen) -> Graph:
    from hexane.importers.netplist import load_netplist_file  # imported late, because plans do not need it

    assert seen.path is not None
    return load_netplist_file(seen.path)


NETPLIST = Format(
    "netplist",
    "a netplist",
    lambda seen: seen.suffix == ".plist",
    lambda seen: {"main": fixed_function(lambda: _load(seen))},
)
