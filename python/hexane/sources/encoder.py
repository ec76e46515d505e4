"""Folders of Hugging Face with an encoder of texts or images: config.json and safetensors."""

from collections.abc import Mapping

from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, functions_of

CONFIG = "config.json"


def _has_weights(seen: Seen) -> bool:
    return seen.is_folder and CONFIG in seen.names and any(name.endswith(".safetensors") for name in seen.names)


def is_encoder(seen: Seen) -> bool:
    """True for a folder with safetensors whose config.json names a family of encoders."""
    return _of_texts(seen) or _of_images(seen)


def _of_texts(seen: Seen) -> bool:
    if seen.path is None or not _has_weights(seen):
        return False
    from hexane.importers.encoders import holds_encoder

    return holds_encoder(seen.path)


def _of_images(seen: Seen) -> bool:
    if seen.path is None or not _has_weights(seen):
        return False
    from hexane.importers.image_encoders import holds_image_encoder

    return holds_image_encoder(seen.path)


def _open(seen: Seen) -> Mapping[str, Function]:
    assert seen.path is not None
    if _of_images(seen):
        from hexane.importers.image_encoders import OpenedImageEncoder

        return functions_of(OpenedImageEncoder(seen.path), ("main",))
    from hexane.importers.encoders import OpenedEncoder

    return functions_of(OpenedEncoder(seen.path), ("main",))


ENCODER = Format("encoder", "a Hugging Face folder of an encoder", is_encoder, _open)
