"""Chooses which parts of a program to compute in stripes of columns, and how many stripes, with the least recomputation
within a memory limit."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import inf
from typing import NamedTuple

from hexane.graph import Node, topological
from hexane.program import Program
from hexane.stages.bufferize.place import place
from hexane.stages.bufferize.ports_in_arena import hold
from hexane.stages.stream.by_rows import by_rows
from hexane.stages.stream.column_tiles import Part, TileParts, in_stripes, is_striped, passes_on
from hexane.stages.stream.stream import Choice, Streams
from hexane.stages.stream.stream_ports import stream_ports_as

STRIPES = (2, 3, 4, 6, 8, 12, 16, 24, 32)
COST_STEP = 17 / 16  # the ratio of one tried memory size to the next


class Chosen(NamedTuple):
    """Parts in stripes, and an estimate of the live bytes with them."""

    parts: tuple[Part, ...]
    cost: float

    @property
    def repeated(self) -> int:
        return sum(part.repeated for part in self.parts)


class StripeChoice:
    """The choice for a program of whole tensors. order, holds_ports: as in `Streams`."""

    def __init__(self, program: Program, order: str = "", holds_ports: bool = False) -> None:
        self._program, self._holds_ports = program, holds_ports
        streamable = by_rows(program)
        self._choice = Choice(*hold(streamable)) if holds_ports else Choice(streamable)
        steps = self._choice.program.steps
        known = set(program.graph.nodes)
        ran = [value for step in steps if step.node in known for value in step.node.values]
        self._order = topological((*program.graph.inputs, *ran, *program.graph.roots))
        self._parts = TileParts(program.graph, self._order)
        self._nodes = [step.node for step in steps]
        self._begins = self._first_begins(known)
        self._solved: dict[tuple[int, int, int], tuple[float, Part | None]] = {}

    def ways(self) -> Iterator[Chosen]:
        """Yields choices that need fewer and fewer bytes, each with the fewest repeated products for its bytes."""
        tried, last = self._choice.least(1, True), None
        while tried > 0 and (chosen := self._chosen(tried / COST_STEP)) is not None:
            parts = [(tuple(part.results), part.stripes) for part in chosen.parts]
            if parts and parts != last:
                yield chosen
            last = parts
            tried = min(tried / COST_STEP, chosen.cost)

    def streamed(self, chosen: Chosen) -> Program:
        """Returns the program with these stripes, streamed a row at a time."""
        striped = in_stripes(self._program.graph, self._order, chosen.parts)
        whole = self._program
        program = place(striped.graph, whole.target, first=striped.order, runtime=whole.runtime)
        program = replace(stream_ports_as(program, whole), repeated=chosen.repeated)
        return Streams(program, None, self._holds_ports, striped.stripe_of).stream(1)

    def _chosen(self, most: float) -> Chosen | None:
        """Returns the choice with the fewest repeated products among the choices of at most `most` bytes, or None.
        Uses dynamic programming over the steps at which a part may begin and end."""
        count = len(self._nodes)
        fewest: list[float] = [0.0] + [inf] * count
        parts: list[tuple[int, Part | None]] = [(0, None)] * (count + 1)
        for end in range(1, count + 1):
            if self._choice.steps[end - 1] <= most:
                fewest[end], parts[end] = fewest[end - 1], (end - 1, None)
            for begin in sorted(range(self._choice.begins[end - 1], end - 1), key=fewest.__getitem__):
                if fewest[begin] >= fewest[end]:
                    break
                if self._choice.floors[begin, end] > most:
                    continue
                if self._choice.solve(begin, end, 1, most)[0] <= most:
                    fewest[end], parts[end] = fewest[begin], (begin, None)
                    continue
                part = self._part(begin, end, most) if begin >= self._begins[end - 1] else None
                if part is not None and fewest[begin] + part.repeated < fewest[end]:
                    fewest[end], parts[end] = fewest[begin] + part.repeated, (begin, part)
        if fewest[count] == inf:
            return None
        taken, cost, end = [], 0.0, count
        while end:
            begin, part = parts[end]
            if part is not None:
                taken.append(part)
                cost = max(cost, self._solve(begin, end, part.stripes)[0])
            elif begin < end - 1:
                cost = max(cost, self._choice.solve(begin, end, 1, most)[0])
            else:
                cost = max(cost, self._choice.steps[begin])
            end = begin
        return Chosen(tuple(taken[::-1]), cost)

    def _part(self, begin: int, end: int, most: float) -> Part | None:
        """Returns the steps [begin, end) as a part in the fewest stripes that cost at most `most`, or None."""
        for stripes in STRIPES:
            if self._choice.floors[begin, end] + self._rings(begin, end) / stripes <= most:
                cost, part = self._solve(begin, end, stripes)
                if part is None or cost <= most:
                    return part
        return None

    def _rings(self, begin: int, end: int) -> float:
        """Returns the cost of a region without the tensors that are live beyond its ends."""
        return max(0.0, self._choice.solve(begin, end, 1)[0] - self._choice.crossing(begin, end))

    def _solve(self, begin: int, end: int, stripes: int) -> tuple[float, Part | None]:
        key = begin, end, stripes
        if key not in self._solved:
            region = self._choice.solve(begin, end, 1)[1]
            part = None if region is None else self._parts.find(self._nodes[begin:end], stripes)
            shares = {} if part is None else self._shares(begin, end, part)
            if part is None or region is None or not shares.keys().isdisjoint(self._made(begin, end, part)):
                self._solved[key] = inf, None
            else:
                self._solved[key] = self._choice.cost(region, shares), part
        return self._solved[key]

    def _made(self, begin: int, end: int, part: Part) -> Iterator[int]:
        """Yields the tensors of the part's results, which are stored whole: they cannot be narrowed, even if only the
        part's steps touch them."""
        for step in range(begin, end):
            for value, tensor in zip(self._nodes[step].values, self._choice.tensors.outputs[step], strict=False):
                if value in part.results:
                    yield tensor

    def _shares(self, begin: int, end: int, part: Part) -> dict[int, float]:
        """Returns, for each tensor that only these steps touch, the share of its columns in the widest stripe."""
        result = {}
        for step in range(begin, end):
            for i, tensor in enumerate(self._choice.tensors.outputs[step]):
                contents = self._choice.tensors.all[tensor]
                if contents.first >= begin and contents.last < end:
                    result[tensor] = part.share(self._nodes[step].values[i])
        return result

    def _first_begins(self, known: set[Node]) -> Sequence[int]:
        """Returns for each step the earliest begin of a part in stripes that includes it, or the next step if it cannot
        be in stripes. Steps on streamed ports are excluded, because the ports' rows pass only once."""
        ports = {port.view.buffer for port in (*self._program.inputs, *self._program.outputs) if port.streamed}
        begins: list[int] = []
        for step, node in enumerate(self._nodes):
            operands = (*self._choice.program.steps[step].inputs, *self._choice.program.steps[step].outputs)
            streamed = any(view is not None and view.buffer in ports for view in operands)
            can = node in known and (is_striped(node) or passes_on(node)) and not streamed
            begins.append((begins[-1] if begins else 0) if can else step + 1)
        return begins
