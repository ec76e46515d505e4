"""Sorts nodes, with operands first."""

from collections.abc import Iterable

from hexane.graph.node import Node, Value


def topological(roots: Iterable[Value], last_first: bool = False) -> list[Node]:
    """Nodes in depth-first post-order from the roots, each as soon after its operands as possible.

    Operands are visited from first to last, or with `last_first` from last to first.
    """
    order: list[Node] = []
    opened: set[Node] = set()  # nodes whose operands are on the stack, or in the order
    done: set[Node] = set()
    for root in roots:
        stack = [root.node]
        while stack:
            node = stack[-1]
            if node not in opened:
                opened.add(node)
                if node.inputs:
                    operands = node.inputs if last_first else node.inputs[::-1]
                    later = [value[0] for value in operands if value is not None and value[0] not in opened]
                    if later:
                        stack += later
                        continue
            stack.pop()
            if node not in done:
                done.add(node)
                order.append(node)
    return order
