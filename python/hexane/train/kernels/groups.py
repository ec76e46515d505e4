"""Groups the nodes of a training step into programs of the engine.

A branch of the forward pass is one program. The backward pass of a branch is one program, or three with an attention:

    fwdAttn, fwdFFN          norm, products, and the nodes between them
    ffnBwd                   products with transposed weights, gradients of activations
    sdpaBwd1                 product with o_proj's weight, softmax again, gradients of values and softmax
    sdpaBwd2                 gradients of scores, queries and keys: has no weights, so it is compiled once
    qkvBwd                   products with the transposed weights of queries, keys and values

The host runs all other ops. The variant "ane-head" has further programs on the engine:

    finalNorm, classifier    the last norm; the product with the classifier's weight (the head)
    softmax                  of the logits, if the gradient of the loss reads it: has no weights
    normBwdAttn, normBwdFFN  the gradient of the norm that begins a branch, from its output's gradient and its input

The product of the loss's gradient and the classifier's weight stays on the host: chips refuse that many channels.

The variant "linear" divides a step like the first trainers on the engine: each product of a forward branch with a
trained weight is a program, and so is the classifier. The host runs everything else.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal, NamedTuple

from hexane.graph import Graph, Node, Value
from hexane.ops import OPS
from hexane.train.kernels.branches import (
    PRODUCTS,
    Ancestry,
    Branch,
    find_branches,
    find_head,
    is_leaf,
    is_weight_product,
    loss_of,
    matrix_of,
    weight_of,
)
from hexane.train.kernels.tap_order import TapOrder

Variant = Literal["cpu-head", "ane-head", "linear"]
VARIANTS: tuple[Variant, ...] = ("cpu-head", "ane-head", "linear")
HEAD = -1  # the layer number of the head's programs


@dataclass(frozen=True, slots=True)
class Group:
    """The nodes of one program, operands first; some are recomputed by other programs or the host too. inputs, outputs:
    in the order of the program's channels (`TapOrder`)."""

    kind: str
    layer: int
    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]


class _Part(NamedTuple):
    """The nodes of a program. again: nodes that it recomputes although another program or the host computes them
    too."""

    kind: str
    layer: int
    nodes: list[Node]
    again: Sequence[Node] = ()


def find_groups(graph: Graph, variant: Variant = "cpu-head") -> list[Group]:
    """Returns the programs of a step, in execution order. Raises Error for a graph without an output "loss"."""
    tree = Ancestry(graph)
    forward, backward = find_branches(graph, tree)
    order = TapOrder(tree, forward, backward)
    parts: list[_Part] = []
    layer_of: dict[int, int] = {}  # `id()` of a weight -> its layer
    layer = -1
    for branch in forward:
        attends = any(node.op in ("softmax", "scaled_dot_product_attention") for node in branch.nodes)
        layer += 1 if attends or layer < 0 else 0
        layer_of |= {id(weight): layer for weight in _matrices(branch.nodes)}
        parts.append(_Part("fwdAttn" if attends else "fwdFFN", layer, list(branch.nodes)))
    if variant == "linear":
        head = find_head(graph, tree, forward)
        classifier = [] if head is None else [_Part("classifier", HEAD, [head[1]])]
        return _as_groups(graph, tree, order, [*_of_products(parts), *classifier])
    if variant == "ane-head":
        parts += _of_head(graph, tree, forward)
    of_loss = _of_loss(graph, tree, [tree.at(branch.begin.node) for branch in backward])
    owned: set[int] = {id(node) for part in parts for node in part.nodes}
    for branch in backward:
        own = next((layer_of[id(w)] for w in _matrices(branch.nodes) if id(w) in layer_of), 0)
        levels = _levels(branch)
        names = ("ffnBwd",) if len(levels) == 1 else ("sdpaBwd1", "sdpaBwd2", "qkvBwd")
        for i, nodes in enumerate(levels):
            whole = _with_repeated(nodes, owned, tree, of_loss)
            owned |= {id(node) for node in whole}
            parts.append(_Part(names[i] if i < len(names) else f"bwd{i}", own, whole))
        if variant == "ane-head" and branch.norm:
            # The norm's statistics are computed in the program and on the host, which needs them for the gradient of
            # the norm's weight.
            whole = _with_repeated(branch.norm, owned, tree, of_loss)
            again = [node for node in whole if node not in branch.norm]
            parts.append(_Part(f"normBwd{'FFN' if len(levels) == 1 else 'Attn'}", own, list(branch.norm), again))
    return _as_groups(graph, tree, order, parts)


def _of_products(parts: Sequence[_Part]) -> Iterator[_Part]:
    """Yields each product with a trained weight, named by the shortest suffix of the weight's name that is unique in
    its layer."""
    for layer, group in groupby(parts, key=lambda part: part.layer):
        products = [(weight, node) for part in group for node in part.nodes for weight in weights_of([node])]
        names = [str(weight.attrs["name"]).removesuffix(".weight").split(".") for weight, _ in products]
        for (_, node), name in zip(products, names, strict=True):
            ends = (name[-i:] for i in range(1, len(name) + 1))
            kind = next((end for end in ends if sum(other[-len(end) :] == end for other in names) == 1), name)
            yield _Part(".".join(kind), layer, [node])


