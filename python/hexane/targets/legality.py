"""Which ops are legal on a chip, for each route to the engine: the table that `check`, `preflight` and the compiler
share."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from typing import Any, Literal

from hexane.errors import Error
from hexane.targets.chip import Chip
from hexane.targets.devices import well_known
from hexane.targets.fact import Claim
from hexane.targets.family import Family
from hexane.targets.query import load_chip, offsets
from hexane.targets.silicon import measured_on
from hexane.targets.tables import table, target_table

Kind = Literal["native", "decomposed", "oversize", "host", "rejected"]
Route = Literal["mil", "netplist"]
KINDS: tuple[Kind, ...] = ("native", "decomposed", "oversize", "host", "rejected")  # verdicts from best to worst
ROUTES: tuple[Route, ...] = ("mil", "netplist")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The verdict on an op for a chip.

    verdict: "native" runs as it is; "decomposed" runs on the engine as other ops; "oversize" is larger than the chip
    takes; "host" runs outside the engine; "rejected" is refused by the engine's compiler. rule: the rule that decided.
    reject: the validator's message, verbatim if `published`. change: the advised rewrite. form: how Hexane rewrites the
    node ("tiled: width, 3 pieces").
    """

    verdict: Kind
    reason: str
    rule: str
    source: str
    status: str
    reject: str = ""
    published: bool = False
    change: str = ""
    claims: tuple[Claim, ...] = ()
    form: str = ""

    @property
    def runs(self) -> bool:
        """True if the engine computes the op, as it is, as other ops, or in pieces."""
        return self.verdict in ("native", "decomposed") or bool(self.form)

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason} ({self.source}, {self.status})"


@dataclass(frozen=True, slots=True)
class Floor:
    """A row of floors.toml: where one op of MIL is legal. `native`: the first family that runs the op as it is; None if
    no family does. `bridge`: a netplist can have the op although MIL cannot."""

    op: str
    unit: str
    native: Family | None
    trait: Family | None
    layer: str
    bridge: bool
    below: Kind
    because: str
    change: str
    source: str
    status: str
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class NetplistLayer:
    """A layer of a netplist. gate: the field of Chip.gates that its validator reads. fails: the first family with
    working code generation, or "always" if no family has it. export: it has a validator of its own. authored: the layer
    can be written in a netplist even without a validator of its own."""

    name: str
    gate: str
    reject: str
    published: bool
    fails: Family | Literal["always"] | None
    descriptor: bool
    export: bool
    authored: bool


@cache
def floors() -> Mapping[str, Floor]:
    """Every op of MIL, and other ops that sources name, by name."""
    data = table("floors")
    result = {}
    for group in data["group"]:
        for op in group["ops"]:
            claims = data["disputes"].get(op, {}).get("claims", ())
            result[op] = Floor(
                op,
                group["unit"],
                _family(group.get("native")),
                _family(group.get("trait")),
                group.get("layer", ""),
                group.get("bridge", False),
                group.get("below", "rejected"),
                group.get("because", ""),
                group.get("change", ""),
                group.get("source", data["source"]),
                group.get("status", data["status"]),
                tuple(Claim(with_chips(c["says"]), c["source"], c["status"]) for c in claims),
            )
    return result


@cache
def layers() -> Mapping[str, NetplistLayer]:
    """The kinds of layers that a netplist may have, by name, with their conditions."""
    return {
        name: NetplistLayer(
            name,
            row.get("gate", ""),
            row.get("reject", ""),
            "reject" in row and not row.get("own", False),
            "always" if row.get("fails") == "always" else _family(row.get("fails")),
            row.get("descriptor", True),
            row.get("export", True),
            row.get("authored", row.get("export", True)),
        )
        for name, row in table("floors")["layers"]["rows"].items()
    }


def _family(name: str | None) -> Family | None:
    return None if name is None else Family[name]


def mil_ops(op: str) -> tuple[str, ...] | None:
    """The MIL ops for an op: its own name, or the ops that it is written as. () if there are none, None for an unknown
    op."""
    other = table("floors")["ops"]
    return tuple(other[op]) if op in other else (op,) if op in floors() else None


def op_unit(op: str) -> str:
    """The unit of the engine that does most of the work of an op: mac, planar, transpose, texture, dma; "" for none."""
    units = [floors()[name].unit for name in mil_ops(op) or ()]
    order = ("mac", "texture", "planar", "transpose", "dma")
    return next((unit for unit in order if unit in units), "")


def route_of(chip: Chip) -> Route:
    """How programs get to a chip's engine: in MIL, or as an authored netplist if its family is below the floor of
    MIL."""
    return "mil" if chip.family >= Family[table("floors")["mil"]["floor"]] else "netplist"


