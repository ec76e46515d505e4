"""The order of values in a program's channels. Every graph uses the order of the first trainer on the engine.

    program      input channels                   output channels
    fwdAttn      x                                result, Q, K, V, attention, norm
    fwdFFN       x                                result, h1, h3, gated, norm
    ffnBwd       gradient, h1, h3                 gradient, dh1, dh3
    sdpaBwd1     Q, K, V, gradient                dV, P, dP
    sdpaBwd2     P, dP, Q, K                      dQ, dK
    qkvBwd       dQ, dK, dV                       gradient

P is the softmax of the scores, dX the gradient of X. h1 is the product that feeds the activation, h3 the product
multiplied with the activation's result, "gated" that product's result. In these programs, values outside the
table follow in execution order.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from hexane.graph import Node, Value
from hexane.train.kernels.branches import PRODUCTS, Ancestry, Branch, is_leaf, matrix_of

RESULT: Final = "result"
_INPUTS: Final = {
    "ffnBwd": ("gradient", "h1", "h3"),
    "sdpaBwd1": ("Q", "K", "V", "gradient"),
    "sdpaBwd2": ("P", "dP", "Q", "K"),
    "qkvBwd": ("dQ", "dK", "dV"),
}
_OUTPUTS: Final = {
    "fwdAttn": (RESULT, "Q", "K", "V", "attention", "norm"),
    "fwdFFN": (RESULT, "h1", "h3", "gated", "norm"),
    "ffnBwd": (RESULT, "dh1", "dh3"),
    "sdpaBwd1": ("dV", "P", "dP"),
    "sdpaBwd2": ("dQ", "dK"),
    "qkvBwd": (RESULT,),
}
_GRADIENTS: Final = {part: f"d{part}" for part in ("Q", "K", "V", "h1", "h3")}
_LINEAR: Final = PRODUCTS | {"reshape", "transpose", "cast", "add"}  # no activation


class TapOrder:
    """The role of each value in its branch, such as "Q", and the channel order by roles."""

    def __init__(self, tree: Ancestry, forward: Sequence[Branch], backward: Sequence[Branch]) -> None:
        self._tree = tree
        self._parts: dict[int, str] = {}  # The `id()` of a node -> its role.
        self._weights: dict[int, str] = {}  # The `id()` of a weight -> the role of its product.
        for branch in forward:
            self._forward(branch)
        for branch in backward:
            self._backward(branch)

    def inputs(self, kind: str, values: Sequence[Value]) -> tuple[Value, ...]:
        """Returns the values that a program reads, in channel order."""
        return self._sorted(values, _INPUTS[kind]) if kind in _INPUTS else tuple(values)

    def outputs(self, kind: str, values: Sequence[Value]) -> tuple[Value, ...]:
        """Returns the outputs of a program in channel order. For a kind outside the table, the value computed last is
        first."""
        if kind in _OUTPUTS:
            return self._sorted(values, _OUTPUTS[kind])
        return tuple(sorted(values, key=lambda v: self._tree.at(v.node), reverse=True))

    def _sorted(self, values: Sequence[Value], parts: Sequence[str]) -> tuple[Value, ...]:
        """Returns one value per role of `parts`, then all others. If several values have one role, the last one counts;
        for a gradient the first one, which adapters read."""
        computed = sorted(values, key=lambda v: self._tree.at(v.node))
        owners: dict[str, Value] = {}
        for value in computed:
            part = self._parts.get(id(value.node), "")
            if part not in owners or part not in _GRADIENTS.values():
                owners[part] = value
        first = [owners[part] for part in parts if part in owners]
        return (*first, *(v for v in computed if v not in first))

    def _mark(self, nodes: Iterable[Node], part: str) -> None:
        for node in nodes:
            self._parts.setdefault(id(node), part)

    def _forward(self, branch: Branch) -> None:
        tree, inside = self._tree, self._tree.bits(branch.nodes)
        dependents = inside & _after_products(tree, branch.nodes)
        self._mark(branch.nodes[-1:], RESULT)
        self._mark(tree.among(inside & ~dependents), "norm")
        for part, bits in (_attention(tree, branch) or _gate(tree, branch, dependents)).items():
            nodes = list(tree.among(bits & dependents))
            self._mark(nodes, part)
            products = tree.bits(node for node in nodes if node.op in PRODUCTS)
            for node in nodes:
                # Only the last products of a role count for its gradient: an adapter of low rank has two.
                is_last = products & tree.after[tree.at(node)] == 1 << tree.at(node)
                if is_last and (weight := matrix_of(node)) is not None:
                    self._weights.setdefault(id(weight), part)

    def _backward(self, branch: Branch) -> None:
        self._mark([branch.begin.node], "gradient")
        self._mark(branch.nodes[-1:], RESULT)
        for node in branch.nodes:
            values = [v for v in node.inputs if v is not None]
            shares = [v.node for v in values if v.node.op == "softmax"]
            if node.op == "mul" and shares and self._parts.get(id(shares[0])) != "P":
                # The gradient of a softmax begins with a multiplication by the softmax.
                self._mark(shares, "P")
                self._mark((v.node for v in values if v.node.op != "softmax"), "dP")
            weight = matrix_of(node)
            part = "" if weight is None else self._weights.get(id(weight), "")
            if part in _GRADIENTS:
                self._mark((moved for v in values[:2] for moved in _moved(v)), _GRADIENTS[part])


def _attention(tree: Ancestry, branch: Branch) -> dict[str, int] | None:
    """Returns the nodes of Q, K, V and of the attention's result; None if the branch has no attention."""
    for node in branch.nodes:
        if node.op == "scaled_dot_product_attention":
            return _of_attention(tree, branch, node.inputs[:3], node)
        if node.op == "softmax":
            before, after = tree.before[tree.at(node)], tree.after[tree.at(node)]
            products = [n for n in branch.nodes if n.op == "matmul" and matrix_of(n) is None]
            scores = [n for n in products if before >> tree.at(n) & 1]
            results = [n for n in products if after >> tree.at(n) & 1]
            if scores and results:
                values = [v for v in results[0].inputs[:2] if v is not None and not after >> tree.at(v.node) & 1]
                return _of_attention(tree, branch, [*scores[-1].inputs[:2], *values], results[0])
    return None


