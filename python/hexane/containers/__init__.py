"""Reads the containers of compiled programs that Apple's compilers write, for `hexane info`.

Nobody could try these readers on a file of Apple's: they follow published descriptions, and are tested with files made
here.
"""

from hexane.containers.e5 import E5, read_e5
from hexane.containers.hwx import Hwx, Section, Segment, Symbol, read_hwx

__all__ = ["E5", "Hwx", "Section", "Segment", "Symbol", "read_e5", "read_hwx"]