def _of_head(graph: Graph, tree: Ancestry, forward: Sequence[Branch]) -> list[_Part]:
    head = find_head(graph, tree, forward)
    if head is None:
        return []
    norm, classifier = head
    parts = [_Part("finalNorm", HEAD, norm)] if norm else []
    parts.append(_Part("classifier", HEAD, [classifier]))
    shares = [node for node in tree.nodes if node.op == "softmax" and node.inputs[0] == classifier.values[0]]
    return [*parts, _Part("softmax", HEAD, shares)] if len(shares) == 1 else parts


def weights_of(nodes: Iterable[Node]) -> list[Node]:
    """Returns the params and states that the nodes multiply by, without duplicates."""
    weights = (weight_of(v) for node in nodes if node.op in PRODUCTS for v in node.inputs[:2])
    return list(dict.fromkeys(w for w in weights if w is not None))


def _matrices(nodes: Iterable[Node]) -> Iterator[Node]:
    """Returns the weights that the nodes multiply by, trained or constant."""
    return (weight for node in nodes if (weight := matrix_of(node)) is not None)


def _levels(branch: Branch) -> list[list[Node]]:
    """Splits the nodes into runs. A run without weights begins with the gradient of a softmax and ends before the next
    weight product. Terms of a sum are placed in the run of its last term."""
    level: dict[int, int] = {}
    for node in branch.nodes:
        at = max((level.get(id(v.node), 0) for v in node.inputs if v is not None), default=0)
        of_shares = node.op == "mul" and any(v is not None and v.node.op == "softmax" for v in node.inputs)
        ends = is_weight_product(node) if at % 2 else of_shares
        level[id(node)] = at + ends
    for node in reversed(branch.nodes):
        if node.op == "add" and not level[id(node)] % 2:
            for v in node.inputs:
                if v is not None and id(v.node) in level and (is_weight_product(v.node) or v.node.op == "add"):
                    level[id(v.node)] = max(level[id(v.node)], level[id(node)])
    runs: list[list[Node]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for node in branch.nodes:
        runs[level[id(node)]].append(node)
    return [run for run in runs if run]


def _with_repeated(nodes: Sequence[Node], owned: set[int], tree: Ancestry, of_loss: int) -> list[Node]:
    """Returns the nodes, and nodes of the backward pass that recompute forward values for them: softmax, or the sigmoid
    of an activation."""
    by_id = {id(node): node for node in nodes}
    stack = list(nodes)
    while stack:
        for v in stack.pop().inputs:
            if v is None or id(v.node) in by_id or id(v.node) in owned or is_leaf(v.node):
                continue
            if not of_loss >> tree.at(v.node) & 1:
                by_id[id(v.node)] = v.node
                stack.append(v.node)
    return sorted(by_id.values(), key=tree.at)


def _of_loss(graph: Graph, tree: Ancestry, begins: Sequence[int]) -> int:
    """Returns, as a bit set, the nodes of the forward pass and of the head, and all dependents of the loss's
    gradient."""
    bits = tree.before[tree.at(loss_of(graph).node)]
    if begins:
        bits |= tree.before[begins[0]]
    for begin in begins:
        bits |= tree.after[begin]
    return bits


def _as_groups(graph: Graph, tree: Ancestry, order: TapOrder, parts: Sequence[_Part]) -> list[Group]:
    owner: dict[int, int] = {}
    for i, part in enumerate(parts):
        for node in part.nodes:
            owner.setdefault(id(node), i)
    whole = [_with_elementwise([*part.nodes, *part.again]) for part in parts]
    inputs = [_inputs(nodes) for nodes in whole]
    read: dict[Value, None] = dict.fromkeys(graph.roots)  # values that the host or another program reads
    for node in tree.nodes:
        if id(node) not in owner:
            read |= dict.fromkeys(v for v in node.inputs if v is not None)
    for values in inputs:
        read |= dict.fromkeys(values)
    groups = []
    for i, part in enumerate(parts):
        results = [v for node in part.nodes if owner[id(node)] == i for v in node.values if v in read]
        nodes = tuple(sorted(whole[i], key=tree.at))
        taps = (order.inputs(part.kind, inputs[i]), order.outputs(part.kind, results))
        groups.append(Group(part.kind, part.layer, nodes, *taps))
    return groups


def _inputs(nodes: Iterable[Node]) -> list[Value]:
    inside = {id(node) for node in nodes}
    read = (v for node in nodes for v in node.inputs if v is not None)
    return list(dict.fromkeys(v for v in read if id(v.node) not in inside and not is_leaf(v.node)))


def _with_elementwise(nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes, and elementwise producers of their inputs that need no further inputs. Recomputing these costs
    less than transferring their results."""
    given = _inputs(nodes)
    plain = {v for v in given if not OPS[v.node.op].elementwise}
    known: dict[Value, bool] = {}

    def again(v: Value) -> bool:
        if v not in known:
            reads = [u for u in v.node.inputs if u is not None and not is_leaf(u.node)]
            known[v] = OPS[v.node.op].elementwise and all(u in plain or again(u) for u in reads)
        return known[v]

    by_id = {id(node): node for node in nodes}
    stack = [v for v in given if v not in plain and again(v)]
    while stack:
        node = stack.pop().node
        if id(node) not in by_id:
            by_id[id(node)] = node
            stack += [u for u in node.inputs if u is not None and not is_leaf(u.node) and u not in plain]
    return list(by_id.values())
