"""Recognises kinds of models in Hugging Face folders, by the model_type of config.json."""

from pathlib import Path
from typing import Any

from hexane.errors import Error
from hexane.importers.encoders import holds_encoder
from hexane.importers.encoders.config import short
from hexane.importers.encoders.files import CONFIG, json_object
from hexane.importers.image_encoders import holds_image_encoder, holds_pair, holds_text_half
from hexane.importers.speech import holds_speech
from hexane.sources import title_of
from hexane.train.decoder.checkpoint import is_checkpoint
from hexane.train.decoder.formats import holds_marked_decoder
from hexane.train.decoder.formats.hugging_face_families import FAMILIES, WITH_IMAGES

OTHER_INPUTS = ("vision_config", "audio_config")  # parts of models that also read images or sound
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
AS_NETWORK = "`hexane run`, `check`, `compile`, `estimate`, `emit` and `info`"


def check_decoder(path: Path) -> None:
    """Raises Error for a model that is no decoder, with its kind and the commands that can open it. path: a folder, or
    a file such as an ONNX model."""
    _check_file(path)
    if not (path / CONFIG).is_file():
        return
    fields = json_object(path, CONFIG, f"[llm.load] {path}")
    kind = fields.get("model_type", "llama")
    if isinstance(kind, str) and kind in FAMILIES.keys() | WITH_IMAGES.keys():
        return
    raise Error(f"[llm.load] {path}: got {_other(path, kind, fields)}")


def _check_file(path: Path) -> None:
    """Raises Error for a file of a known kind that is no decoder, such as an ONNX model."""
    if path.is_dir() or is_checkpoint(path) or holds_marked_decoder(path):
        return
    title = title_of(path, where="llm.load")
    if title is not None:
        raise Error(
            f"[llm.load] {path}: got {title}, which is no language model, need a Hugging Face folder (config.json,"
            " safetensors, a tokenizer), a GGUF file or a checkpoint of `hexane train`. Networks in ONNX and"
            f" other formats are for {AS_NETWORK}"
        )


def name_of_kind(path: Path) -> str:
    """Returns the kind of the model at a path, in a few words."""
    if not (path / CONFIG).is_file():
        return "no config.json"
    return f"the model_type {short(json_object(path, CONFIG, f'[llm.load] {path}').get('model_type'))}"


def _other(path: Path, kind: Any, fields: dict[str, Any]) -> str:
    if holds_encoder(path):
        return (
            f"a text encoder ({kind}), which makes no text, need a decoder: `hexane embed` and `hexane llm` take this"
            f" folder, and as a network {AS_NETWORK}"
        )
    if holds_image_encoder(path):
        return (
            f"an image encoder ({kind}), which makes no text, need a decoder: `hexane embed` takes this folder, and as"
            f" a network {AS_NETWORK}"
        )
    if holds_pair(path) or holds_text_half(path):
        what = "texts and images" if holds_pair(path) else "texts"
        return (
            f"an encoder of {what} ({kind}), which makes no text, need a decoder: `hexane embed` takes this folder, and"
            f" as a network {AS_NETWORK}"
        )
    if holds_speech(path):
        return (
            f"a speech model ({kind}), which makes text of sound alone, need a decoder: `hexane transcribe` and `hexane"
            f" llm` take this folder, and as a network {AS_NETWORK}"
        )
    what = ""
    if any(isinstance(fields.get(name), dict) for name in OTHER_INPUTS):
        what = " (a decoder that also reads images or sound)"
    elif any(fields.get(name) for name in EXPERTS):
        what = " (a mixture of experts)"
    return f"the model_type {short(kind)}{what}, need a decoder of text, one of {', '.join([*FAMILIES, *WITH_IMAGES])}"
