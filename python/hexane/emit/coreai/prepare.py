"""A graph as the engine takes it inside a Core AI asset: in fp16, in ops that the chip has, masks finite."""

from hexane.graph import Graph
from hexane.passes.legalize.finite_constants import without_infinities
from hexane.passes.legalize.round_attributes import round_attributes
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.retarget.retarget import retarget
from hexane.targets import Chip


def for_engine(graph: Graph, chip: Chip) -> Graph:
    """What stands between the ports becomes fp16, as do scales of weights; ports keep their dtypes. An fp32 graph has
    no part that the engine computes (Core AI's published rules)."""
    return without_infinities(round_attributes(to_fp16(retarget(graph, chip), chip), chip))
