"""Random graphs from the catalogue: of a seed, or as a hypothesis strategy. One file for each family of steps."""

import zlib
from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.ops import Op
from random_graphs import convolution, elementwise, indices, movement, products, quantized, records, reduction
from random_graphs.choices import Drawn, Seeded
from random_graphs.graph import RandomGraph, Unfit

__all__ = ["graph_ending_in", "random_graph", "random_graphs"]


def another_input(g: RandomGraph) -> None:
    g.input(g.tensor().shape if g.coin() else g.shape(g.pick((1, 2, 3, 4, 5, 0))))


STEPS = (
    *elementwise.STEPS, *convolution.STEPS, *movement.STEPS, *products.STEPS, *reduction.STEPS, *indices.STEPS,
    *records.STEPS, another_input,
)  # fmt: skip

KINDS = ("fp32", "fp16", "exact", "quantized", "quantized exact")


def steps_of(kind: str) -> tuple[Callable[[RandomGraph], None], ...]:
    """Three quarters of a quantised graph's are of 8 bits."""
    return (*STEPS, *6 * quantized.STEPS) if kind.startswith("quantized") else STEPS


def random_graph(seed: int, kind: str, **sizes: int) -> tuple[Graph, dict[str, Array]]:
    """A graph and its inputs: the same for the same arguments."""
    return RandomGraph(Seeded(seed, KINDS.index(kind)), kind, **sizes).grow(steps_of(kind))


@st.composite
def random_graphs(draw: Any, kind: str, most_steps: int = 20) -> tuple[Graph, dict[str, Array]]:
    """Graphs and their inputs, of 1 to `most_steps` steps."""
    choices = Drawn(draw)
    return RandomGraph(choices, kind, steps=1 + choices.below(most_steps)).grow(steps_of(kind))


def graph_ending_in(op: Op, seed: int) -> tuple[Graph, dict[str, Array]] | None:
    """A small graph and its inputs whose last step is this op's own record; None where it was not fit."""
    g = RandomGraph(Seeded(seed, zlib.crc32(op.name.encode())), "fp32", steps=3, limit=1000)
    g.take_steps(STEPS)
    try:
        records.take(g, op)
    except (Unfit, Error):
        return None
    return g.finish()
