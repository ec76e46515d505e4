"""Expands ops to other ops: by patterns, and by the expansions of their records."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hexane.graph import Node, Value
from hexane.ops import OPS, apply
from hexane.ops.compose import Builder, Operand, lift
from hexane.ops.fold import fold_node

# Returns an op written with the ops that the rewriter applies, or None if the pattern does not match.
Pattern = Callable[[Any, Node], Value | Sequence[Value] | None]


def is_always_legal(node: Node) -> bool:
    return True


def expansion(b: Builder, node: Node) -> Value | Sequence[Value] | None:
    """The pattern of the op record's expansion."""
    expand = OPS[node.op].expand
    return None if expand is None else expand(b, *node.inputs, **node.attrs)


class Rewriter(Builder):
    """Applies ops. An illegal op is replaced by its first matching pattern, or by its expansion, until all ops are
    legal. An op without pattern and expansion is kept, unless a subclass refuses it.

    legal: True for a node that is kept. patterns: by op, in order of priority. folds: constants are folded.
    """

    __slots__ = ("folds", "legal", "patterns")

    def __init__(
        self,
        *sources: str,
        legal: Callable[[Node], bool] = is_always_legal,
        patterns: Mapping[str, Sequence[Pattern]] | None = None,
        folds: bool = False,
    ) -> None:
        super().__init__(*sources)
        self.legal = legal
        self.patterns = patterns or {}
        self.folds = folds

    def several(self, name: str, *inputs: Operand, **attrs: Any) -> tuple[Value, ...]:
        return self.settled(apply(OPS[name], lift(inputs, self.sources), attrs, self.sources)[0].node)

    def settled(self, node: Node) -> tuple[Value, ...]:
        """Returns the replacements of a node's values."""
        if self.folds and (constants := fold_node(node)):
            return constants
        return node.values if self.legal(node) else self.rewritten(node)

    def rewritten(self, node: Node) -> tuple[Value, ...]:
        """Returns the replacements of an illegal node's values."""
        for pattern in (*self.patterns.get(node.op, ()), expansion):
            result = pattern(self, node)
            if result is not None:
                return (result,) if isinstance(result, Value) else tuple(result)
        return self.stuck(node)

    def stuck(self, node: Node) -> tuple[Value, ...]:
        """Returns the results of a node that no pattern matches: its own values. A subclass may raise an error."""
        return node.values

    def change(self, node: Node, inputs: tuple[Value | None, ...]) -> tuple[Value, ...] | None:
        """Returns the values of a node with these inputs, for `Graph.rewrite`; None if the node is unchanged."""
        outer, self.sources = self.sources, node.sources
        try:
            result = self.settled(node.with_inputs(inputs))
        finally:
            self.sources = outer
        return None if result and result[0].node is node else result
