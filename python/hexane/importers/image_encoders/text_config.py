"""The text encoders of CLIP and SigLIP by the model_type of config.json: their fields."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.config import LARGEST, short
from hexane.importers.encoders.families import HARMLESS as OF_TEXTS
from hexane.importers.image_encoders.config import ACTIVATIONS, HARMLESS

FIELDS = {
    "vocab": "vocab_size",
    "dim": "hidden_size",
    "hidden": "intermediate_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}
OTHERS = ("hidden_act", "layer_norm_eps", "eos_token_id", "pad_token_id", "projection_size")
# transformers' defaults for missing fields.
FAMILIES: Mapping[str, Mapping[str, Any]] = {
    "clip_text_model": {
        "vocab_size": 49408,
        "hidden_size": 512,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 8,
        "max_position_embeddings": 77,
        "hidden_act": "quick_gelu",
        "layer_norm_eps": 1e-5,
        "eos_token_id": 49407,
        "pad_token_id": 1,
    },
    "siglip_text_model": {
        "vocab_size": 32000,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "max_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "layer_norm_eps": 1e-6,
        "eos_token_id": 49407,
        "pad_token_id": 1,
    },
}


@dataclass(frozen=True, slots=True)
class TextHalfConfig:
    """The sizes of a text encoder.

    positions: the highest number of tokens. end: the first token with this id gives CLIP's vector of a text; old
    folders have 2, which means the token of the largest id. padding: the id of the padding token in SigLIP. projected:
    a linear layer projects CLIP's vector.
    """

    family: str
    vocab: int
    dim: int
    hidden: int
    layers: int
    heads: int
    positions: int
    epsilon: float
    activation: str
    end: int
    padding: int
    projected: bool = False

    @property
    def causal(self) -> bool:
        """True for CLIP, whose tokens attend only to themselves and earlier tokens."""
        return self.family == "clip_text_model"


def is_text_half(given: Mapping[str, Any]) -> bool:
    """True if the fields of a config.json name one of `FAMILIES`."""
    return isinstance(given.get("model_type"), str) and given["model_type"] in FAMILIES


def text_config_in(where: str, given: Mapping[str, Any]) -> TextHalfConfig:
    """Returns the config from the fields of a file. Raises Error, with the prefix `where`, for unknown fields and
    unsupported values."""
    defaults = FAMILIES[given["model_type"]]
    wrong: list[str] = []

    def get(name: str) -> Any:
        return given.get(name, defaults.get(name))

    def bad(name: str, need: str) -> None:
        wrong.append(f"{name}: got {short(get(name))}, need {need}")

    fields: dict[str, Any] = {own: get(name) for own, name in FIELDS.items()}
    ids = {"end": get("eos_token_id"), "padding": get("pad_token_id")}
    for name, value, least in (
        *((FIELDS[own], value, 1) for own, value in fields.items()),
        ("eos_token_id", ids["end"], 0),
        ("pad_token_id", ids["padding"], 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= LARGEST:
            bad(name, f"an integer from {least} on")
    epsilon, activation = get("layer_norm_eps"), get("hidden_act")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0 < epsilon < 1:
        bad("layer_norm_eps", "a number above 0")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        bad("hidden_act", " or ".join(map(repr, ACTIVATIONS)))
    for name in sorted(given):
        known = name in FIELDS.values() or name in OTHERS or name in HARMLESS or name in OF_TEXTS
        if not known and not name.startswith("_") and given[name] not in (None, False, {}):
            bad(name, "no such field, as it may change the numbers: it is not known here")
    ends = ("Model", "ModelWithProjection") if given["model_type"] == "clip_text_model" else ("Model",)
    names = given.get("architectures") or ["Model"]
    if not isinstance(names, list) or len(names) != 1 or not str(names[0]).endswith(ends):
        bad("architectures", f"one name that ends in {' or '.join(ends)}")
    if not wrong and fields["dim"] % fields["heads"]:
        bad("num_attention_heads", f"a divisor of the {fields['dim']} of hidden_size")
    if wrong:
        raise Error(f"{where}: {'; '.join(wrong)}")
    return TextHalfConfig(
        given["model_type"],
        **fields,
        **ids,
        epsilon=float(epsilon),
        activation=ACTIVATIONS[activation],
        projected=str(names[0]).endswith("WithProjection"),
    )
