"""The distance of the outputs of programs for chips from a base, over several inputs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hexane.errors import Error
from hexane.graph import Array, Graph
from hexane.report.compare import IEEE, Q31, same_top
from hexane.report.difference import Difference, difference
from hexane.runtime import Model, compile
from hexane.targets import Target, load_target

Feed = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class OutputError:
    """The error of one output on one input. feed: the name of the input. same_top: see `compare.same_top`."""

    target: str
    feed: str
    output: str
    difference: Difference
    same_top: tuple[int, int] | None = None

    @property
    def size(self) -> tuple[bool, float]:
        """The key by which errors are sorted: infinity and NaN are largest."""
        d = self.difference
        return bool(d.overflows or d.unlike) or bool(np.isnan(d.distance)), d.distance


def output_errors(
    graph: Graph, targets: Sequence[str | Target], base: str | Target, feeds: Iterable[tuple[str, Feed]]
) -> list[OutputError]:
    """Returns the error of each target, input and output, compared with the base's results. Targets: see `compare`;
    each is compiled once. Raises Error if the model does not compile for a target."""
    whole, nets = _compiled(graph, base), {_name(target): _compiled(graph, target) for target in targets}
    result = []
    for label, feed in feeds:
        want = _outputs(graph, whole, feed)
        for name, net in nets.items():
            got = _outputs(graph, net, feed)
            result += [
                OutputError(name, label, key, difference(got[key], y), same_top(got[key], y)) for key, y in want.items()
            ]
    return result


def _name(target: str | Target) -> str:
    if isinstance(target, str) and target.strip().lower() in (IEEE, Q31, "host"):
        return IEEE if target.strip().lower() == "host" else target.strip().lower()
    return load_target(target).name


def _label(target: str) -> str:
    return _name(target) if _name(target) in (IEEE, Q31) else load_target(target).label


def _compiled(graph: Graph, target: str | Target) -> Model:
    name = _name(target)
    own = name in (IEEE, Q31)
    try:
        net = compile(graph, target="host" if own else target, numerics=name if own else "engine")
    except Error as error:
        raise Error(f"[compare] the model does not compile for {name}: {error}") from None
    assert isinstance(net, Model)
    return net


def _outputs(graph: Graph, net: Model, feed: Feed) -> dict[str, Array]:
    if net.state_names:
        net.reset_state()
    got: Any = net({name: np.asarray(array, order="C") for name, array in feed.items()})
    named = got if isinstance(got, dict) else {graph.outputs[0].name: got}
    return {name: np.array(array) for name, array in named.items()}


@dataclass(frozen=True, slots=True)
class Furthest:
    """The largest distance of an output over all inputs. feed: the input; median: the median distance of that output.
    label: the name of the target. same_top: the number of rows of scores with the same largest score, and the number of
    rows; None if the output is no scores."""

    feed: str
    count: int
    worst: OutputError
    median: float
    same_top: tuple[int, int] | None
    label: str

    def __str__(self) -> str:
        d = self.worst.difference
        top = "" if self.same_top is None else f"; top-1 equal in {self.same_top[0]} of {self.same_top[1]} rows"
        far = f"{d.distance:.2g}" if d.finite else str(d)
        median = f"{self.median:.2g}" if np.isfinite(self.median) else "-"
        return (
            f"inputs: {self.count}; the layers are those of {self.feed}, where output {self.worst.output} is"
            f" furthest apart on {self.label}: {far}, median {median}{top}"
        )

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        distance = self.worst.difference.distance
        return {
            "count": self.count,
            "furthest": self.feed,
            "target": self.worst.target,
            "output": self.worst.output,
            "distance": distance if self.worst.difference.finite and np.isfinite(distance) else None,
            "median": self.median if np.isfinite(self.median) else None,
            "same_top": None if self.same_top is None else list(self.same_top),
        }


def furthest(graph: Graph, targets: Sequence[str], feeds: Iterable[tuple[str, Feed]]) -> Furthest:
    """Returns the worst output. targets: see `compare`. The base is "ieee" if given, or else the first target."""
    names = {_name(target): target for target in reversed(targets)}  # the first of equal ones
    order = list(dict.fromkeys(map(_name, targets)))
    base = IEEE if IEEE in names else order[0]
    errors = output_errors(graph, [names[name] for name in order if name != base], names[base], feeds)
    worst = max(errors, key=lambda one: one.size)
    alike = [one for one in errors if (one.target, one.output) == (worst.target, worst.output)]
    tops = [one.same_top for one in alike if one.same_top is not None]
    top = (sum(same for same, _ in tops), sum(rows for _, rows in tops)) if tops else None
    distances = [one.difference.distance if one.difference.finite else np.inf for one in alike]
    return Furthest(worst.feed, len(alike), worst, float(np.median(distances)), top, _label(names[worst.target]))
