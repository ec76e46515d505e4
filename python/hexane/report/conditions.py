"""Conditions under which an automatic check fails: `hexane check --fail-on`."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from hexane.errors import Error, FallbackWarning
from hexane.graph import Graph
from hexane.graph.decisions import counted
from hexane.report.compare import IEEE
from hexane.report.output_error import Feed, OutputError, output_errors
from hexane.report.report import Report

VERDICTS = ("decomposed", "oversize", "host", "rejected")
FORMS = f"{', '.join(VERDICTS)}, segments=N and error=X, with commas between them"


@dataclass(frozen=True, slots=True)
class Conditions:
    """Conditions of a check. verdicts: an op with one of them fails the check. segments: the most segments allowed.
    error: the largest relative L2 error of an output, compared with the model in its own dtypes; None: any."""

    verdicts: tuple[str, ...] = ()
    segments: int | None = None
    error: float | None = None

    def broken(self, report: Report) -> list[str]:
        """Returns the violated conditions, except that on the error, in words."""
        result = []
        for verdict in self.verdicts:
            ops = [entry for entry in report.entries if entry.verdict.verdict == verdict]
            if ops:
                named = ", ".join(f"{e.op} {e.where}".strip() for e in ops[:3]) + (" .." if len(ops) > 3 else "")
                result.append(f"{verdict}: got {len(ops)} ({named}), need 0")
            elif verdict == "host" and not report.ok and (left := report.host_nodes):
                named = ", ".join(n.where for n in left[:3]) + (" .." if len(left) > 3 else "")
                result.append(f"host: got {report.outcome} ({named}), need none on the CPU")
        if self.segments is not None and len(report.segments) > self.segments:
            result.append(f"segments: got {len(report.segments)}, need at most {self.segments}")
        return result

    def too_far(self, errors: Sequence[OutputError]) -> list[str]:
        """Returns in words the outputs whose error exceeds the limit on some input, with the worst input of each.
        errors: on one chip."""
        most = self.error
        if most is None:
            return []
        names = dict.fromkeys(one.output for one in errors if _is_beyond(one, most))
        return [_worst([one for one in errors if one.output == name], most) for name in names]


def errors_on(graph: Graph, chips: Sequence[str], feeds: Iterable[tuple[str, Feed]]) -> list[OutputError]:
    """Returns the errors on these chips, compared with the model in its own dtypes. feeds: inputs with names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)  # the report has a verdict for each op
        return output_errors(graph, chips, IEEE, feeds)


def _is_beyond(error: OutputError, most: float) -> bool:
    return error.difference.beyond(most) or bool(np.isnan(error.difference.distance))


def _worst(errors: Sequence[OutputError], most: float) -> str:
    """Returns the worst of an output's errors, in words."""
    worst = max(errors, key=lambda one: one.size)
    d, count = worst.difference, sum(_is_beyond(one, most) for one in errors)
    where = f" on {worst.feed} (beyond it on {count} of {counted(len(errors), 'input')})" if worst.feed else ""
    got, over = f"{d.distance:.3g}", f" ({d})" if d.overflows or d.unlike else ""
    if not d.finite:
        got, over = str(d), ""
    return f"error: got {got} of output {worst.output}{where}, need at most {most:g}{over}"


def parse_conditions(texts: Sequence[str]) -> Conditions:
    """Returns the conditions in texts such as "host,segments=3,error=1e-2". Raises Error for an unknown or repeated
    one."""
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
            raise Error(f"[check] --fail-on: got {text!r}, need some of {FORMS}, each once")
    return Conditions(tuple(verdicts), segments, error)


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 <= value < np.inf else None
