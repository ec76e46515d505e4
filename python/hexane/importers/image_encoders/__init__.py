"""Image encoders from Hugging Face folders: ViT, DeiT, CLIP and SigLIP. CLIP and SigLIP also have a text encoder."""

from hexane.importers.image_encoders.config import ImageEncoderConfig
from hexane.importers.image_encoders.opened import (
    OpenedImageEncoder,
    holds_image_encoder,
    is_pooled,
    read_image_encoder,
)
from hexane.importers.image_encoders.pairs import OpenedPair, PairFiles, holds_pair, read_pair
from hexane.importers.image_encoders.text_config import TextHalfConfig
from hexane.importers.image_encoders.texts import OpenedTextHalf, holds_text_half, read_text_half

__all__ = [
    "ImageEncoderConfig",
    "OpenedImageEncoder",
    "OpenedPair",
    "OpenedTextHalf",
    "PairFiles",
    "TextHalfConfig",
    "holds_image_encoder",
    "holds_pair",
    "holds_text_half",
    "is_pooled",
    "read_image_encoder",
    "read_pair",
    "read_text_half",
]
