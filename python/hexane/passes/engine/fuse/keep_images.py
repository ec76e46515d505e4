"""Lets 1x1 convolutions, and layers between them, read images of H x W pixels instead of one row of H * W pixels."""

from hexane.graph import Graph
from hexane.passes.engine.fuse.layers_on_images import with_images
from hexane.passes.engine.moves import MOVES, Image, flattened, is_layer, step_of
from hexane.targets import Chip


def keep_images(graph: Graph, chip: Chip) -> Graph:
    """anec.add(anec.convolution(anec.reshape(%x : [1, 8, 4, 6]) : [1, 8, 1, 24], %w), %y : [1, 8, 1, 24])
      ->  anec.reshape(anec.add(anec.convolution(%x, %w), anec.reshape(%y) : [1, 8, 4, 6])) : [1, 8, 1, 24]

    Convolutions with a 1 x 1 kernel, elementwise layers, and layers that work along the channels give the same numbers
    for images as for rows of pixels. For each image size the pass keeps the images if fewer reshapes and transposes
    remain. No result changes.
    """
    if "anec.reshape" not in graph.ops:
        return graph
    for image in _images(graph):
        candidate = with_images(graph, image, chip)
        if _moves(candidate) < _moves(graph):
            graph = candidate
    return graph


def _images(graph: Graph) -> list[Image]:
    """Returns the image sizes that reshapes flatten, without duplicates."""
    images = dict[Image, None]()
    for node in graph.nodes:
        x = node.inputs[0] if node.op == "anec.reshape" else None
        if x is not None and (image := flattened(x.shape, node.types[0].shape)) is not None:
            images[image] = None
    return list(images)


def _moves(graph: Graph) -> int:
    moves = [node for node in graph.nodes if node.op in MOVES and node.inputs[0] is not None]
    return sum(is_layer(step_of(node), tuple(node.inputs[0].shape)) for node in moves if node.inputs[0] is not None)
