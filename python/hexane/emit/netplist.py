"""The netplist of a segment of the engine."""

from hexane.graph import Graph
from hexane.lowering.layers import lower
from hexane.netplist import Netplist, write_netplist
from hexane.targets import Chip


def emit_netplist(graph: Graph, chip: Chip, name: str = "network") -> Netplist:
    """The netplist of a segment that runs on the chip's engine, with fp16 ports. Raises Error as `write_netplist` does,
    and for an op that no layer computes."""
    return write_netplist(lower(graph, chip), name)
