"""Computes nodes whose operands are all constants at compile time."""

from collections.abc import Callable

from hexane.graph import Graph, Node, Value
from hexane.graph.decisions import Decision
from hexane.ops.encodings import is_encoded
from hexane.ops.fold import fold_node
from hexane.passes.quantize.narrow_weights import narrow_source, reads_weight
from hexane.targets import Chip, Target

__all__ = ["fold", "fold_node"]


def fold(graph: Graph, target: Target) -> Graph:
    """add(const [1.0], const [2.0])  ->  const [3.0]

    Skips a node whose result has more than 64 MiB and is more than four times as large as its operands. For a chip,
    encoded weights are not decoded: its layers read integers with a scale, and indices of a table.
    """
    chip = isinstance(target, Chip)
    return _folded(graph, lambda _, known: chip and is_encoded(known))


def fold_but_narrow_weights(graph: Graph, target: Target) -> Graph:
    """add(const [1.0], const [2.0])  ->  const [3.0]

    Like fold, but skips a matrix in 16 bits that is cast to fp32 for products and gathers alone: it would take twice
    the memory. The pass narrow_weights makes the readers widen it. A reader whose operands are all constants is
    computed, from the numbers in fp32.
    """
    users, counts = graph.users(), graph.use_counts()

    def is_kept(node: Node, known: Node) -> bool:
        value = node.values[0]
        if narrow_source(known.values[0]) is None:
            return False
        readers = users.get(value, ())
        return len(readers) == counts[value] and all(reads_weight(reader, value) for reader in readers)

    return _folded(graph, is_kept, readers=True)


def _folded(graph: Graph, is_kept: Callable[[Node, Node], bool], readers: bool = False) -> Graph:
    """is_kept: whether a node is skipped, given the node and its copy with folded operands. readers: compute also nodes
    that read only constants and results of skipped nodes."""

    def change(node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        for value in inputs:
            if value is not None and value.node.op != "const" and value not in kept:
                return None
        known = node.with_inputs(tuple([v if v is None or v not in kept else _computed(v) for v in inputs]))
        if is_kept(node, known):
            kept.update(known.values if readers else ())
            return None
        values = fold_node(known)
        if values is None:
            size = sum(t.bytes for t in node.types)
            refused.append(Decision("fold", node.where, "kept", f"as a constant it would take {size} bytes"))
        return values

    kept: set[Value] = set()
    refused: list[Decision] = []
    return graph.rewrite(change).decided(*refused)


def _computed(value: Value) -> Value:
    values = fold_node(value.node)
    return value if values is None else values[value.node.values.index(value)]
