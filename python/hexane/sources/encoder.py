"""Folders of Hugging Face with a text encoder: config.json and safetensors."""

from collections.abc import Mapping

from hexane.sources.format import Format
from hexane.sources.look import Seen
from hexane.sources.module import Function, functions_of

CONFIG = "config.json"


def is_encoder(seen: Seen) -> bool:
    """True for a folder with safetensors whose config.json names a family of encoders."""
    if not seen.is_folder or CONFIG not in seen.names or not any(name.endswith(".safetensors") for name in seen.names):
        return False
    from hexane.importers.encoders import holds_encoder

    return seen.path is not None and holds_encoder(seen.path)


def _open(seen: Seen) -> Mapping[str, Function]:
    from hexane.importers.encoders import OpenedEncoder

    assert seen.path is not None
    return functions_of(OpenedEncoder(seen.path), ("main",))


ENCODER = Format("encoder", "a Hugging Face folder of a text encoder", is_encoder, _open)
