"""Finds the branches of residual networks in a training graph, in the forward and the backward pass.

A branch is the nodes between a value and the residual add that joins the value with a function of it:

    forward:   x -> norm -> products -> y,                        x + y
    backward:  g -> products -> gradient of the norm -> h,        g + h

Embedding, head, loss, gradients of weights and updates are in no branch.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from hexane.errors import Error
from hexane.graph import Graph, Node, Value
from hexane.ops import LEAVES
from hexane.validate import is_constant

PRODUCTS = frozenset({"linear", "matmul", "conv", "scaled_dot_product_attention"})


@dataclass(frozen=True, slots=True)
class Branch:
    """A branch. nodes: in order, without the input value and the final add. norm: in the backward pass, the gradient
    of the norm: nodes after the last products, not in `nodes`."""

    begin: Value
    nodes: tuple[Node, ...]
    norm: tuple[Node, ...] = ()


class Ancestry:
    """The dependencies between the nodes of a graph, as bit sets indexed by position in `graph.nodes`."""

    def __init__(self, graph: Graph) -> None:
        self.nodes = graph.nodes
        self.index = {id(node): i for i, node in enumerate(self.nodes)}
        self.before: list[int] = []  # per node: its dependencies, and itself
        for i, node in enumerate(self.nodes):
            self.before.append((1 << i) | _union(self.before[j] for j in self._operands(node)))
        self.after = [1 << i for i in range(len(self.nodes))]  # per node: its dependents, and itself
        for i in reversed(range(len(self.nodes))):
            for j in self._operands(self.nodes[i]):
                self.after[j] |= self.after[i]

    def _operands(self, node: Node) -> Iterator[int]:
        return (self.index[id(v.node)] for v in node.inputs if v is not None)

    def at(self, node: Node) -> int:
        return self.index[id(node)]

    def among(self, bits: int) -> Iterator[Node]:
        """Yields the nodes of a bit set, in order."""
        while bits:
            low = bits & -bits
            yield self.nodes[low.bit_length() - 1]
            bits ^= low

    def bits(self, nodes: Iterable[Node]) -> int:
        return _union(1 << self.index[id(node)] for node in nodes)


def find_branches(graph: Graph, tree: Ancestry) -> tuple[list[Branch], list[Branch]]:
    """Returns the branches of the forward pass (nodes that the output "loss" depends on) and of the backward pass, each
    in the order of execution."""
    forward = tree.before[tree.at(loss_of(graph).node)]
    weighted = tree.bits(node for node in tree.nodes if is_weight_product(node))
    ends: list[tuple[Value, Value, Node]] = []
    for node in tree.nodes:
        pair = _residual(node, tree, weighted) if node.op == "add" else None
        if pair is not None:
            ends.append((*pair, node))
    adds = tree.bits(node for _, _, node in ends)
    branches: tuple[list[Branch], list[Branch]] = ([], [])
    for begin, end, add in ends:
        is_forward = bool(forward >> tree.at(add) & 1)
        inside = tree.after[tree.at(begin.node)] & tree.before[tree.at(end.node)] & ~adds & ~(1 << tree.at(begin.node))
        nodes = tuple(node for node in tree.among(inside) if not is_leaf(node))
        if is_forward:
            branches[0].append(Branch(begin, nodes))
            continue
        kept = _until_last_product(nodes)
        owned = {id(node) for node in kept}
        branches[1].append(Branch(begin, kept, tuple(node for node in nodes if id(node) not in owned)))
    return branches


def find_head(graph: Graph, tree: Ancestry, forward: Sequence[Branch]) -> tuple[list[Node], Node] | None:
    """Returns the nodes of the final norm, between the last branch and the head, and the head's product (the
    classifier). Returns None unless the graph has exactly one classifier."""
    inside = tree.before[tree.at(loss_of(graph).node)]
    for branch in forward:
        inside &= ~(tree.bits(branch.nodes) | tree.before[tree.at(branch.begin.node)])
    nodes = [node for node in tree.among(inside) if not is_leaf(node)]
    products = [node for node in nodes if is_weight_product(node)]
    if len(products) != 1:
        return None
    (classifier,) = products
    ahead = tree.before[tree.at(classifier)]
    # The first node, left out, is the residual add that ends the last branch.
    return [node for node in nodes if node is not classifier and ahead >> tree.at(node) & 1][1:], classifier


def loss_of(graph: Graph) -> Value:
    """Returns the output "loss". Raises Error if the graph has no such output."""
    for port in graph.outputs:
        if port.name == "loss":
            return port.value
    got = ", ".join(port.name for port in graph.outputs)
    raise Error(f"[train.kernels] got a graph with the outputs {got}, need one that is named 'loss'")


def _residual(node: Node, tree: Ancestry, weighted: int) -> tuple[Value, Value] | None:
    """Returns (x, f(x)) of the node x + f(x), if f multiplies by a weight; None for other nodes."""
    x, y = node.inputs
    if x is None or y is None or not x.shape == y.shape == node.values[0].shape or len(x.shape) < 2:
        return None
    for begin, end in ((x, y), (y, x)):
        between = tree.after[tree.at(begin.node)] & tree.before[tree.at(end.node)]
        if between & weighted & ~(1 << tree.at(begin.node)) and not is_leaf(begin.node):
            return begin, end
    return None


def _until_last_product(nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """Returns the nodes up to the last weight products and their sums. Later nodes of a backward branch compute the
    gradient of the norm."""
    kept: set[int] = set()
    for node in reversed(nodes):
        if is_weight_product(node) or id(node) in kept:
            kept.add(id(node))
            kept.update(id(v.node) for v in node.inputs if v is not None)
    sums: set[int] = set()
    for node in nodes:
        is_sum = node.op == "add" and all(v is not None and id(v.node) in sums for v in node.inputs)
        if is_sum or is_weight_product(node):
            sums.add(id(node))
    return tuple(node for node in nodes if id(node) in kept or id(node) in sums)


def is_weight_product(node: Node) -> bool:
    """True if a node multiplies by a weight: a param, state or constant with at least two axes."""
    return matrix_of(node) is not None


def matrix_of(node: Node) -> Node | None:
    """Returns the weight of a product: a param, state or constant with at least two axes, possibly reshaped, transposed
    or cast. None for other ops, and for products without such an operand."""
    for value in node.inputs[:2] if node.op in PRODUCTS else ():
        leaf = None if value is None else value.node
        while leaf is not None and leaf.op in ("reshape", "transpose", "cast") and leaf.inputs[0] is not None:
            leaf = leaf.inputs[0].node
        if leaf is not None and leaf.op != "input" and is_leaf(leaf) and len(leaf.values[0].shape) > 1:
            return leaf
    return None


def weight_of(value: Value | None) -> Node | None:
    """Returns the param or state with at least two axes that, reshaped, transposed or cast, is the value."""
    while value is not None and value.node.op in ("reshape", "transpose", "cast"):
        value = value.node.inputs[0]
    if value is None or value.node.op not in ("param", "state") or len(value.shape) < 2:
        return None
    return value.node


def is_leaf(node: Node) -> bool:
    """True if a node computes nothing at run time."""
    return node.op in LEAVES or is_constant(node)


def _union(sets: Iterable[int]) -> int:
    union = 0
    for one in sets:
        union |= one
    return union
