"""Which layers of a netplist a chip never supports, whatever their operands."""

import re

from hexane.targets.chip import Chip
from hexane.targets.family import Family
from hexane.targets.first_chips import from_family
from hexane.targets.floors import layers
from hexane.targets.query import offsets
from hexane.targets.tables import table
from hexane.targets.verdict import Verdict


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
            f" byte {gate_offset(layer.gate)} of its table is 0",
            rule=f"gate byte {gate_offset(layer.gate)}",
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


def gate_offset(gate: str) -> str:
    return ", ".join(offsets(f"gates.{gate}"))
