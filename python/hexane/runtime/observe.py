"""Observes a program's run: the value of each node after its step, and which layers of the user's graph still exist.

The steps are the program's own: none is added, and results are not recomputed or rounded differently.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from hexane import _core
from hexane.errors import Error
from hexane.graph import Array, Graph, Node, Port, Value
from hexane.ops import LEAVES, OPS, evaluate
from hexane.program import Program, Step

Tell = Callable[[Step, "Observation"], None]


def tapped(graph: Graph) -> Graph:
    """Returns the graph with a tap per result, so that its program can be searched for them: tap "7" belongs to node
    7."""
    taps = [Port(str(i), n.values[0]) for i, n in enumerate(graph.nodes) if n.inputs and n.op != "write_state"]
    return replace(graph, taps=tuple(taps))


class Observation:
    """The values of a program in one run, up to the last recorded step."""

    def __init__(
        self, program: Program, feeds: Mapping[str, Array], states: Mapping[str, Array], params: Mapping[str, Array]
    ) -> None:
        self.program = program
        self._values: dict[Value, Array] = {}
        self._computed = {id(step.node) for step in program.steps if step.kernel != "copy"}
        for port, value in zip(program.inputs, program.graph.inputs, strict=True):
            if port.name in feeds:  # the run raises Error for a missing input
                self._values[value] = np.asarray(feeds[port.name])
        for node in program.graph.nodes:
            if node.op in LEAVES and node.op != "input":
                named = {"state": states, "param": params}.get(node.op, {}).get(str(node.attrs.get("name")))
                data = node.data if named is None else named
                kind = node.types[0]
                self._values[node.values[0]] = np.zeros(kind.shape, kind.dtype.numpy) if data is None else data

    def record(self, step: Step, outputs: list[Array]) -> None:
        """Adds the results of a step."""
        self._values.update(zip(step.node.values, outputs, strict=True))

    def known(self, value: Value) -> bool:
        """True if the program computes the value, or stores it."""
        pending, seen = [value], set()
        while pending:
            current = pending.pop()
            if current in self._values or current in seen:
                continue
            seen.add(current)
            if not self.passes(current.node):
                return False
            pending += [v for v in current.node.inputs if v is not None]
        return True

    def passes(self, node: Node) -> bool:
        """True if the node has no step and only moves or casts its operands, so that its value follows from theirs."""
        if id(node) in self._computed or node.op in LEAVES or node.op not in OPS:
            return False
        return bool(OPS[node.op].moves) or OPS[node.op].view or node.op in ("cast", "write_state")

    def __getitem__(self, value: Value) -> Array:
        """Returns the value of a step that ran, or a view, cast or concatenation of computed values. Raises KeyError
        for any other value."""
        stack = [value]
        while stack:
            current = stack[-1]
            if current in self._values:
                stack.pop()
                continue
            if not self.passes(current.node):
                raise KeyError(current)
            missing = [v for v in current.node.inputs if v is not None and v not in self._values]
            if missing:
                stack += missing
                continue
            arrays = [None if v is None else self._values[v] for v in current.node.inputs]
            self._values.update(zip(current.node.values, evaluate(current.node, arrays), strict=True))
        return self._values[value]

    def source(self, value: Value) -> Value:
        """Returns the leaf or step result from which a value is made by views, transposes and casts."""
        while self.passes(value.node) and len(value.node.inputs) == 1 and value.node.inputs[0] is not None:
            value = value.node.inputs[0]
        return value

    def layers(self) -> dict[int, Value]:
        """Returns the taps that still exist in the program, not fused into later ops, by number."""
        return {int(port.name): port.value for port in self.program.graph.taps if self.known(port.value)}


def observe(
    core: _core.Program,
    program: Program,
    feeds: Mapping[str, Array],
    tell: Tell | None = None,
    instead: Mapping[Value, Array] = MappingProxyType({}),
) -> tuple[Observation, list[Array]]:
    """Runs a program once, and returns the observation and the outputs. tell: called after each computed step; an
    exception from it ends the run. instead: replacements of step results, which later steps read.

    States are restored afterwards. Raises Error for a program whose steps run in loops.
    """
    if program.loops:
        raise Error(
            "[debug] got a model that computes row by row to save memory, need one that computes whole tensors in each"
            " step"
        )
    states = {name: core.read_state(name) for name in core.types("state")}
    params = {name: core.read_param(name) for name in core.types("weights")}
    seen = Observation(program, feeds, states, params)

    def after(index: int, outputs: list[Any]) -> bool:
        step = program.steps[index]
        if step.kernel == "copy":
            return False
        replaced = False
        for output, value in zip(outputs, step.node.values, strict=True):
            if value in instead:
                output[...] = instead[value]
                replaced = True
        seen.record(step, outputs)
        if tell is not None:
            tell(step, seen)
        return replaced

    try:
        outputs = core.trace(dict(feeds), after)
    finally:
        for name, contents in states.items():
            core.write_state(name, contents)
    return seen, outputs
