"""Prepares a graph for the engine in a Core AI asset: in fp16, in ops of the chip, with finite masks."""

from hexane.emit.coreai.pixels import tokens_as_images
from hexane.graph import Graph
from hexane.lowering.finite_constants import without_infinities
from hexane.lowering.round_attributes import round_attributes
from hexane.passes.fuse.fuse_attention import fuse_attention
from hexane.passes.fuse.fuse_gelu import fuse_gelu
from hexane.passes.fuse.fuse_gelu_tanh import fuse_gelu_tanh
from hexane.passes.fuse.fuse_layer_norm import fuse_layer_norm
from hexane.passes.fuse.fuse_rms_norm import fuse_rms_norm
from hexane.passes.layout.products_as_convolutions import products_as_convolutions
from hexane.passes.legalize.to_fp16 import to_fp16
from hexane.passes.repair import repair
from hexane.passes.retarget.retarget import retarget
from hexane.passes.simplify.fold import fold
from hexane.passes.simplify.simplify import simplify
from hexane.targets import Chip


def for_engine(graph: Graph, chip: Chip) -> Graph:
    """Tokens become images; a single token does if the product's weights exceed the chip's working set. All floats
    between the graph's ports, and scales of weights, become fp16. Ports keep their dtypes. The engine computes nothing
    of an fp32 graph (Core AI's published rules)."""
    for known in (simplify, fuse_gelu, fuse_gelu_tanh, fuse_layer_norm, fuse_rms_norm, fuse_attention):
        graph = known(graph, chip)
    graph = retarget(repair(simplify(tokens_as_images(graph), chip), chip), chip)
    graph = round_attributes(to_fp16(fold(simplify(graph, chip), chip), chip), chip)
    return without_infinities(simplify(products_as_convolutions(graph, chip), chip))
