"""The layers of a graph as a target computes them, by the number of the user's node."""

from collections.abc import Mapping

import hexane as hx
from hexane.graph import Array, Graph
from hexane.runtime.observe import observe, tapped


def observed(
    graph: Graph, feeds: Mapping[str, Array], target: str = "host", numerics: str = "ieee"
) -> dict[int, Array]:
    net = hx.compile(tapped(graph), target=target, numerics=numerics, threads=1)
    assert isinstance(net, hx.Model)
    assert net.program is not None
    seen, _ = observe(net._core, net.program, feeds)
    return {number: seen[value] for number, value in seen.layers().items()}
