"""The netplist of a segment of the engine."""

from hexane.graph import Graph
from hexane.lowering.layers import lower
from hexane.netplist import Netplist, write_netplist
from hexane.targets import Chip


def emit_netplist(graph: Graph, chip: Chip, name: str = "network") -> Netplist:
    """Returns the netplist of a segment for the chip's engine, with fp16 ports. Raises Error like `write_netplist`, and
    for an op without a layer."""
    return write_netplist(lower(graph, chip), name)
