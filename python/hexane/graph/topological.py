"""The order of nodes: operands first."""

from collections.abc import Iterable

from hexane.graph.node import Node, Value


def topological(roots: Iterable[Value], last_first: bool = False) -> list[Node]:
    """Nodes in depth-first post-order from the roots: each as soon after its operands as they allow.

    Operands are visited first to last, or last to first.
    """
    order: list[Node] = []
    opened: set[int] = set()  # nodes whose operands are on the stack, or in the order
    done: set[int] = set()
    for root in roots:
        stack = [root.node]
        while stack:
            node = stack[-1]
            key = id(node)
            if key not in opened:
                opened.add(key)
                height = len(stack)
                for value in node.inputs if last_first else reversed(node.inputs):
                    if value is not None and id(value[0]) not in opened:
                        stack.append(value[0])
                if len(stack) > height:
                    continue
            stack.pop()
            if key not in done:
                done.add(key)
                order.append(node)
    return order
