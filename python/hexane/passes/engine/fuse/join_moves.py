"""Rewrites each chain of transposes and reshapes as the equivalent chain with the fewest layers."""

from collections.abc import Sequence

from hexane.graph import Graph, Node, Value
from hexane.passes.engine.chain import Readers
from hexane.passes.engine.moves import MOVES, Shape, Step, chain_nodes, layers_of, reads, shape_behind, written
from hexane.passes.engine.ways import traced, ways
from hexane.targets import Chip


def join_moves(graph: Graph, chip: Chip) -> Graph:
    """anec.transpose(anec.reshape(anec.transpose(%x : [1, 64, 1, 32]) : [1, 1, 32, 64]) : [1, 32, 4, 16]) : [1, 4, 32, 16]
      ->  anec.transpose(anec.reshape(%x) : [1, 4, 16, 32]) : [1, 4, 32, 16]

    Requires that the new chain has fewer layers, or that the layer before or the product after absorbs one more of
    them. A move with other readers is kept.
    """  # noqa: E501
    if graph.ops.isdisjoint(MOVES):
        return graph
    readers = Readers(graph)
    products = {value for value, nodes in graph.users().items() if value.node.op in MOVES and reads(nodes, value)}

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        x = inputs[0] if inputs else None
        if node.op not in MOVES or x is None or x.node.op not in MOVES:
            return None
        now = node if inputs == node.inputs else node.with_inputs(inputs)
        source, steps = traced(now.values[0])
        candidates = ways(source.type, steps, chip)
        if not candidates:
            return None
        for_product = node.values[0] in products

        def cost(way: Sequence[Step], shape: Shape, of: Value | None) -> float:
            alone = of.node if of is not None and readers.alone(of) else None
            return layers_of(way, shape, alone, for_product)

        gone = len([*chain_nodes(now.values[0], source, readers.alone)])
        kept, last = steps[: len(steps) - gone], steps[len(steps) - gone :]
        start = tuple(source.shape)
        best = min(candidates, key=lambda way: cost(way, start, source))
        before = cost(last, shape_behind(start, kept), None if kept else source)
        return (written(source, best, node.sources),) if cost(best, start, source) < before else None

    return graph.rewrite(change)
