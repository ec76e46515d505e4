"""Advice on a network: the few changes with the largest gain, each with its place in the network, and the ops that only
newer chips run."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from hexane.graph.decisions import counted
from hexane.passes.retarget import border_of
from hexane.passes.retarget.borders import FIT
from hexane.targets import Chip
from hexane.targets.first_chips import newer_chips

if TYPE_CHECKING:
    from hexane.report.report import Entry, Report

MOST = 3
SHOWN = 2  # Most ops that a line names.
HEADING = "what to do:"
NO_CHANGE = "no change is known to help"  # Ops that only newer chips run.


@dataclass(frozen=True, slots=True)
class Advice:
    """A recommended change. gain, place: in words. chips: the labels of the chips where it helps. rule: the rule behind
    it; "" if it takes ops off the CPU. source: of the rule. For ops that only newer chips run, change is NO_CHANGE, and
    gain names the newer chips."""

    change: str
    gain: str
    place: str
    chips: tuple[str, ...]
    rule: str = ""
    source: str = ""

    def record(self) -> dict[str, Any]:
        """A dict for JSON."""
        return {**asdict(self), "chips": list(self.chips)}

    def __str__(self) -> str:
        source = f" ({self.source})" if self.source else ""
        return f"{self.change}{source}: {self.place}: {self.gain}"


class _Found(NamedTuple):
    weight: int  # Ops that the change takes off the CPU, summed over all chips.
    whole: int  # Chips that run the whole network after the change.
    advice: Advice


def what_to_do(reports: "Sequence[Report]", most: int = MOST) -> tuple[Advice, ...]:
    """Returns at most `most` changes for a network on these chips. Changes that take most ops off the CPU come first,
    then ops that only newer chips run, then changes that avoid known failures."""
    entries: dict[tuple[str, str], _Found] = {}
    for report in reports:
        for change, place, ops, whole in _of_cpu(report):
            key, gain = (change, place), f"{counted(ops, 'op')} fewer on the CPU"
            known = entries.setdefault(key, _Found(0, 0, Advice(change, gain, place, ())))
            chips = (*known.advice.chips, report.chip.label)
            entries[key] = _Found(known.weight + ops, known.whole + whole, replace(known.advice, chips=chips))
    ordered = sorted(entries.values(), key=lambda one: -one.weight)
    changes = (_with_whole(one, len(reports)) for one in ordered)
    return (*changes, *_of_newer_chips(reports), *_of_rules(reports))[:most]


def _with_whole(entry: _Found, chips: int) -> Advice:
    if not entry.whole:
        return entry.advice
    where = "" if chips == 1 else f" on {counted(entry.whole, 'chip')}"
    return replace(entry.advice, gain=f"{entry.advice.gain}; the network then runs whole on the engine{where}")


def _of_cpu(report: "Report") -> Iterator[tuple[str, str, int, bool]]:
    """Yields (change, place, ops, true if the CPU runs nothing else) for each change of the network."""
    groups = _groups(report)
    for change, entries in groups.values():
        if change and not newer_chips(change):
            yield change, _place(entries[0].op, entries[0].where, len(entries)), len(entries), len(groups) == 1


def _of_newer_chips(reports: "Sequence[Report]") -> Iterator[Advice]:
    """Yields the ops that only newer chips run. Chips with the same ops share one."""
    chips: dict[tuple[str, str], list[str]] = {}
    for report in reports:
        for change, entries in _groups(report).values():
            if newer := newer_chips(change):
                gain = f"{newer} and later run {'it' if len(entries) == 1 else 'them'} on the engine"
                chips.setdefault((_places(entries), gain), []).append(report.chip.label)
    for (places, gain), labels in chips.items():
        yield Advice(NO_CHANGE, gain, places, tuple(labels))


def _groups(report: "Report") -> "dict[str, tuple[str, list[Entry]]]":
    """Returns the ops that the CPU computes at least in part by what takes them off the CPU: the change, and its ops.
    The change is "" if none is known."""
    if report.ok:
        return {}
    groups: dict[str, tuple[str, list[Entry]]] = {}
    left = {source for node in report.host_nodes for source in node.sources}
    for entry in report.entries:
        if (change := _change(entry, report.chip, left)) is not None:
            kind = FIT if change.startswith(FIT) else change  # FIT is one group, for tensors of any size
            groups.setdefault(kind, (change, []))[1].append(entry)
    return groups


def _change(entry: "Entry", chip: Chip, left: Container[str]) -> str | None:
    """Returns the change that takes an op off the CPU, "" if none is known, None if the CPU computes no part of it.
    left: the sources of the ops on the CPU."""
    verdict, sources = entry.verdict, entry.node.sources
    has_part = not sources or any(source in left for source in sources)
    if verdict.verdict == "native" or (verdict.verdict == "oversize" and not has_part):
        return None  # the pieces of an oversize op belong to an earlier op
    if not verdict.runs:
        return verdict.change
    large = border_of(entry.node, chip) if verdict.form and has_part else ""
    return f"{FIT}: {large}" if large else None


def _of_rules(reports: "Sequence[Report]") -> Iterator[Advice]:
    by_change: dict[tuple[str, str], Advice] = {}
    for report in reports:
        for rule in report.findings:
            key = rule.instead, _place(rule.op, rule.where, rule.count)
            advice = Advice(rule.instead, f"now {rule.wrong}", key[1], (), rule.rule, rule.evidence)
            known = by_change.setdefault(key, advice)
            by_change[key] = replace(known, chips=(*known.chips, report.chip.label))
    yield from by_change.values()


def _place(op: str, where: str, count: int) -> str:
    """Returns the first of `count` ops, and how many there are. An op may have several names."""
    return op + (f" at {where}" if where else "") + (f" (1 of {count} ops)" if count > 1 else "")


def _places(entries: "Sequence[Entry]") -> str:
    """Returns one or two ops with their names; of more ops the first, and their number."""
    first = entries[0]
    if len(entries) > SHOWN:
        return _place(first.op, first.where, len(entries))
    return " and ".join(_place(one.op, one.where, 1) for one in entries)


def told(advice: Sequence[Advice], chips: int) -> list[str]:
    """Returns the advice as lines of text. A line that does not hold on all chips names its chips."""
    lines = listed({f"  {number}. {one}": one.chips for number, one in enumerate(advice, 1)}, chips)
    return [HEADING, *lines] if lines else []


def others_known(reports: "Sequence[Report]") -> dict[str, list[str]]:
    """Returns the known facts about a network's ops that `what_to_do` leaves out, with their chips."""
    advised = {(one.rule, one.place) for one in what_to_do(reports)}
    result: dict[str, list[str]] = {}
    for report in reports:
        for rule in report.findings:
            if (rule.rule, _place(rule.op, rule.where, rule.count)) not in advised:
                result.setdefault(str(rule), []).append(report.chip.label)
    return result


def listed(texts: Mapping[str, Sequence[str]], chips: int) -> list[str]:
    """Returns lines of text. A line that does not hold on all chips names its chips."""
    return [text + (f" [{', '.join(on)}]" if len(on) < chips else "") for text, on in texts.items()]
