"""Hugging Face folders of an encoder of texts, images or both, or of Whisper: config.json and safetensors."""

from collections.abc import Callable, Mapping
from pathlib import Path

from hexane.errors import Error
from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, Opened, functions_of

CONFIG = "config.json"


def has_weights(seen: Seen) -> bool:
    """True for a folder with config.json and safetensors."""
    return seen.is_folder and CONFIG in seen.names and any(name.endswith(".safetensors") for name in seen.names)


def is_encoder(seen: Seen) -> bool:
    """True for a folder with safetensors whose config.json names a family of encoders, or Whisper."""
    return _kind(seen) is not None


def model_type(seen: Seen) -> str:
    """The model_type in a folder's config.json, as in a sentence: "model_type 'llama'"."""
    from hexane.importers.encoders.files import json_object

    if seen.path is None or CONFIG not in seen.names:
        return f"no {CONFIG}"
    try:
        found = json_object(seen.path, CONFIG, "[open]").get("model_type")
    except Error:
        return "not readable"
    return "no model_type" if found is None else f"model_type {found!r}"


def _kind(seen: Seen) -> Callable[[Path], Opened] | None:
    """The class that opens the folder; None for other folders."""
    if seen.path is None or not has_weights(seen):
        return None
    from hexane.importers import encoders, image_encoders, speech

    kinds: list[tuple[Callable[[Path], bool], Callable[[Path], Opened]]] = [
        (encoders.holds_encoder, encoders.OpenedEncoder),
        (image_encoders.holds_image_encoder, image_encoders.OpenedImageEncoder),
        (image_encoders.holds_text_half, image_encoders.OpenedTextHalf),
        (image_encoders.holds_pair, image_encoders.OpenedPair),
        (speech.holds_speech, speech.OpenedSpeech),
    ]
    return next((opened for holds, opened in kinds if holds(seen.path)), None)


def _open(seen: Seen) -> Mapping[str, Function]:
    opened = _kind(seen)
    assert seen.path is not None
    assert opened is not None
    names: tuple[str, ...] = getattr(opened, "functions", ("main",))
    if seen.function is not None and seen.function not in names:
        raise Error(f"[open] {seen.path}: got the function {seen.function!r}, need one of {', '.join(names)}")
    return functions_of(opened(seen.path), (seen.function,) if seen.function else names)


ENCODER = Format("encoder", "a Hugging Face folder of an encoder", is_encoder, _open)
