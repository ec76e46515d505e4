"""Chooses the order of a segment's layers and divides them into partitions."""

import os
from dataclasses import dataclass

import numpy as np

from hexane.graph import Graph, Value
from hexane.graph.decisions import Decision, counted
from hexane.stages.engine.layer_problem import LayerProblem, Rows
from hexane.targets import Chip

RULES = ("nothing else was ready", "ring buffer", "branch sibling", "merge sibling", "working set", "topological order", "number")  # fmt: skip  # noqa: E501
_SOURCE = "guide ch22"


@dataclass(frozen=True, slots=True)
class LayerSchedule:
    """problem: the layers in execution order. rules: the tie-break that chose each layer, or "" if the list scheduler
    did not choose the order. partitions: rows as returned by `_core.Scheduling.partition`."""

    problem: LayerProblem
    rules: list[str]
    partitions: Rows
    limit: int
    decisions: tuple[Decision, ...]

    @property
    def values(self) -> list[list[Value]]:
        """The results of each layer, in execution order."""
        return [list(node.values) for node in self.problem.layers]


def schedule_layers(graph: Graph, chip: Chip, kind: str = "apple") -> LayerSchedule:
    """Returns the schedule of a segment. kind "apple": the list scheduler of the engine's compiler. kind "optimal": the
    order that keeps the fewest bytes on chip, with a bound.

    With HEXANE_VERIFY=1 independent code checks orders and partitions and raises Error for an invalid one.
    """
    checks = os.environ.get("HEXANE_VERIFY") == "1"
    memory = chip.memory
    problem = LayerProblem(graph, memory)
    scheduling = problem.scheduling(traffic=False)
    names = problem.names
    greedy, choices = scheduling.greedy(memory.working_set)
    peak = scheduling.peak(greedy)
    if checks:
        scheduling.check(greedy, peak)
    decisions = []
    if kind == "optimal":
        order, best, bound, states = scheduling.optimal(greedy)
        if checks:
            scheduling.check(order, best)
        proof = "proven" if best == bound else f"the bound is {bound} bytes"
        reason = (
            f"{_live(best, memory.working_set)}, {proof} ({states} sets of layers searched);"
            f" the list scheduler needs {peak}"
        )
        decisions.append(Decision("schedule", graph.name, "optimal", reason))
        rules = [""] * len(names)
    else:
        order, rules = greedy, [RULES[rule] for rule in choices[:, 0].tolist()]
        decisions.append(Decision("schedule", graph.name, "apple", _live(peak, memory.working_set), _SOURCE))
        decisions += [
            Decision("schedule", names[layer], f"step {step}", _why(rules[step], row), _SOURCE)
            for step, (layer, row) in enumerate(zip(greedy.tolist(), choices.tolist(), strict=True))
        ]
    limit = memory.working_set * memory.partition_percent // 100
    problem = problem.ordered(order.tolist())
    steps = np.arange(len(problem.layers))
    traffic = problem.scheduling(traffic=True)
    partitions = traffic.partition(steps, limit)
    if checks:
        traffic.check_partitions(steps, partitions, limit)
    source = chip.facts["memory.partition_percent"].source
    for first, end, most, loaded, stored in partitions.tolist():
        words = (
            f"{counted(end - first, 'layer')} from step {first} on: at most {most} of {limit} bytes on chip, {loaded}"
            f" loaded, {stored} stored"
        )
        over = "; one layer that exceeds the limit alone" if most > limit else ""
        decisions.append(Decision("partition", problem.names[first], "opened", words + over, source))
    return LayerSchedule(problem, rules, partitions, limit, tuple(decisions))


def _why(rule: str, row: list[int]) -> str:
    """Returns the comparison that the list scheduler made, without zero scores."""
    _, ring, branch, merge, begun, footprint = row
    scores = {"ring": ring, "branch": branch, "merge": merge, "branch begun": begun, "footprint": footprint}
    said = ", ".join([f"{name} {score}" for name, score in scores.items() if score])
    return rule if rule == RULES[0] else f"by {rule}: {said}" if said else f"by {rule}"


def _live(peak: int, working_set: int) -> str:
    """Returns a text with the peak of an order's live bytes."""
    if peak <= working_set:
        return f"results of layers take {peak} bytes on chip at most"
    return f"results of layers take {peak} bytes, the chip holds {working_set}: tiles or main memory hold the rest"
