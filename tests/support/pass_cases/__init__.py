"""Graphs on which a pass fires, and ones that it must leave alone, by name: (pass, graph)."""

from pass_cases import (
    accumulation,
    activations,
    attention,
    attention_gradients,
    layout,
    losses,
    norm_gradients,
    norms,
    quantised,
    rewriting,
)
from pass_cases.graphs import Case

_ALL = (
    accumulation,
    activations,
    attention,
    attention_gradients,
    layout,
    losses,
    norm_gradients,
    norms,
    quantised,
    rewriting,
)
FIRES: dict[str, Case] = {name: case for part in _ALL for name, case in part.FIRES.items()}
LEAVES: dict[str, Case] = {name: case for part in _ALL for name, case in part.LEAVES.items()}
