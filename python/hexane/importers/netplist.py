"""Reads a netplist and its weights from files."""

import os
from pathlib import Path

from hexane.graph import Graph
from hexane.importers.files import open_inside, open_regular, read_all
from hexane.netplist import as_graph, read_plist, weights_name


def load_netplist_file(path: str | os.PathLike[str]) -> Graph:
    """Returns the graph of a property list. A weight file that the list names is in the list's folder."""
    where = Path(path)
    text = read_all(open_regular(where, f"[netplist] {where}", "property list"), f"[netplist] {where}")
    weights = b""
    if (name := weights_name(text)) is not None:
        weights = read_all(open_inside(where.parent, name, f"[netplist] {where}"), f"[netplist] {name}")
    return as_graph(read_plist(text, weights))
