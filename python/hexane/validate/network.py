"""The compiler's checks of more than one layer, which are the other exported functions:

| export | here |
|---|---|
| `_ANECValidate` | `validate`, for one layer |
| `_ANECValidateNetworkCreate` | `validate_network`: checks the network and all layers |
| `_ANECValidateMPSModule`, `_ANECValidateMPSModuleCreate` | `validate_module`: before a module is converted |
| `_ANECValidateMutableProcedureInfo` | `validate_weight_edit`: before weights of a program are replaced |
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hexane.graph import TensorType
from hexane.targets import Chip, Verdict
from hexane.validate.layer import validate

SCHEMA = (1, 0, 10)  # version of netplists; guide ch22
COLLISION = 'ANE internal error: Unit name "%s" collision during MIL to ANEC IR conversion.'
BONDED = "Bonded networks are not supported on the target"


@dataclass(frozen=True, slots=True)
class Unit:
    """A layer of a network, with its name."""

    name: str
    layer: str
    types: tuple[TensorType, ...]
    attrs: Mapping[str, Any]
    output: TensorType | None = None


def validate_module(
    version: tuple[int, ...], names: Iterable[str], records: Collection[str] | None = None
) -> list[Verdict]:
    """The reasons to refuse a module before it is converted: a schema newer than the compiler, two units with the same
    name, or a unit without a conversion record. records: the names that have a record; None: all names."""
    names = list(names)
    result = []
    if version > SCHEMA:
        newer = f"module of schema {_dotted(version)}: newer than {_dotted(SCHEMA)}, which the compiler reads"
        result.append(_refused("schema", newer, published=False))
    result += [_refused("unit names", COLLISION % name) for name, count in Counter(names).items() if count > 1]
    if records is not None:
        missing = (name for name in dict.fromkeys(names) if name not in records)
        result += [
            _refused("conversion", f"no conversion record for the unit {name}", published=False) for name in missing
        ]
    return result


def validate_network(
    units: Sequence[Unit],
    chip: Chip,
    *,
    version: tuple[int, ...] = SCHEMA,
    bonded: bool = False,
    records: Collection[str] | None = None,
) -> dict[str, list[Verdict]]:
    """The check of a whole network: the refusals by unit name, with the name "" for the network itself. bonded: the
    network is part of a network over several dies."""
    whole = validate_module(version, [unit.name for unit in units], records)
    if bonded and not chip.gates.collective:
        whole.append(_refused("bonded networks", BONDED))
    result = {"": whole} if whole else {}
    for unit in units:
        if refused := validate(unit.layer, unit.types, unit.attrs, chip, unit.output):
            result.setdefault(unit.name, []).extend(refused)
    return result


def validate_weight_edit(weights: Mapping[str, TensorType], edits: Mapping[str, TensorType]) -> list[Verdict]:
    """The reasons why a replacement of weights is refused: each weight has to exist, and to keep its type."""
    result = []
    for name, kind in edits.items():
        if name not in weights:
            result.append(
                _refused("weight edit", f"got the weight {name}, which the program does not have", published=False)
            )
        elif weights[name] != kind:
            message = f"weight {name}: got {kind}, need {weights[name]}"
            result.append(_refused("weight edit", message, published=False))
    return result


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _refused(rule: str, reject: str, published: bool = True) -> Verdict:
    return Verdict(
        verdict="rejected",
        reason=reject,
        rule=f"umbrella: {rule}",
        source="guide ch22",
        status="decoded" if published else "inferred",
        reject=reject,
        published=published,
    )
