"""The config of Whisper from config.json of Hugging Face.

One error names all unknown fields that may change the results.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders.config import LARGEST, short
from hexane.importers.encoders.families import HARMLESS as OF_TEXTS
from hexane.importers.image_encoders.config import ACTIVATIONS

KIND = "whisper"
EPSILON = 1e-5  # epsilon of layer norms; config.json does not contain it
FIELDS = {
    "vocab": "vocab_size",
    "mels": "num_mel_bins",
    "dim": "d_model",
    "encoder_layers": "encoder_layers",
    "encoder_heads": "encoder_attention_heads",
    "encoder_hidden": "encoder_ffn_dim",
    "decoder_layers": "decoder_layers",
    "decoder_heads": "decoder_attention_heads",
    "decoder_hidden": "decoder_ffn_dim",
    "positions": "max_source_positions",
    "tokens": "max_target_positions",
}
# transformers' defaults for missing fields.
DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 51865,
    "num_mel_bins": 80,
    "d_model": 384,
    "encoder_layers": 4,
    "encoder_attention_heads": 6,
    "encoder_ffn_dim": 1536,
    "decoder_layers": 4,
    "decoder_attention_heads": 6,
    "decoder_ffn_dim": 1536,
    "max_source_positions": 1500,
    "max_target_positions": 448,
    "activation_function": "gelu",
    "tie_word_embeddings": True,
}
FIXED: Mapping[str, tuple[Any, ...]] = {
    "quantization_config": (None,),
    "is_encoder_decoder": (True,),
    "tie_word_embeddings": (True, False),
    "pruned_heads": ({}, None),
}
# Fields for training, token selection and audio classification. transformers ignores scale_embedding for Whisper.
HARMLESS = frozenset(
    (
        *("scale_embedding", "num_hidden_layers", "encoder_layerdrop", "decoder_layerdrop", "activation_dropout"),
        *("init_std", "use_weighted_layer_sum", "classifier_proj_size", "apply_spec_augment", "mask_time_prob"),
        *("mask_time_length", "mask_time_min_masks", "mask_feature_prob", "mask_feature_length"),
        *("mask_feature_min_masks", "median_filter_width", "forced_decoder_ids", "alignment_heads", "lang_ids"),
    )
)
HEAD = "ForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class SpeechConfig:
    """The sizes of a Whisper model. mels: rows of the spectrogram. positions: encoder states of a window of audio, one
    for two frames. tokens: of the longest text, with its prompt. tied: logits use the token embedding as their
    weight."""

    vocab: int
    mels: int
    dim: int
    encoder_layers: int
    encoder_heads: int
    encoder_hidden: int
    decoder_layers: int
    decoder_heads: int
    decoder_hidden: int
    positions: int
    tokens: int
    activation: str
    tied: bool = True

    @property
    def frames(self) -> int:
        """Columns of a window's spectrogram."""
        return 2 * self.positions


def is_speech(given: Mapping[str, Any]) -> bool:
    """True if the fields of a config.json name Whisper."""
    return given.get("model_type") == KIND


def config_in(where: str, given: Mapping[str, Any]) -> SpeechConfig:
    """Returns the config from the fields of a file. Raises Error, with the prefix `where`, for unknown fields and
    unsupported values."""
    wrong: list[str] = []

    def get(name: str) -> Any:
        return given.get(name, DEFAULTS.get(name))

    def bad(name: str, need: str) -> None:
        wrong.append(f"{name}: got {short(get(name))}, need {need}")

    fields: dict[str, Any] = {own: get(name) for own, name in FIELDS.items()}
    for own, name in FIELDS.items():
        if isinstance(fields[own], bool) or not isinstance(fields[own], int) or not 1 <= fields[own] <= LARGEST:
            bad(name, "an integer from 1 on")
    activation = get("activation_function")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        bad("activation_function", " or ".join(map(repr, ACTIVATIONS)))
    for name, needed in FIXED.items():
        got = given.get(name, needed[0])
        if not any(got == need and isinstance(got, bool) == isinstance(need, bool) for need in needed):
            bad(name, " or ".join(map(repr, needed)))
    known = {*FIELDS.values(), *DEFAULTS, *FIXED, *HARMLESS} | OF_TEXTS
    for name in sorted(given):
        if name not in known and not name.startswith("_") and given[name] not in (None, False, {}):
            bad(name, "no such field, as it may change the numbers: it is not known here")
    names = given.get("architectures") or ["Model"]
    if not isinstance(names, list) or len(names) != 1 or not str(names[0]).endswith((HEAD, "Model")):
        bad("architectures", f"one name that ends in {HEAD} or Model")
    for half in ("encoder", "decoder"):
        if not wrong and fields["dim"] % fields[f"{half}_heads"]:
            bad(FIELDS[f"{half}_heads"], f"a divisor of the {fields['dim']} of d_model")
    if wrong:
        raise Error(f"{where}: {'; '.join(wrong)}")
    return SpeechConfig(**fields, activation=ACTIVATIONS[activation], tied=get("tie_word_embeddings"))
