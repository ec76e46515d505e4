"""Reports weight products that no program of the engine holds, with reasons."""

from collections.abc import Container, Iterator, Mapping

from hexane.graph import Graph, topological
from hexane.graph.decisions import Decision
from hexane.passes.retarget.marked import LEFT_OUT
from hexane.train.kernels.branches import is_leaf, loss_of, matrix_of


def left_out(step: Graph, variant: str, held: Container[int], refused: Mapping[int, str]) -> Iterator[Decision]:
    """Yields one decision for each weight product that could have been in a program. held: nodes in programs, by
    `id()`. refused: reasons why a node's branch is no program, by `id()`. Products that the host runs by design are
    skipped: products with the head's weight, and with "linear" the whole backward pass."""
    forward = {id(node) for node in topological([loss_of(step)])}
    products = [(node, weight) for node in step.nodes if (weight := matrix_of(node)) is not None]
    head = [weight for node, weight in products if id(node) in forward][-1:]
    for node, weight in products:
        is_forward = id(node) in forward
        by_design = weight in head or (variant == "linear" and not is_forward)
        if id(node) in held or by_design or is_leaf(node):
            continue
        if id(node) in refused:
            why = refused[id(node)]
        elif variant == "linear" and weight.op == "const":
            why = "its weight is not trained"
        elif is_forward:
            why = "it is in no branch that ends in a residual add"
        else:
            why = "no residual add ends the backward pass of its branch"
        yield Decision("on_engine", node.where, LEFT_OUT, why)
