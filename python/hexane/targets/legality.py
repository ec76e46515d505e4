"""Which ops are legal on a chip, for each route to the engine: the table that `check`, `preflight` and the compiler
share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from typing import Any

from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.family import Family
from hexane.targets.first_chips import first_chips, from_family, with_chips
from hexane.targets.floors import Floor, floors, layers, mil_ops
from hexane.targets.netplist_legality import gate_offset, layer_status
from hexane.targets.query import load_chip
from hexane.targets.silicon import measured_on
from hexane.targets.tables import table
from hexane.targets.verdict import KINDS, ROUTES, Route, Verdict

IN_FLOATS = "take quantised layers in floats (a TFLite file opens as NAME.tflite#float)"


def op_status(op: str, target: str | Chip, route: Route = "mil") -> Verdict:
    """The verdict on an op (a name of MIL or of Hexane) for a chip, whatever its shapes and attributes.

    route: "mil" decides by the family's floor, "netplist" by the chip's gate bytes and the layer's first family. Raises
    Error for an unknown op and for a target that is no chip.
    """
    if route not in ROUTES:
        raise Error(f"[targets] route: got {route!r}, need one of {', '.join(ROUTES)}")
    chip = load_chip(target)
    names = mil_ops(op)
    if names is None:
        near = get_close_matches(op, [*floors(), *table("floors")["ops"]], 3)
        raise Error(f"[targets] got the op {op!r}, need {'one like ' + ', '.join(near) if near else 'one of MIL'}")
    return combined(op, names, chip, route)


def combined(op: str, names: Sequence[str], chip: Chip, route: Route = "mil") -> Verdict:
    """The verdict on an op that is written as these MIL ops: the worst of theirs."""
    if not names:
        return Verdict(
            verdict="host",
            reason="MIL has no op for it, and none that it could be written with",
            rule="no op of MIL",
            source="guide app. A",
            status="inferred",
            change=IN_FLOATS if op.startswith("q31_") or op == "quantize_by_range" else "",
        )
    verdicts = [mil_status(name, chip, route) for name in names]
    worst = max(verdicts, key=lambda v: KINDS.index(v.verdict))
    if tuple(names) == (op,) or (len(names) == 1 and worst.verdict != "native"):
        return worst
    if len(names) == 1 and op not in floors():
        return replace(worst, reason=f"runs as {names[0]}, {worst.reason}")
    if worst.verdict in ("native", "decomposed"):
        return replace(worst, verdict="decomposed", reason=f"written as {', '.join(names)}", claims=())
    return replace(worst, reason=f"needs {names[verdicts.index(worst)]}: {worst.reason}")


_known: dict[tuple[str, Route, int], tuple[Chip, Verdict]] = {}  # keeps chips alive, so that ids stay unique


def mil_status(op: str, chip: Chip, route: Route = "mil") -> Verdict:
    """The verdict on one op of MIL."""
    key = (op, route, id(chip))
    if key not in _known:
        _known[key] = chip, _status(floors()[op], chip, route)
    return _known[key][1]


def _status(floor: Floor, chip: Chip, route: Route) -> Verdict:
    return _by_mil(floor, chip) if route == "mil" else _by_netplist(floor, chip)


def _by_mil(floor: Floor, chip: Chip) -> Verdict:
    data = table("floors")
    every = data["mil"]
    status = floor.status
    if status == "measured" and not measured_on(floor.source, chip.products):
        status = "inherited" if chip.family.name in data["measured"] else "inferred"
    if chip.family < Family[every["floor"]]:
        return Verdict(
            verdict="rejected",
            reason=f"programs in MIL need {first_chips(Family[every['floor']])} or later",
            rule=f"MIL floor {every['floor']}",
            source=every["source"],
            status=every["status"],
            reject=every["reject"],
            published=True,
        )
    if floor.native is not None and chip.family >= floor.native:
        return Verdict(
            verdict="native",
            reason=f"on {first_chips(floor.native)} and later",
            rule=f"MIL floor {floor.native}",
            source=floor.source,
            status=status,
            claims=floor.claims,
        )
    reason = with_chips(floor.because)
    if floor.bridge and _by_netplist(floor, chip).verdict == "native":
        reason += f"; an authored netplist has it, as the layer {floor.layer}"
    gate = layers()[floor.layer] if floor.layer else None
    closed = gate is not None and bool(gate.gate) and getattr(chip.gates, gate.gate) is False
    return Verdict(
        verdict=floor.below,
        reason=reason,
        rule="no floor" if floor.native is None else f"MIL floor {floor.native}",
        source=floor.source,
        status=status,
        reject=gate.reject if gate and closed else "",
        published=bool(gate and closed and gate.published),
        change=floor.change or (from_family(floor.native) if floor.native else ""),
        claims=floor.claims,
    )


def _by_netplist(floor: Floor, chip: Chip) -> Verdict:
    if not floor.layer:
        return Verdict(
            verdict="rejected",
            reason="no layer of a netplist computes it",
            rule="no layer",
            source="guide app. B",
            status="inferred",
        )
    change = from_family(floor.native) if floor.native and chip.family < floor.native else ""
    refused = layer_status(floor.layer, chip, conv_3d=floor.op == "conv_3d")
    if refused is not None:
        return refused if refused.change else replace(refused, change=change)
    below = chip.family < Family.A13
    if below and (floor.trait is None or chip.family < floor.trait):
        known = floor.trait is not None
        later = floor.trait is not None and floor.native is not None and floor.native > floor.trait
        in_mil = f"; in MIL it runs on {first_chips(floor.native)} and later" if later and floor.native else ""
        return Verdict(
            verdict="rejected",
            reason=f"the compiler declares it for {first_chips(floor.trait)} and later{in_mil}"
            if floor.trait
            else f"no source says that a chip before {first_chips(Family.A13)} has it",
            rule=f"declared floor {floor.trait}" if known else "no published floor",
            source="guide ch35, table 35.2",
            status="decoded" if known else "inferred",
            change=change,
        )
    gate = layers()[floor.layer].gate
    value = getattr(chip.gates, gate) if gate else True
    fact = chip.facts[f"gates.{gate}"] if gate else None
    return Verdict(
        verdict="native",
        reason=f"the layer {floor.layer}"
        + ("" if value else f"; nobody has published byte {gate_offset(gate)} of the chip"),
        rule=f"gate byte {gate_offset(gate)}" if gate else "no gate byte",
        source=fact.source if fact and fact.value is not None else "guide app. B",
        status=fact.status if fact and fact.value is not None else "inferred",
    )


def disputes() -> Mapping[str, Any]:
    """The ops about which sources disagree: the value that Hexane uses, the reason, and every claim."""
    result: Mapping[str, Any] = table("floors")["disputes"]
    return result
