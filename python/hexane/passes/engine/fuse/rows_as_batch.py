"""Lets 1x1 convolutions read the rows of one image as a batch of images, where this takes fewer moves."""

from math import floor

from hexane.graph import Graph, Node, Value, tensor_type
from hexane.graph.decisions import Decision
from hexane.ops import OPS, apply
from hexane.passes.engine.chain import Readers, slots_of
from hexane.passes.engine.legalize.check_layers import refusal
from hexane.passes.engine.moves import MOVES, Step, chain_nodes, layers_of, reads, shape_behind, step_of, written
from hexane.passes.engine.ways import traced, ways
from hexane.targets import Chip

STAGE = "rows_as_batch"
SOURCE = "hexane, exact"
RANK = 4
EXCHANGED: Step = ("transpose", (2, 1, 0, 3))  # (1, channels, rows, columns) <-> (rows, channels, 1, columns)


def rows_as_batch(graph: Graph, chip: Chip) -> Graph:
    """anec.convolution(transpose(%x : [64, 96, 1, 49]) {perm=(2, 1, 0, 3)} : [1, 96, 64, 49], %w)
      ->  transpose(anec.convolution(%x, %w) : [64, 96, 1, 49]) {perm=(2, 1, 0, 3)}

    A 1 x 1 convolution computes each pixel alone, so that rows may be images of a batch. Windows of an image are such
    rows: an attention has them as its batch. Requires that a move before or after the convolution vanishes (a transpose
    in a slot does not count), that no other layer reads its operand, and that the chip accepts the layer. No result
    changes.
    """
    if "anec.convolution" not in graph.ops or graph.ops.isdisjoint(MOVES):
        return graph
    plan, readers, decisions = _Plan(graph, chip), Readers(graph), list[Decision]()

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        readers.see(node, inputs)
        if not _is_pixelwise(node) or not plan.saves(node):
            return None
        x = inputs[0]
        assert x is not None
        source, steps = traced(x, [EXCHANGED])
        maker = source.node if readers.alone(source) else None
        candidates = ways(source.type, steps, chip)
        if not candidates:
            return None
        way = min(candidates, key=lambda way: layers_of(way, source.shape, maker, for_product=False))
        images = written(source, way, node.sources)
        (result,) = apply(OPS[node.op], [images, *inputs[1:]], node.attrs, node.sources)
        if refusal(result.node, chip) is not None:
            return None
        decisions.append(Decision(STAGE, node.where, "rewritten", f"with its {x.shape[2]} rows as a batch", SOURCE))
        return (written(result, (EXCHANGED,), node.sources),)

    return graph.rewrite(change).decided(*decisions)


class _Plan:
    """Counts the moves around a convolution, with its rows as rows and as a batch."""

    def __init__(self, graph: Graph, chip: Chip) -> None:
        self.chip = chip
        self.users, self.counts = graph.users(), graph.use_counts()

    def saves(self, node: Node) -> bool:
        """True if the rows as a batch save a whole layer. A transpose in a slot alone is kept."""
        x, (y,) = node.inputs[0], node.values
        after, end = self._after(y)
        if x is None or x.node.op not in MOVES or self.counts[x] != 1 or not after:
            return False
        source, before = traced(x)
        made = len([*chain_nodes(x, source, lambda v: self.counts[v] == 1)])  # moves that nothing else reads
        kept, last = before[: len(before) - made], before[len(before) - made :]
        for_product = end in self.users and reads(self.users[end], end)
        now = layers_of(
            last, shape_behind(source.shape, kept), None if kept else self._maker(source), for_product=False
        )
        now += layers_of(after, y.shape, node, for_product)
        images = tensor_type(y.dtype, shape_behind(y.shape, [EXCHANGED]))
        first, steps = traced(x, [EXCHANGED])
        into = [layers_of(way, first.shape, self._maker(first), False) for way in ways(first.type, steps, self.chip)]
        onward = [
            layers_of(way, images.shape, node, for_product) for way in ways(images, [EXCHANGED, *after], self.chip)
        ]
        # Each sum has at most two transposes in slots, which together count less than a layer.
        return bool(into and onward) and floor(min(into) + min(onward)) < floor(now)

    def _maker(self, source: Value) -> Node | None:
        return source.node if self.counts[source] == 1 else None

    def _after(self, value: Value) -> tuple[list[Step], Value]:
        """Returns the moves after the value that nothing else reads, and the last result."""
        steps = list[Step]()
        while self.counts[value] == 1 and (nodes := self.users.get(value)) and nodes[0].op in MOVES:
            steps.append(step_of(nodes[0]))
            (value,) = nodes[0].values
        return steps, value


def _is_pixelwise(node: Node) -> bool:
    """True for a 1 x 1 convolution of one image with several rows."""
    a, shape = node.attrs, node.types[0].shape
    if node.op != "anec.convolution" or len(shape) != RANK or shape[0] != 1 or shape[2] == 1:
        return False
    if any(s.op not in ("gain_offset", "pre_activation", "post_activation") for s in slots_of(node)):
        return False
    if any(s.op == "gain_offset" and dict(s.attributes)["axis"] != 1 for s in slots_of(node)):
        return False
    return set(a["kernel_sizes"]) == set(a["strides"]) == {1} and not any(a["explicit_padding"])