def from_family(family: Family | None) -> str:
    """The advice if chips of this family or later are needed, such as "needs iPhone 13 (A15, M2) or later"."""
    return "" if family is None else f"needs {first_chips(family)} or later"


def newer_chips(change: str) -> str:
    """The chips of an advice of `from_family`, such as "iPhone 13 (A15, M2)"; "" for a change of the network."""
    found = re.fullmatch(r"needs (.+) or later", change)
    return found[1] if found else ""


def first_chips(family: Family) -> str:
    """The first products of a family, such as "iPhone 13 (A15, M2)". Texts name products, because the chip in a
    family's name does not belong to the family."""
    products = target_table(table("families")["family_arch"][str(family)]).get("products", [])
    names = tuple(str(p["name"] if isinstance(p, dict) else p) for p in products)
    lead = next(well_known(names), "")
    if not lead:
        return f"a chip of family {family}"
    others = ", ".join(name for name in names if name != lead)
    return f"{lead}{f' ({others})' if others else ''}"


def with_chips(text: str) -> str:
    """Returns a text of the tables or rules with chips in place of a family: "from family A15 on" becomes "on iPhone 15
    (A16, M3) and later", "family A13 or later" becomes "iPhone 12 (A14, M1) or later", "on family A13"
    becomes "on iPhone 12 (A14, M1)"."""
    text = re.sub(r"from family (\w+) on\b", lambda found: f"on {first_chips(Family[found[1]])} and later", text)
    text = re.sub(r"\bon every family\b", "on every chip", text)
    return re.sub(r"\bfamily (A\d+\w*)", lambda found: first_chips(Family[found[1]]), text)


def layer_unit(layer: str) -> str:
    """The unit that runs a layer of a netplist, taken from the first MIL op that maps to the layer; "" if unknown."""
    unit = next((floor.unit for floor in floors().values() if floor.layer == layer and floor.unit != "none"), "")
    return unit or _UNITS.get(layer, "")


# Layers that no MIL op maps to, by their names in the compiler's lists of units and fused operations.
_UNITS = {
    "CrossCorrelation": "mac",
    "GOC": "planar",
    "DynamicGOC": "planar",
    "ScaledElementWise": "planar",
    "MinMaxNorm": "planar",
}


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
        + ("" if value else f"; nobody has published byte {_offset(gate)} of the chip"),
        rule=f"gate byte {_offset(gate)}" if gate else "no gate byte",
        source=fact.source if fact and fact.value is not None else "guide app. B",
        status=fact.status if fact and fact.value is not None else "inferred",
    )


def layer_status(name: str, chip: Chip, *, conv_3d: bool = False) -> Verdict | None:
    """The reason why a chip never supports this layer of a netplist, whatever its operands; None if the chip supports
    it."""
    data = table("floors")["layers"]
    layer = layers()[name]
    if not layer.authored:
        return Verdict(
            verdict="rejected",
            reason=f"{name} has no exported validator, so no netplist reaches it",
            rule="no export",
            source="guide ch22",
            status="decoded",
        )
    if layer.gate and getattr(chip.gates, layer.gate) is False:
        fact = chip.facts[f"gates.{layer.gate}"]
        return Verdict(
            verdict="rejected",
            reason=f"the engine's compiler has no {_words(name)} for this chip:"
            f" byte {_offset(layer.gate)} of its table is 0",
            rule=f"gate byte {_offset(layer.gate)}",
            source=f"{data['source']}; {fact.source}",
            status=fact.status,
            reject=layer.reject,
            published=layer.published,
        )
    never = conv_3d or layer.fails == "always"
    if never or (isinstance(layer.fails, Family) and chip.family < layer.fails):
        return Verdict(
            verdict="rejected",
            reason="Apple's validator accepts it, Apple's compiler then fails" + (" on every chip" if never else ""),
            rule="attested is not reachable",
            source="guide ch22",
            status="measured",
            reject=layer.reject,
            published=layer.published,
            change="" if never else from_family(Family[str(layer.fails)]),
        )
    return None


def _words(layer: str) -> str:
    """Returns a layer's name in words: GlobalArgMinMax -> global arg min max."""
    return layer if layer.isupper() else re.sub(r"(?<=[a-z])(?=[A-Z])", " ", layer).lower()


def _offset(gate: str) -> str:
    return ", ".join(offsets(f"gates.{gate}"))


def disputes() -> Mapping[str, Any]:
    """The ops about which sources disagree: the value that Hexane uses, the reason, and every claim."""
    result: Mapping[str, Any] = table("floors")["disputes"]
    return result
