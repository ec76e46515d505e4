"""What must not be true of a network on a chip, for checks that run without people: `hexane check --fail-on`."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.errors import Error, FallbackWarning
from hexane.graph import Array, Graph
from hexane.report.compare import IEEE, compare
from hexane.report.report import Report

VERDICTS = ("decomposed", "oversize", "host", "rejected")
FORMS = f"{', '.join(VERDICTS)}, segments=N and error=X, with commas between them"


@dataclass(frozen=True, slots=True)
class Conditions:
    """verdicts: no op may have one of these. segments: there may be no more. error: outputs may be no further from
    those of the model in its own dtypes, as relative L2; None: any."""

    verdicts: tuple[str, ...] = ()
    segments: int | None = None
    error: float | None = None

    def broken(self, report: Report, inputs: Mapping[str, Array]) -> list[str]:
        """What is true of the network, in words; nothing where all is well. inputs: are only computed for an error."""
        found = []
        for verdict in self.verdicts:
            ops = [entry for entry in report.entries if entry.verdict.verdict == verdict]
            if ops:
                named = ", ".join(f"{e.op} {e.where}".strip() for e in ops[:3]) + (" .." if len(ops) > 3 else "")
                found.append(f"{verdict}: got {len(ops)} ({named}), need 0")
            elif verdict == "host" and not report.ok and (left := report.host_nodes):
                named = ", ".join(n.where for n in left[:3]) + (" .." if len(left) > 3 else "")
                found.append(f"host: got {report.outcome} ({named}), need none on the CPU")
        if self.segments is not None and len(report.segments) > self.segments:
            found.append(f"segments: got {len(report.segments)}, need at most {self.segments}")
        if self.error is not None:
            found += _apart(report.graph, report.chip.name, inputs, self.error)
        return found


def _apart(graph: Graph, chip: str, inputs: Mapping[str, Array], most: float) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the report has a verdict for each op
        made = compare(graph, [chip, IEEE], inputs, tolerance=most)
    differences = [(output.name, output.differences[chip]) for output in made.outputs]
    return [
        f"error: got {d.distance:.3g} of output {name}, need at most {most:g}" + (f" ({d})" if d.overflows else "")
        for name, d in differences
        if d.beyond(most) or np.isnan(d.distance)
    ]


def parse_conditions(texts: Sequence[str]) -> Conditions:
    """ "host,segments=3,error=1e-2". Raises Error for what is no condition, and for one that is given twice."""
    verdicts, segments, error = [], None, None
    for text in (part.strip() for given in texts for part in given.split(",")):
        name, _, value = text.partition("=")
        if text in VERDICTS and text not in verdicts:
            verdicts.append(text)
        elif name == "segments" and segments is None and value.isascii() and value.isdigit():
            segments = int(value)
        elif name == "error" and error is None and (number := _number(value)) is not None:
            error = number
        else:
            raise Error(f"[check] --fail-on: got {text!r}, need each once of {FORMS}")
    return Conditions(tuple(verdicts), segments, error)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < np.inf else None