def _of_attention(tree: Ancestry, branch: Branch, operands: Sequence[Value | None], result: Node) -> dict[str, int]:
    q, k, v = ([*(0 if v is None else tree.before[tree.at(v.node)] for v in operands), 0, 0, 0])[:3]
    several = q & k | q & v | k & v
    after = tree.after[tree.at(result)]
    later = [node for node in branch.nodes if node is not result and after >> tree.at(node) & 1]
    attention = after & ~_after_products(tree, later)
    return {"Q": q & ~several, "K": k & ~several, "V": v & ~several, "attention": attention}


def _gate(tree: Ancestry, branch: Branch, dependents: int) -> dict[str, int]:
    """Returns the roles of a branch without attention: h1 and h3 (products before any activation), and "gated" (nodes
    computed from them before the next product). dependents: the branch's products and their dependents."""
    products = tree.bits(node for node in branch.nodes if node.op in PRODUCTS)
    linear = 0
    for node in tree.among(dependents):
        computed = tree.bits(v.node for v in node.inputs if v is not None) & dependents
        is_scaled = node.op == "mul" and any(v is not None and is_leaf(v.node) for v in node.inputs)
        if (node.op in _LINEAR or is_scaled) and not computed & ~linear:
            linear |= 1 << tree.at(node)
    for node in branch.nodes:
        operands = [tree.before[tree.at(v.node)] for v in node.inputs if v is not None] if node.op == "mul" else []
        if len(operands) != 2:
            continue
        h1, h3 = operands
        if h1 & ~h3 & products and h3 & ~h1 & products:
            if not h1 & dependents & ~linear:
                h1, h3 = h3, h1  # the activation must be in h1
            after = tree.after[tree.at(node)]
            gated = after & ~_after_products(tree, [n for n in branch.nodes if after >> tree.at(n) & 1])
            return {"h1": h1 & linear, "h3": h3 & linear, "gated": gated}
    activated = dependents & ~linear
    return {"h1": linear, "gated": activated & ~_after_products(tree, list(tree.among(activated)))}


def _after_products(tree: Ancestry, nodes: Iterable[Node]) -> int:
    """Returns the products among the nodes, and all their dependents."""
    bits = 0
    for node in nodes:
        bits |= tree.after[tree.at(node)] if node.op in PRODUCTS else 0
    return bits


def _moved(value: Value) -> Iterator[Node]:
    """Yields the node of a value, and the nodes whose results it only reshapes, transposes or casts."""
    while not is_leaf(value.node):
        yield value.node
        source = value.node.inputs[0] if value.node.op in ("reshape", "transpose", "cast") else None
        if source is None:
            return
        value = source
