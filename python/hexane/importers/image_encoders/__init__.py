"""Image encoders from folders of Hugging Face: ViT, DeiT, and the encoders of images of CLIP and SigLIP."""

from hexane.importers.image_encoders.config import ImageEncoderConfig
from hexane.importers.image_encoders.opened import (
    OpenedImageEncoder,
    holds_image_encoder,
    is_pooled,
    read_image_encoder,
)

__all__ = ["ImageEncoderConfig", "OpenedImageEncoder", "holds_image_encoder", "is_pooled", "read_image_encoder"]
