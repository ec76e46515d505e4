"""The validators of the engine's compiler, one for each kind of layer, and the failures of its later code generation.

Apple's compiler runs the validators twice: when it finds the ops that the engine may have, and when it compiles.
Hexane's `check`, `preflight` and compiler all call `validate`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hexane.errors import Error
from hexane.graph import TensorType
from hexane.targets import Chip, Verdict
from hexane.targets.floors import layers
from hexane.targets.netplist_legality import layer_status
from hexane.validate import compute, elementwise, movement, norms, texture, views, windows
from hexane.validate.rule import Call, Rule, verdict

RULES: Mapping[str, tuple[Rule, ...]] = {
    **compute.LAYERS,
    **norms.LAYERS,
    **elementwise.LAYERS,
    **windows.LAYERS,
    **views.LAYERS,
    **movement.LAYERS,
    **texture.LAYERS,
}
_BY_STAGE = {
    stage: {layer: [rule for rule in rules if rule.stage == stage] for layer, rules in RULES.items()}
    for stage in ("validator", "lowering")
}


def validate(
    layer: str,
    types: Sequence[TensorType],
    attrs: Mapping[str, Any],
    chip: Chip,
    output: TensorType | None = None,
) -> list[Verdict]:
    """The reasons why the validator rejects a layer, or if it accepts the layer, why code generation then fails. [] if
    the layer is legal.

    types: the input types, (N, C, H, W) or (N, C, D, H, W), without weights that are part of the layer. attrs: by the
    names in the file of the layer's rules. Raises Error for an unknown kind of layer.
    """
    if layer not in layers():
        raise Error(f"[validate] layer: got {layer!r}, need one of {', '.join(layers())}")
    refused = layer_status(layer, chip)
    if refused is not None and refused.rule != "attested is not reachable":
        return [refused]
    call = Call(tuple(types), attrs, chip, output)
    result = _found(layer, _BY_STAGE["validator"].get(layer, ()), call)
    if result:
        return result
    return [refused] if refused is not None else _found(layer, _BY_STAGE["lowering"].get(layer, ()), call)


def _found(layer: str, rules: Sequence[Rule], call: Call) -> list[Verdict]:
    return [verdict(layer, rule, refused) for rule in rules if (refused := rule.refuses(call))]
