"""Netplists, the property lists that the engine's compiler takes as well as MIL: their text, and graphs from and to
them."""

from hexane.netplist.plist import read_plist, weights_name, write_plist
from hexane.netplist.read import as_graph
from hexane.netplist.units import NetConstant, Netplist, NetPort, Unit
from hexane.netplist.write import write_netplist

__all__ = [
    "NetConstant",
    "NetPort",
    "Netplist",
    "Unit",
    "as_graph",
    "read_plist",
    "weights_name",
    "write_netplist",
    "write_plist",
]
