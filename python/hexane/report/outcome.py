"""Where a network runs, as the sentence that the terminal, the page, JSON and `--fail-on` share, computed from the
segments that `emit` writes."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hexane.graph.decisions import counted
from hexane.program import Segment

Kind = Literal["whole", "parts", "none"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """engine, host: the number of ops on each, as the network is written for the chip. parts: the number of
    segments."""

    engine: int
    host: int
    parts: int

    @property
    def kind(self) -> Kind:
        """ "whole": the CPU has no op, not even a cut. "none": the CPU has all ops. "parts": both CPU and engine have
        ops."""
        if not self.host:
            return "whole"
        return "parts" if self.engine else "none"

    def __str__(self) -> str:
        ops = self.engine + self.host
        if self.kind == "none":
            return f"does not run on the engine: {counted(ops, 'op')} on the CPU"
        if self.kind == "whole":
            return "runs whole on the engine" + (f", in {self.parts} parts" if self.parts > 1 else "")
        noun = "op" if ops == 1 else "ops"
        return f"{self.engine} of {ops} {noun} on the engine, {self.host} on the CPU, in {counted(self.parts, 'part')}"

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {"verdict": str(self), "runs": self.kind, "engine_ops": self.engine, "host_ops": self.host}


def outcome(segments: Sequence[Segment]) -> Outcome:
    ops = {"ane": 0, "host": 0}
    for segment in segments:
        ops[segment.device] += len(segment.nodes)
    return Outcome(ops["ane"], ops["host"], len(segments))


def answer(outcomes: Iterable[Outcome]) -> str:
    """Returns the sentence of a single chip, or on several chips the number that run the network whole, in parts,
    not."""
    listed = list(outcomes)
    if len(listed) == 1:
        return str(listed[0])
    kinds = Counter(one.kind for one in listed)
    count = len(listed)
    if kinds["whole"] == count:
        return f"runs whole on {_all(count)}"
    if kinds["none"] == count:
        return f"runs on none of the {count} chips"
    if kinds["parts"] == count:
        return f"runs in parts on {_all(count)}"
    counts = (("whole", kinds["whole"]), ("in parts", kinds["parts"]))
    said = [f"{name} on {number}" for name, number in counts if number]
    said[0] += f" of {count} chips"
    return ", ".join(["runs " + said[0], *said[1:], *([f"not on {kinds['none']}"] if kinds["none"] else [])])


def _all(count: int) -> str:
    return "both chips" if count == 2 else f"all {count} chips"
