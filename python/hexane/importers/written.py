"""Models as `hexane emit` writes them, by the ending of their name."""

import os

from hexane.graph import Graph


def load_written_model(path: str | os.PathLike[str]) -> Graph:
    """The graph of MIL text (.mil) or of a netplist (.plist), with the weights beside it."""
    # Loaded where they are used: a plan needs neither.
    if os.fspath(path).lower().endswith(".plist"):
        from hexane.importers.netplist import load_netplist_file

        return load_netplist_file(path)
    from hexane.importers.mil import load_mil_file

    return load_mil_file(path)
